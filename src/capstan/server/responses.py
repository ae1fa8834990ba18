"""Writes whole HTTP/1.1 responses as bytes, for answers that do not go through ASGI.

Used by the fast path and by the protocol's own refusals, so that every answer of the service carries the same headers.
"""

import http
from collections.abc import Iterable
from typing import Protocol

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
# One pattern for the most common answers of all, and what they begin with, which is the same for many of them.
_RESULT_BEGINS = (
    b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\nx-cache: %b\r\nx-content-type-options: nosniff\r\n"
    b"x-ratelimit-limit: %d\r\nx-ratelimit-reset: %d\r\nx-request-id: %b"
)
_RESULT = b'%b%08x\r\nx-ratelimit-remaining: %d\r\ncontent-length: %d\r\n%b\r\n{"jsonrpc":"2.0","id":%b,"result":%b}'
# The bytes of that body beside the id and the result.
RESULT_FRAME = len(b'{"jsonrpc":"2.0","id":,"result":}')
_CLOSE = b"connection: close\r\n"
_MOST_BEGINS = 1000


class Defaults(Protocol):
    """Where uvicorn keeps its own headers, which hold the date. The list is a new one each second."""

    default_headers: list[tuple[bytes, bytes]]


class NoDefaults:
    """Before a server has started there are none."""

    def __init__(self) -> None:
        self.default_headers: list[tuple[bytes, bytes]] = []


class ResponseEncoder:
    """Encodes responses."""

    def __init__(self) -> None:
        self._source: Defaults = NoDefaults()
        self._seen: list[tuple[bytes, bytes]] | None = None
        self._defaults = b""
        # By where the answer came from, how ids begin, and the figures of the limits.
        self._begins: dict[tuple[bytes, bytes, int, int], bytes] = {}

    def use_defaults(self, source: Defaults) -> None:
        """Take the default headers from a server that has started."""
        self._source = source

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

    def encode_result(
        self,
        source: bytes,
        decision: Decision,
        prefix: bytes,
        count: int,
        call_id: bytes,
        result: bytes,
        keep_alive: bool,
    ) -> bytes:
        """A 200 response to one call; `source` says where its result came from, prefix and count are the request id."""
        if self._source.default_headers is not self._seen:
            self._encoded_defaults()
        key = (source, prefix, decision.limit, decision.reset)
        begin = self._begins.get(key)
        if begin is None:
            begin = self._begin(key)
        size = RESULT_FRAME + len(call_id) + len(result)
        end = b"" if keep_alive else _CLOSE
        return _RESULT % (begin, count, decision.remaining, size, end, call_id, result)

    def _begin(self, key: tuple[bytes, bytes, int, int]) -> bytes:
        source, prefix, limit, reset = key
        if len(self._begins) >= _MOST_BEGINS:
            self._begins.clear()
        begin = self._begins[key] = _RESULT_BEGINS % (self._defaults, source, limit, reset, prefix)
        return begin

    def encode_switch(self, accept: bytes, decision: Decision, request_id: str) -> bytes:
        """The answer to a WebSocket handshake that is accepted."""
        figures = (decision.limit, decision.remaining, decision.reset)
        return _SWITCH % (self._encoded_defaults(), accept, *figures, request_id.encode("latin-1"))

    def _encoded_defaults(self) -> bytes:
        defaults = self._source.default_headers
        if defaults is not self._seen:
            self._seen = defaults
            self._begins.clear()
            self._defaults = b"".join(b"%s: %s\r\n" % item for item in defaults)
        return self._defaults
