"""Writes whole HTTP/1.1 responses as bytes, for answers that do not go through ASGI.

Used by the fast path and by the protocol's own refusals, so that every answer of the service carries the same headers.
"""

import http
from collections.abc import Callable, Iterable

from capstan.limits.models import Decision

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
_COMMON = (
    b"content-length: %d\r\nx-ratelimit-limit: %d\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n"
    b"x-request-id: %b\r\nx-content-type-options: nosniff\r\n"
)
_OPEN_END = b"\r\n"
_CLOSE_END = b"connection: close\r\n\r\n"
# RFC 6455, section 4.2.2, with the headers of every answer. It has no body and no length.
_SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\n%bupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n"
    b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\nx-request-id: %b\r\n\r\n"
)
# One pattern for the most common answers of all, and what they begin with up to the number of bytes.
_JSON_BEGINS = b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\nx-cache: %b\r\ncontent-length: "
_JSON = (
    b"%b%d\r\nx-ratelimit-limit: %d\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n"
    b"x-request-id: %b\r\nx-content-type-options: nosniff\r\n%b%b"
)


class ResponseEncoder:
    """Encodes responses. `default_headers` gives uvicorn's own, which hold the date and change once a second."""

    def __init__(self, default_headers: Callable[[], list[tuple[bytes, bytes]]] = list) -> None:
        self._default_headers = default_headers
        self._seen: list[tuple[bytes, bytes]] | None = None
        self._defaults = b""
        # By where the answer came from.
        self._begins: dict[bytes, bytes] = {}

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
        own = "".join([f"{name.lower()}: {value}\r\n" for name, value in headers]).encode("latin-1")
        common = _COMMON % (
            len(body),
            decision.limit,
            decision.remaining,
            decision.reset,
            request_id.encode("latin-1"),
        )
        end = _OPEN_END if keep_alive else _CLOSE_END
        return b"".join((_STATUS_LINES[status], self._encoded_defaults(), own, common, end, body))

    def encode_json(self, body: bytes, source: bytes, decision: Decision, request_id: bytes, keep_alive: bool) -> bytes:
        """A 200 response with JSON; `source` says where it came from."""
        if self._default_headers() is not self._seen:
            self._encoded_defaults()
        begin = self._begins.get(source)
        if begin is None:
            begin = self._begins[source] = _JSON_BEGINS % (self._defaults, source)
        return _JSON % (
            begin,
            len(body),
            decision.limit,
            decision.remaining,
            decision.reset,
            request_id,
            _OPEN_END if keep_alive else _CLOSE_END,
            body,
        )

    def encode_switch(self, accept: bytes, decision: Decision, request_id: str) -> bytes:
        """The answer to a WebSocket handshake that is accepted."""
        figures = (decision.limit, decision.remaining, decision.reset)
        return _SWITCH % (self._encoded_defaults(), accept, *figures, request_id.encode("latin-1"))

    def _encoded_defaults(self) -> bytes:
        defaults = self._default_headers()
        if defaults is not self._seen:
            self._seen = defaults
            self._begins.clear()
            self._defaults = b"".join(b"%s: %s\r\n" % item for item in defaults)
        return self._defaults
