"""Our HTTP protocol: uvicorn's httptools protocol, with a short way for JSON-RPC and limits on slow and greedy clients.

`listener.py` passes the class made by `protocol_class` to uvicorn, which makes one instance for each connection.
Calls to `/v1/rpc/` are taken here before any ASGI object exists and given to the fast path; everything else goes to
`super()`. The protocol bounds the time and size of request heads, the time between two pieces of a body and the
number of connections, and answers what is not HTTP with the error body of the API. Clients that do not
read their answers are the business of `pacing.py`.

Time is kept as a deadline on each connection that one sweep a second looks at: a timer for each request would cost as
much as parsing it.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

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
from capstan.server.handshake import PREFIX as SOCKET_PREFIX
from capstan.server.heads import END, RequestHead
from capstan.server.pacing import AT_REST, PacedProtocol
from capstan.server.responses import ResponseEncoder
from capstan.server.sent import Sent, Underway
from capstan.server.websocket import WebSocketConnection

log = structlog.get_logger(__name__)

_SWEEP_SECONDS = 1.0
_SWEPT_AT_ONCE = 256
_NEVER = math.inf
_END_BYTES = len(END)


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
    # The class of what a connection becomes when it is upgraded.
    sockets: type[WebSocketConnection]
    # The state of the limits for a client address, for answers given before a request could be read.
    decide: Callable[[str], Decision]
    # With CORS configured, requests that carry an origin go the ordinary way, which knows the CORS headers.
    cors: bool = False


class CapstanProtocol(PacedProtocol):
    """One client connection."""

    surroundings: Surroundings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Where the parser is: waiting for a request, in a request's head, or in its body.
        self._in_head = True
        self._head_bytes = 0
        self._in_body = False
        # Whether the next byte is the first of a message, as far as that is beyond doubt; and, while the parser reads a
        # message from its first byte on, the piece of data that began with it.
        self._at_start = True
        self._piece: bytes | None = None
        self._heads = self.surroundings.fast_path.heads.get
        self._young_heads = self.surroundings.fast_path.heads.get_young
        self._fast_answer = self.surroundings.fast_path.answer
        self._host = "unknown"
        # The body of a fast request.
        self._fast_body: list[bytes] | None = None
        self._fast_size = 0
        # What comes after this request is not listened to: the connection ends with its answer.
        self._deaf = False
        self._close_after_answer = False
        # Whether the server stops.
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn declares it
        super().connection_made(transport)
        self._host = self.client[0] if self.client else "unknown"
        limits = self.surroundings.limits
        if len(self.connections) > limits.max_connections:
            self._refuse(Unavailable("this server has too many connections; try again shortly", retry_after=1))
            return
        self.deadline = self.loop.time() + limits.header_timeout_seconds

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        if self._at_start:
            end = data.find(END) + _END_BYTES
            head = data[:end]
            known = self._young_heads(head) or self._heads(head)
            # A whole request. While one before it waits for its answer, it is for uvicorn's pipeline.
            cycle: Any = self.cycle
            if (
                known is not None
                and len(data) - end == known.body_bytes
                and (cycle is None or cycle.response_complete)
                and not self.flow.write_paused
            ):
                # Line breaks between two messages mean nothing.
                self._head_bytes = 0
                outcome = self._fast_answer(known.head, data[end:], self._host, True)
                if isinstance(outcome, bytes):
                    self.transport.write(outcome)
                    self.deadline = AT_REST
                else:
                    self._answer_later(outcome, True)
                return
        self._piece = data if self._at_start else None
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
        self._at_start = False
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
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        head = RequestHead(self.url, self.headers)
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() == "1.1"
        if keep_alive:
            # The parser is where it was before the first message. Not so after one that ends the connection.
            self._at_start = True
            if self._piece is not None:
                self.surroundings.fast_path.heads.learn(self._piece, head, body)
        self._piece = None
        self._answer(head, body, keep_alive and not self._close_after_answer)

    def shutdown(self) -> None:
        """Uvicorn calls this when the server stops: a request that is being sent is still answered."""
        self._stopping = True
        self._hold()
        if self._fast_body is not None:
            self._close_after_answer = True
            return
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._hold()

    def _hold(self) -> None:
        """Make a request that was sent one of the server's tasks, so that a stop waits for it, and then cancels it.

        While its connection is there and the server does not stop, nobody looks at those.
        """
        cycle: Any = self.cycle
        if isinstance(cycle, Sent) and not cycle.response_complete:
            self.tasks.add(cycle)  # type: ignore[arg-type] # has what uvicorn looks at; see the class

    def _should_upgrade(self) -> bool:
        """Uvicorn asks this for requests with an upgrade. Other paths are answered as if they had none."""
        cycle: RequestResponseCycle | None = self.cycle
        if not self.url.startswith(SOCKET_PREFIX) or self.parser.get_method() != b"GET":
            return False
        # A request before this one that still waits for its answer would lose its connection.
        return (cycle is None or cycle.response_complete) and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to the WebSocket protocol, without writing the request anew as uvicorn would."""
        self.deadline = math.inf
        self.connections.discard(self)
        socket = self.surroundings.sockets(self.config, self.server_state, self.app_state)
        self.transport.set_protocol(socket)
        socket.begin(self.transport, self.url, self.headers, self._host)

    def send_400_response(self, msg: str) -> None:
        """Uvicorn calls this for bytes that are not HTTP."""
        self._refuse(InvalidRequest("this is not a valid HTTP/1.1 request"))

    def check_deadline(self, now: float) -> None:
        """Called by the sweep: let a client go that is too slow."""
        if self.flow.write_paused or self.transport.is_closing():
            self.check_progress(now, self.surroundings.limits.body_timeout_seconds)
            return
        if self.deadline == AT_REST:
            self.deadline = now + self.surroundings.limits.keep_alive_seconds
        if now < self.deadline:
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
        if not self._is_free() or self.parser.should_upgrade():
            return False
        return not (self.surroundings.cors and any(name == b"origin" for name, _ in self.headers))

    def _is_free(self) -> bool:
        """Whether no request before the next one still waits for its answer, and the client reads its answers."""
        # uvicorn declares `cycle` as always there; before the first request it is None.
        cycle: RequestResponseCycle | None = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _answer(self, head: RequestHead, body: bytes, keep_alive: bool) -> None:
        outcome = self._fast_answer(head, body, self._host, keep_alive)
        if isinstance(outcome, bytes):
            self.transport.write(outcome)
            if not keep_alive:
                self.transport.close()
            self.deadline = AT_REST
        else:
            self._answer_later(outcome, keep_alive)

    def _answer_later(self, outcome: Sent | Coroutine[Any, Any, bytes], keep_alive: bool) -> None:
        if not isinstance(outcome, Sent):
            self._wait_for(outcome, keep_alive)
            return
        self.deadline = _NEVER
        outcome.connection = self
        self.cycle = outcome  # type: ignore[assignment] # has what uvicorn looks at; see the class
        if self._stopping:
            self._hold()

    def _wait_for(self, outcome: Coroutine[Any, Any, bytes], keep_alive: bool) -> None:
        """Write an answer that is not there yet, as soon as it is."""
        self.deadline = math.inf
        underway = Underway(keep_alive)
        self.cycle = underway  # type: ignore[assignment] # has what uvicorn looks at; see the class
        task = self.loop.create_task(self._await_answer(outcome, underway))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _await_answer(self, outcome: Coroutine[Any, Any, bytes], underway: Underway) -> None:
        try:
            response = await outcome
        except Exception:
            # The fast path answers its own faults; whatever gets past it must not leave the client waiting.
            log.exception("fast_path_failed")
            self.answered_later(underway, None)
            return
        self.answered_later(underway, response)

    def answered_later(self, underway: Underway | Sent, response: bytes | None) -> None:
        """The answer to a request that had to wait is there; without one the connection is closed."""
        underway.response_complete = True
        if self._stopping or underway.disconnected:
            self.tasks.discard(underway)
        if underway.disconnected or self.transport.is_closing():
            return
        if response is not None:
            self.transport.write(response)
        if response is None or not underway.keep_alive:
            self.transport.close()
        elif self.pipeline or self.flow.read_paused:
            # Starts what was pipelined meanwhile.
            self.on_response_complete()
        else:
            # The sweep looks after the wait for the next request: a timer for each would cost more.
            self.deadline = AT_REST

    def _fast_path_refusal(self, error: ApiError) -> Coroutine[Any, Any, bytes]:
        return self.surroundings.fast_path.refuse(RequestHead(self.url, self.headers), self._host, error)

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
            client = self._host
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


_SWEPT = (CapstanProtocol, WebSocketConnection)


async def sweep(connections: set[Any]) -> None:
    """Look after the deadlines of all connections until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        now = loop.time()
        for place, connection in enumerate(tuple(connections), start=1):
            if isinstance(connection, _SWEPT):
                connection.check_deadline(now)
            if place % _SWEPT_AT_ONCE == 0:
                # Thousands of idle connections must not hold up those that are at work.
                await asyncio.sleep(0)
