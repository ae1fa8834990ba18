"""Writes whole HTTP/1.1 responses as bytes, for answers that do not go through ASGI.

Used by the fast path and by the protocol's own refusals, so that every answer of the service carries the same headers.
"""

import http
from collections.abc import Callable, Iterable

from capstan.limits.models import Decision

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}


class ResponseEncoder:
    """Encodes responses. `default_headers` gives uvicorn's own, which hold the date and change once a second."""

    def __init__(self, default_headers: Callable[[], list[tuple[bytes, bytes]]] = list) -> None:
        self._default_headers = default_headers
        self._seen: list[tuple[bytes, bytes]] | None = None
        self._defaults = b""

    def use_defaults(self, default_headers: Callable[[], list[tuple[bytes, bytes]]]) -> None:
        """Take the default headers from a server that has started."""
        self._default_headers = default_headers

    def encode(
        self,
        status: int,
        body: bytes,
        headers: Iterable[tuple[str, str]],
        decision: Decision,
        request_id: str,
        keep_alive: bool,
    ) -> bytes:
        """One response."""
        defaults = self._default_headers()
        if defaults is not self._seen:
            self._seen = defaults
            self._defaults = b"".join(b"%s: %s\r\n" % item for item in defaults)
        own = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = (
            f"{own}content-length: {len(body)}\r\nx-ratelimit-limit: {decision.limit}\r\n"
            f"x-ratelimit-remaining: {decision.remaining}\r\nx-ratelimit-reset: {decision.reset}\r\n"
            f"x-request-id: {request_id}\r\nx-content-type-options: nosniff\r\n"
        )
        if not keep_alive:
            head += "connection: close\r\n"
        return b"".join((_STATUS_LINES[status], self._defaults, head.encode("latin-1"), b"\r\n", body))
