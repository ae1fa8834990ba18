"""Puts the pages together: every handler behind the guard, every exception as a page, every path under `/dashboard`."""

from collections.abc import Sequence
from typing import Any

from litestar import Response, Router, get
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.handlers.base import BaseRouteHandler

from capstan.core.errors import NotFound
from capstan.dashboard.desk import HEADERS, PUBLIC, Asked, Desk, Page
from capstan.dashboard.rendering import static_files

# A file's address changes with the file.
_FOR_EVER = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}


@get("/static/{name:str}", opt=PUBLIC, sync_to_thread=False)
def static(name: str) -> Response[bytes]:
    """A file of the pages."""
    found = static_files().get(name)
    if found is None:
        raise NotFound("there is no such file")
    return Response(found.content, media_type=found.media_type, headers=_FOR_EVER)


@get("/{rest:path}")
async def missing(rest: str) -> Page:
    """Every other path."""
    raise NotFound(f"the dashboard has no page {rest}")


def build_router(desk: Desk, handlers: Sequence[HTTPRouteHandler]) -> Router:
    """The whole dashboard."""

    # Functions and not methods: the framework copies what it is given, and must not copy the desk.
    def handle(request: Asked, error: Exception) -> Page:
        return desk.handle(request, error)

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        await desk.guard(connection, handler)

    return Router(
        "/dashboard",
        route_handlers=[static, *handlers, missing],
        guards=[guard],
        # The sessions of people take the place of API keys here; see the guard.
        opt={"open": True},
        exception_handlers={Exception: handle, HTTPException: handle},
        include_in_schema=False,
    )
