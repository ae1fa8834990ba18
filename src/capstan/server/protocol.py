"""Our HTTP protocol: uvicorn's httptools protocol, with a short way for JSON-RPC and limits on slow and greedy clients.

`listener.py` passes the class made by `protocol_class` to uvicorn, which makes one instance for each connection.
Calls to `/v1/rpc/` are taken here before any ASGI object exists and given to the fast path; everything else goes to
`super()`. The protocol bounds the time and size of request heads, the time between two pieces of a body and the
number of connections, and answers what is not HTTP with the error body of the API.

Time is kept as a deadline on each connection that one sweep a second looks at: a timer for each request would cost as
much as parsing it.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from capstan.core.errors import ApiError, InvalidRequest, PayloadTooLarge, Unavailable, render
from capstan.core.ids import RequestIds
from capstan.limits.models import Decision
from capstan.server.fastpath import PREFIX, FastPath
from capstan.server.responses import ResponseEncoder

_SWEEP_SECONDS = 1.0


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may take."""

    header_timeout_seconds: float
    body_timeout_seconds: float
    keep_alive_seconds: float
    max_header_bytes: int
    max_body_bytes: int
    max_connections: int


class Surroundings(msgspec.Struct, kw_only=True):
    """What every connection of one server shares."""

    limits: ConnectionLimits
    fast_path: FastPath
    encoder: ResponseEncoder
    request_ids: RequestIds
    # The state of the limits for a client address, for answers given before a request could be read.
    decide: Callable[[str], Decision]
    # With CORS configured, requests that carry an origin go the ordinary way, which knows the CORS headers.
    cors: bool = False


class RequestTimeout(ApiError):
    """The client was too slow in sending its request."""

    status = 408
    code = "request_timeout"


class HeadersTooLarge(ApiError):
    """The request line and headers are over the limit."""

    status = 431
    code = "headers_too_large"


class _Underway:
    """Stands in for uvicorn's cycle while the fast path waits for an answer, so that pipelined requests queue up."""

    response_started = False
    response_complete = False
    disconnected = False
    keep_alive = True

    def __init__(self) -> None:
        self.message_event = asyncio.Event()


class CapstanProtocol(HttpToolsProtocol):
    """One client connection."""

    surroundings: Surroundings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Where the parser is: waiting for a request, in a request's head, or in its body.
        self._in_head = True
        self._head_bytes = 0
        self._in_body = False
        # When the client must have gone on, by the clock of the loop; and the body of a fast request.
        self.deadline = math.inf
        self._fast_body: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn declares it
        super().connection_made(transport)
        limits = self.surroundings.limits
        if len(self.connections) > limits.max_connections:
            self._refuse(Unavailable("this server has too many connections; try again shortly", retry_after=1))
            return
        self.deadline = self.loop.time() + limits.header_timeout_seconds

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Checked after parsing: what was fed may have ended the head, and a large body is not a large head. Bytes of a
        # head that arrive in one piece with the end of the request before are not counted: at most one piece.
        limit = self.surroundings.limits.max_header_bytes
        if self._in_head and self._head_bytes > limit and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"the request head is over {limit} bytes"))

    def on_message_begin(self) -> None:
        # What the ordinary way needs is made in `on_headers_complete`, when it is known that it is needed.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.deadline = self.loop.time() + self.surroundings.limits.header_timeout_seconds

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._in_body = True
        self.deadline = self.loop.time() + self.surroundings.limits.body_timeout_seconds
        if self._is_fast():
            self._fast_body = b""
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = expect
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.deadline = self.loop.time() + self.surroundings.limits.body_timeout_seconds
        if self._fast_body is None:
            super().on_body(body)
            return
        self._fast_body = self._fast_body + body if self._fast_body else body
        limit = self.surroundings.limits.max_body_bytes
        if len(self._fast_body) > limit and not self.transport.is_closing():
            self._refuse(PayloadTooLarge(f"the request body is too large: over {limit} bytes"))

    def on_message_complete(self) -> None:
        # Between two requests the keep-alive deadline holds; that of the head starts with the next first byte.
        self.deadline = math.inf
        self._in_head = True
        self._in_body = False
        if self._fast_body is None:
            super().on_message_complete()
            return
        body, self._fast_body = self._fast_body, None
        if not self.transport.is_closing():
            self._answer(body)

    def handle_websocket_upgrade(self) -> None:
        self.deadline = math.inf
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Uvicorn calls this for bytes that are not HTTP."""
        self._refuse(InvalidRequest("this is not a valid HTTP/1.1 request"))

    def check_deadline(self, now: float) -> None:
        """Called by the sweep: let a client go that is too slow."""
        if now < self.deadline or self.transport.is_closing():
            return
        if self.flow.read_paused:
            # We asked the client to wait because the body is not consumed yet; that is not its fault.
            self.deadline = now + self.surroundings.limits.body_timeout_seconds
            return
        answered = self._in_body and self._fast_body is None and self.cycle.response_started
        nothing_sent = self._in_head and self._head_bytes == 0
        if answered or nothing_sent:
            # There is no request that still waits for an answer.
            self.transport.close()
            return
        self._refuse(RequestTimeout("the request was not sent in time"))

    def _is_fast(self) -> bool:
        """Whether the request goes the short way: a POST to the gateway, with nothing unusual, and none before it."""
        if not self.url.startswith(PREFIX) or self.parser.get_method() != b"POST" or self.expect_100_continue:
            return False
        cycle: RequestResponseCycle | None = self.cycle
        if (cycle is not None and not cycle.response_complete) or self.parser.should_upgrade():
            return False
        return not (self.surroundings.cors and any(name == b"origin" for name, _ in self.headers))

    def _answer(self, body: bytes) -> None:
        self._unset_keepalive_if_required()
        keep_alive = self.parser.should_keep_alive()
        client = self.client[0] if self.client else "unknown"
        outcome = self.surroundings.fast_path.answer(self.url, self.headers, body, client, keep_alive)
        if isinstance(outcome, bytes):
            self.transport.write(outcome)
            if not keep_alive:
                self.transport.close()
            self.deadline = self.loop.time() + self.surroundings.limits.keep_alive_seconds
            return
        underway = _Underway()
        underway.keep_alive = keep_alive
        self.cycle = underway  # type: ignore[assignment] # has what uvicorn looks at; see the class
        task = self.loop.create_task(self._answer_later(outcome, underway))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer_later(self, outcome: Coroutine[Any, Any, bytes], underway: _Underway) -> None:
        response = await outcome
        underway.response_complete = True
        if underway.disconnected or self.transport.is_closing():
            return
        self.transport.write(response)
        if not underway.keep_alive:
            self.transport.close()
            return
        # Starts what was pipelined meanwhile, or waits for the next request.
        self.on_response_complete()

    def _refuse(self, error: ApiError) -> None:
        """Answer outside of ASGI and close. Only if no response has begun on this connection."""
        self.deadline = math.inf
        # uvicorn declares `cycle` as always there; before the first request it is None.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            around = self.surroundings
            decision = around.decide(self.client[0] if self.client else "unknown")
            headers = (("Content-Type", "application/json"), *error.headers.items())
            request_id = around.request_ids.next()
            self.transport.write(
                around.encoder.encode(error.status, render(error), headers, decision, request_id, keep_alive=False)
            )
        self.transport.close()


def protocol_class(surroundings: Surroundings) -> type[CapstanProtocol]:
    """The protocol class of one server, which uvicorn instantiates without further arguments."""
    return type("BoundProtocol", (CapstanProtocol,), {"surroundings": surroundings})


async def sweep(connections: set[Any]) -> None:
    """Look after the deadlines of all connections until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        now = loop.time()
        for connection in tuple(connections):
            if isinstance(connection, CapstanProtocol):
                connection.check_deadline(now)
