"""Turns every exception that leaves a route into the error body of the API.

Registered on the Litestar application and used by the gate for what happens outside of it. Nothing about an unexpected
exception reaches the caller but the request id; the log has the rest.
"""

from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException

from capstan.core.errors import (
    ApiError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    Unavailable,
    render,
)
from capstan.core.redact import quoted
from capstan.server.context import context_of
from capstan.storage.errors import StorageUnavailable

log = structlog.get_logger(__name__)

_JSON = "application/json"


def to_api_error(error: Exception, *, path: str, method: str, request_id: str) -> ApiError:
    """The error a caller sees for any exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        # Only decoding goes as deep as the request says.
        return InvalidRequest("the request is nested too deeply")
    if isinstance(error, StorageUnavailable):
        return Unavailable("the database is away for the moment; try again shortly", retry_after=1)
    if isinstance(error, MethodNotAllowedException):
        return MethodNotAllowed(f"{method} is not allowed on {quoted(path)}", headers=dict(error.headers or {}))
    if isinstance(error, NotFoundException):
        return NotFound(f"there is nothing at {quoted(path)}; see /docs for every path")
    if isinstance(error, HTTPException) and error.status_code == 413:
        return PayloadTooLarge("the request body is too large")
    if isinstance(error, HTTPException) and 400 <= error.status_code < 500:
        return InvalidRequest(_client_message(error))
    if isinstance(error, HTTPException) and "client disconnected" in error.detail:
        return InvalidRequest("the client went away before its request was complete")
    log.error("request_failed", request_id=request_id, exc_info=error)
    return InternalError(f"something went wrong on our side; the request id is {request_id}")


def handle_exception(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for everything."""
    context = context_of(request.scope)
    api_error = to_api_error(error, path=context.path, method=context.method, request_id=context.request_id)
    return Response(render(api_error), status_code=api_error.status, media_type=_JSON, headers=dict(api_error.headers))


def _client_message(error: HTTPException) -> str:
    """What was wrong with the request, naming the parameters."""
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        problems = [_problem(item) for item in error.extra if isinstance(item, dict)]
        if problems:
            return quoted("; ".join(problems[:5]))
    detail = error.detail
    return quoted(detail) if detail else "the request is malformed"


def _problem(item: dict[str, Any]) -> str:
    key = str(item.get("key", "")).strip()
    message = str(item.get("message", "is not valid")).replace("`", "")
    if key == "data":
        # Litestar's name for the body as a whole, and its way of saying that there is none.
        return "the request body is missing" if message == "'data'" else f"the request body: {message}"
    source = item.get("source")
    where = f" in the {getattr(source, 'value', source)}" if source and source != "body" else ""
    return f"{key}{where}: {message}" if key else message
