"""The errors that reach a caller, and how each looks on the wire.

    ApiError
     ├─ InvalidRequest      400 invalid_request
     ├─ Unauthorized        401 unauthorized
     ├─ Forbidden           403 forbidden
     ├─ NotFound            404 not_found
     ├─ MethodNotAllowed    405 method_not_allowed
     ├─ RequestTimeout      408 request_timeout
     ├─ Conflict            409 conflict
     ├─ PayloadTooLarge     413 payload_too_large
     ├─ UpgradeRequired     426 upgrade_required
     ├─ RateLimited         429 rate_limited        (Retry-After)
     ├─ HeadersTooLarge     431 headers_too_large
     ├─ InternalError       500 internal_error
     ├─ UpstreamError       502 upstream_error
     ├─ Unavailable         503 unavailable         (Retry-After)
     └─ UpstreamTimeout     504 upstream_timeout

Services raise these; only the server package turns them into bytes, with `render`. A message is written for the caller:
it names what was wrong and what to do, and never holds a secret, a stack trace or text of a library's exception.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong: a stable code, a message for people, and the HTTP status."""

    code: str
    message: str
    status: int


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every HTTP error."""

    error: ErrorDetail


class ApiError(Exception):
    """Base of every error a caller may see."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.headers: Mapping[str, str] = headers or {}


class InvalidRequest(ApiError):
    """The request is malformed; the message names the parameter."""

    status = 400
    code = "invalid_request"


class Unauthorized(ApiError):
    """No API key, or one that does not count."""

    status = 401
    code = "unauthorized"


class Forbidden(ApiError):
    """The key is good but may not do this; the message names the scope, network, rule or count."""

    status = 403
    code = "forbidden"


class NotFound(ApiError):
    """The thing asked for does not exist, or is not the caller's."""

    status = 404
    code = "not_found"


class MethodNotAllowed(ApiError):
    """The path exists, the HTTP method does not."""

    status = 405
    code = "method_not_allowed"


class RequestTimeout(ApiError):
    """The client was too slow in sending its request."""

    status = 408
    code = "request_timeout"


class Conflict(ApiError):
    """The request contradicts the present state."""

    status = 409
    code = "conflict"


class PayloadTooLarge(ApiError):
    """The request body is over the limit."""

    status = 413
    code = "payload_too_large"


class UpgradeRequired(ApiError):
    """The path is that of a WebSocket, and the request is not a handshake of version 13."""

    status = 426
    code = "upgrade_required"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"Upgrade": "websocket", "Sec-WebSocket-Version": "13"})


class RateLimited(ApiError):
    """A limit is spent; the header Retry-After says how many seconds to wait."""

    status = 429
    code = "rate_limited"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message, headers={"Retry-After": str(max(1, retry_after))})


class HeadersTooLarge(ApiError):
    """The request line and headers are over the limit."""

    status = 431
    code = "headers_too_large"


class InternalError(ApiError):
    """Our own fault. The message gives the request id, under which the log has the rest."""


class UpstreamError(ApiError):
    """Every upstream node failed."""

    status = 502
    code = "upstream_error"


class Unavailable(ApiError):
    """A part the request needs is away for the moment."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, headers={"Retry-After": str(max(1, retry_after))})


class UpstreamTimeout(ApiError):
    """No upstream answered before the deadline."""

    status = 504
    code = "upstream_timeout"


def render(error: ApiError) -> bytes:
    """The error body of the API for one error."""
    return msgspec.json.encode(ErrorBody(ErrorDetail(error.code, error.message, error.status)))
