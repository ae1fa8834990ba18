"""Completes the API description that Litestar derives from the routes.

Litestar knows paths, parameters and bodies. This module adds what holds for every operation: the two ways to send a
key, the headers of every response, and the error bodies. `asgi.py` calls it once and serves the result.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from capstan.core.errors import (
    ApiError,
    Conflict,
    Forbidden,
    HeadersTooLarge,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamTimeout,
)

_HEADERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "X-RateLimit-Limit": (
        "Requests per second that the account may make; 0 means no limit.",
        {"type": "integer", "minimum": 0},
    ),
    "X-RateLimit-Remaining": ("Requests left in the present one-second window.", {"type": "integer", "minimum": 0}),
    "X-RateLimit-Reset": ("Unix time at which the window is whole again.", {"type": "integer", "minimum": 0}),
    "X-Request-Id": ("The id of this request, also in the service's log.", {"type": "string"}),
    "Retry-After": ("Whole seconds to wait before trying again.", {"type": "integer", "minimum": 1}),
}
_EVERY_RESPONSE = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id")

_EVERY_ERROR: tuple[type[ApiError], ...] = (
    InvalidRequest,
    MethodNotAllowed,
    RequestTimeout,
    PayloadTooLarge,
    RateLimited,
    HeadersTooLarge,
    InternalError,
    Unavailable,
)
_KEYED_ERROR: tuple[type[ApiError], ...] = (Unauthorized, Forbidden, NotFound)
_BY_NAME: Mapping[str, type[ApiError]] = {
    error.code: error for error in (Unauthorized, Forbidden, NotFound, Conflict, UpstreamError, UpstreamTimeout)
}

_SECURITY: list[dict[str, list[str]]] = [{"apiKey": []}, {"bearer": []}]
_SECURITY_SCHEMES = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The recommended way."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "The same key as a bearer token."},
    "operator": {
        "type": "http",
        "scheme": "bearer",
        "description": "The operator token (`server.operator_token`), for the paths of those who run the service.",
    },
}


def complete_document(app: Litestar, *, base_url: str) -> dict[str, Any]:
    """The whole OpenAPI 3.1 document of the application."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(app.openapi_schema.to_schema()))
    document["servers"] = [{"url": base_url.removesuffix("/v1")}]
    document["security"] = _SECURITY
    components = document.setdefault("components", {})
    components["securitySchemes"] = _SECURITY_SCHEMES
    components["headers"] = {
        name: {"description": text, "required": True, "schema": schema} for name, (text, schema) in _HEADERS.items()
    }
    components.setdefault("schemas", {})["Error"] = _error_schema()
    components["responses"] = {error.code: _error_response(error) for error in _all_errors()}
    options = _options_by_operation(app)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _complete_operation(operation, options.get((path, method), {}))
    return document


def _complete_operation(operation: dict[str, Any], options: Mapping[str, Any]) -> None:
    is_open = bool(options.get("open"))
    if is_open:
        operation["security"] = [{name: []} for name in options.get("security", ())]
    # Litestar's own 400 describes its own error body, which no caller ever sees.
    answers = {status: response for status, response in operation["responses"].items() if int(status) < 400}
    if schema := options.get("request_schema"):
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if schema := options.get("response_schema"):
        for response in answers.values():
            response["content"] = {"application/json": {"schema": schema}}
    if media_types := options.get("media_types"):
        for response in answers.values():
            response["content"] = {name: {"schema": {"type": "string"}} for name in media_types}
    for status, text in options.get("documented_statuses", {}).items():
        answers[status] = {"description": text}
    for response in answers.values():
        response.setdefault("headers", {}).update({name: _header(name) for name in _EVERY_RESPONSE})
    errors = list(_EVERY_ERROR) + ([] if is_open else list(_KEYED_ERROR))
    errors += [_BY_NAME[name] for name in options.get("errors", ())]
    for error in sorted(errors, key=lambda item: item.status):
        answers[str(error.status)] = {"$ref": f"#/components/responses/{error.code}"}
    operation["responses"] = answers
    if scopes := options.get("scopes"):
        text = operation.get("description", "")
        operation["description"] = f"{text}\n\nScope: {' or '.join(f'`{scope}`' for scope in scopes)}.".strip()


def _options_by_operation(app: Litestar) -> dict[tuple[str, str], Mapping[str, Any]]:
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                found.update({(route.path_format, method.lower()): handler.opt for method in handler.http_methods})
    return found


def _all_errors() -> list[type[ApiError]]:
    return list(dict.fromkeys([*_EVERY_ERROR, *_KEYED_ERROR, *_BY_NAME.values()]))


def _header(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{name}"}


def _error_response(error: type[ApiError]) -> dict[str, Any]:
    names = [*_EVERY_RESPONSE, *(["Retry-After"] if error in (RateLimited, Unavailable) else [])]
    return {
        "description": (error.__doc__ or error.code).strip(),
        "headers": {name: _header(name) for name in names},
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }


def _error_schema() -> dict[str, Any]:
    return {
        "title": "Error",
        "type": "object",
        "description": "The body of every HTTP error.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "status"],
                "properties": {
                    "code": {"type": "string", "description": "A stable word for programs."},
                    "message": {"type": "string", "description": "What was wrong and what to do, for people."},
                    "status": {"type": "integer", "description": "The HTTP status."},
                },
            }
        },
    }
