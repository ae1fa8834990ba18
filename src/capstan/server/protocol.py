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
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from capstan.core.errors import (
    ApiError,
    HeadersTooLarge,
    InvalidRequest,
    PayloadTooLarge,
    RequestTimeout,
    Unavailable,
    render,
)
from capstan.core.ids import RequestIds
from capstan.limits.models import Decision
from capstan.server.fastpath import PREFIX, FastPath
from capstan.server.responses import ResponseEncoder

log = structlog.get_logger(__name__)

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
        self._fast_body: list[bytes] | None = None
        self._fast_size = 0
        # What comes after this request is not listened to: the connection ends with its answer.
        self._deaf = False
        self._close_after_answer = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn declares it
        super().connection_made(transport)
        limits = self.surroundings.limits
        if len(self.connections) > limits.max_connections:
            self._refuse(Unavailable("this server has too many connections; try again shortly", retry_after=1))
            return
        self.deadline = self.loop.time() + limits.header_timeout_seconds

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
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
        limits = self.surroundings.limits
        # A head that came in one piece with its end is weighed here, when the piece was large enough to matter.
        too_large = self._head_bytes > limits.max_header_bytes and self._head_size() > limits.max_header_bytes
        self._in_head = False
        self._head_bytes = 0
        self._in_body = True
        self.deadline = self.loop.time() + limits.body_timeout_seconds
        if too_large:
            self._deaf = True
            self._refuse(HeadersTooLarge(f"the request head is over {limits.max_header_bytes} bytes"))
            return
        if self._is_fast():
            self._fast_body = []
            self._fast_size = 0
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = expect
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        if self._fast_body is None:
            super().on_body(body)
            return
        self._fast_body.append(body)
        self._fast_size += len(body)
        if self._fast_size > self.surroundings.limits.max_body_bytes:
            self._fast_body = None
            self._deaf = True
            error = PayloadTooLarge("the request body is too large")
            self._wait_for(self._fast_path_refusal(error), keep_alive=False)

    def on_message_complete(self) -> None:
        if self._deaf:
            return
        # Between two requests the keep-alive deadline holds; that of the head starts with the next first byte.
        self.deadline = math.inf
        self._in_head = True
        self._in_body = False
        if self._fast_body is None:
            super().on_message_complete()
            return
        pieces, self._fast_body = self._fast_body, None
        if not self.transport.is_closing():
            self._answer(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def shutdown(self) -> None:
        """Uvicorn calls this when the server stops: a request that is being sent is still answered."""
        if self._fast_body is not None:
            self._close_after_answer = True
            return
        super().shutdown()

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
        keep_alive = self.parser.should_keep_alive() and not self._close_after_answer
        if keep_alive and self.parser.get_http_version() == "1.0":
            keep_alive = False
        client = self.client[0] if self.client else "unknown"
        outcome = self.surroundings.fast_path.answer(self.url, self.headers, body, client, keep_alive)
        if isinstance(outcome, bytes):
            self.transport.write(outcome)
            if not keep_alive:
                self.transport.close()
            self.deadline = self.loop.time() + self.surroundings.limits.keep_alive_seconds
            return
        self._wait_for(outcome, keep_alive)

    def _wait_for(self, outcome: Coroutine[Any, Any, bytes], keep_alive: bool) -> None:
        """Write an answer that is not there yet, as soon as it is."""
        self.deadline = math.inf
        underway = _Underway()
        underway.keep_alive = keep_alive
        self.cycle = underway  # type: ignore[assignment] # has what uvicorn looks at; see the class
        task = self.loop.create_task(self._answer_later(outcome, underway))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer_later(self, outcome: Coroutine[Any, Any, bytes], underway: _Underway) -> None:
        try:
            response = await outcome
        except Exception:
            # The fast path answers its own faults; whatever gets past it must not leave the client waiting.
            log.exception("fast_path_failed")
            underway.response_complete = True
            self.transport.close()
            return
        underway.response_complete = True
        if underway.disconnected or self.transport.is_closing():
            return
        self.transport.write(response)
        if not underway.keep_alive:
            self.transport.close()
            return
        # Starts what was pipelined meanwhile, or waits for the next request.
        self.on_response_complete()

    def _fast_path_refusal(self, error: ApiError) -> Coroutine[Any, Any, bytes]:
        client = self.client[0] if self.client else "unknown"
        return self.surroundings.fast_path.refuse(self.url, self.headers, client, error)

    def _refuse(self, error: ApiError) -> None:
        """Answer outside of ASGI and close. A request before this one that still waits for its answer gets that."""
        self.deadline = math.inf
        # uvicorn declares `cycle` as always there; before the first request it is None.
        cycle: RequestResponseCycle | None = self.cycle
        belongs_to_this = self._in_body and self._fast_body is None and cycle is not None and not self._deaf
        if cycle is not None and not cycle.response_complete and not belongs_to_this:
            self._deaf = True
            cycle.keep_alive = False
            return
        if cycle is None or not cycle.response_started or cycle.response_complete:
            client = self.client[0] if self.client else "unknown"
            around = self.surroundings
            request_id = around.request_ids.next()
            body = render(error)
            headers = (("Content-Type", "application/json"), *error.headers.items())
            self.transport.write(
                around.encoder.encode(error.status, body, headers, around.decide(client), request_id, keep_alive=False)
            )
            around.fast_path.note_refusal(error.status, len(body), client, request_id)
        self.transport.close()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)


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
