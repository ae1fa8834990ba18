"""Our HTTP protocol: uvicorn's httptools protocol, with limits on slow and greedy clients and our own error bodies.

`listener.py` passes the class made by `protocol_class` to uvicorn, which makes one instance for each connection. It
bounds the time and size of request heads and the time between two pieces of a body, refuses connections above the
limit, and answers what is not HTTP with the error body of the API. Calls to `/v1/rpc/` will be taken here before any
ASGI object exists; until that fast path is built they go the ordinary way.
"""

import asyncio
import http
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from capstan.core.errors import ApiError, InvalidRequest, Unavailable, render

RateHeaders = Callable[[str], list[tuple[bytes, bytes]]]


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may take."""

    header_timeout_seconds: float
    body_timeout_seconds: float
    max_header_bytes: int
    max_connections: int


class RequestTimeout(ApiError):
    """The client was too slow in sending its request."""

    status = 408
    code = "request_timeout"


class HeadersTooLarge(ApiError):
    """The request line and headers are over the limit."""

    status = 431
    code = "headers_too_large"


class CapstanProtocol(HttpToolsProtocol):
    """One client connection."""

    limits: ConnectionLimits
    rate_headers: RateHeaders

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Where the parser is: waiting for a request, in a request's head, or in its body.
        self._in_head = True
        self._head_bytes = 0
        self._in_body = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn declares it
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(Unavailable("this server has too many connections; try again shortly", retry_after=1))
            return
        self._arm(self.limits.header_timeout_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Checked after parsing: what was fed may have ended the head, and a large body is not a large head. Bytes of a
        # head that arrive in one piece with the end of the request before are not counted: at most one piece.
        if self._in_head and self._head_bytes > self.limits.max_header_bytes and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"the request head is over {self.limits.max_header_bytes} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arm(self.limits.header_timeout_seconds)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._in_body = True
        self._arm(self.limits.body_timeout_seconds)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._arm(self.limits.body_timeout_seconds)
        super().on_body(body)

    def on_message_complete(self) -> None:
        # Between two requests uvicorn's keep-alive timer holds; ours starts again with the next first byte.
        self._disarm()
        self._in_head = True
        self._in_body = False
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Uvicorn calls this for bytes that are not HTTP."""
        self._refuse(InvalidRequest("this is not a valid HTTP/1.1 request"))

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            # We asked the client to wait because the body is not consumed yet; that is not its fault.
            self._arm(self.limits.body_timeout_seconds)
            return
        answered = self._in_body and self.cycle.response_started
        nothing_sent = self._in_head and self._head_bytes == 0
        if answered or nothing_sent:
            # There is no request that still waits for an answer.
            self.transport.close()
            return
        self._refuse(RequestTimeout("the request was not sent in time"))

    def _refuse(self, error: ApiError) -> None:
        """Answer outside of ASGI and close. Only if no response has begun on this connection."""
        self._disarm()
        # uvicorn declares `cycle` as always there; before the first request it is None.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(self._encode(error))
        self.transport.close()

    def _encode(self, error: ApiError) -> bytes:
        body = render(error)
        reason = http.HTTPStatus(error.status).phrase
        client = self.client[0] if self.client else "unknown"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-request-id", f"req_{secrets.token_hex(12)}".encode()),
            *((name.lower().encode(), value.encode()) for name, value in error.headers.items()),
            *type(self).rate_headers(client),
        ]
        head = f"HTTP/1.1 {error.status} {reason}\r\n".encode()
        return head + b"".join(b"%s: %s\r\n" % item for item in headers) + b"\r\n" + body


def protocol_class(limits: ConnectionLimits, rate_headers: RateHeaders) -> type[CapstanProtocol]:
    """The protocol class of one server, which uvicorn instantiates without further arguments."""
    return type("BoundProtocol", (CapstanProtocol,), {"limits": limits, "rate_headers": staticmethod(rate_headers)})
