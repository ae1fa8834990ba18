"""Builds the Litestar application from the routes of the capabilities.

`app.py` calls it with every route handler and wraps the result in the gate. What holds for all routes is set here once:
the guard, the exception handlers, the body limit, CORS, and the API description.
"""

from collections.abc import Callable, Sequence
from typing import Any

from litestar import Litestar, Request, Router
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope

from capstan.access.models import Caller
from capstan.server.admission import Admission, RequestMeter, guard
from capstan.server.context import context_of
from capstan.server.rendering import handle_exception

_EXPOSED = [
    *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id", "Retry-After"),
    *("X-Index-Block", "X-Index-Complete", "ETag", "Link"),
]


def build_application(
    routes: Sequence[HTTPRouteHandler | Router],
    admission: Admission,
    *,
    version: str,
    body_limit_bytes: int,
    cors_origins: Sequence[str],
) -> Litestar:
    """The application behind the gate."""
    return Litestar(
        list(routes),
        guards=[guard(admission)],
        dependencies={
            "caller": Provide(_caller, sync_to_thread=False),
            "meter": Provide(_meter(admission), sync_to_thread=False),
            "request_id": Provide(_request_id, sync_to_thread=False),
        },
        exception_handlers={Exception: handle_exception, HTTPException: handle_exception},
        request_max_body_size=body_limit_bytes,
        cors_config=_cors(cors_origins),
        before_send=[_tell_every_method],
        logging_config=None,
        debug=False,
        openapi_config=OpenAPIConfig(
            title="Capstan",
            version=version,
            description="A self-hosted blockchain infrastructure API.",
            use_handler_docstrings=True,
            # Litestar's own copy lacks what openapi.py adds; it is mounted out of sight, where the guard says 404.
            path="/internal/schema",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        ),
    )


async def _tell_every_method(message: Message, scope: Scope) -> None:
    """Let the answer to OPTIONS name every method of the path; Litestar names those of its first handler alone."""
    if scope.get("method") != "OPTIONS" or message["type"] != "http.response.start":
        return
    template = scope.get("path_template")
    for route in scope["litestar_app"].routes:
        if isinstance(route, HTTPRoute) and route.path_format == template:
            others = [(name, value) for name, value in message["headers"] if name.lower() != b"allow"]
            message["headers"] = [*others, (b"allow", ", ".join(sorted(route.methods)).encode())]


def _cors(origins: Sequence[str]) -> CORSConfig | None:
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_headers=["Authorization", "Content-Type", "If-None-Match", "X-API-Key", "X-Request-Id", "X-Explain"],
        allow_methods=["GET", "POST", "PATCH", "DELETE", "OPTIONS"],
        expose_headers=_EXPOSED,
        max_age=600,
    )


def _caller(request: Request[Any, Any, Any]) -> Caller:
    caller = context_of(request.scope).caller
    assert caller is not None, "the guard admits no request without a caller"
    return caller


def _meter(admission: Admission) -> Callable[[Request[Any, Any, Any]], RequestMeter]:
    def meter(request: Request[Any, Any, Any]) -> RequestMeter:
        return RequestMeter(admission, context_of(request.scope))

    return meter


def _request_id(request: Request[Any, Any, Any]) -> str:
    return context_of(request.scope).request_id
