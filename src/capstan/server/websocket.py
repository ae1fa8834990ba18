"""One WebSocket connection, from the upgrade request to the last byte, without ASGI in between.

The HTTP protocol hands over a connection when a client asks for `/v1/ws/…`. The handshake is judged by `handshake`, the
messages are the business of the feed's session; this class moves bytes. It bounds what a client may take: the time of
the handshake, the size of a message, the time without a sign of life, and what waits to be sent. A client that does not
read is closed with 1013 and never holds up the others.

Time is kept as deadlines that one sweep a second looks at, as for HTTP connections.
"""

import asyncio
import math
from enum import Enum
from typing import Any

import msgspec
import structlog

from capstan.core import frames
from capstan.core.frames import FrameReader, Message, Opcode, Violation
from capstan.feed.service import FeedService
from capstan.feed.session import Session
from capstan.server.handshake import Admitted, Handshakes, Headers, Refused

log = structlog.get_logger(__name__)

# What a client may send before its handshake is answered.
_MOST_EARLY_BYTES = 65_536
# Larger messages are not copied together with their head.
_LARGE_BYTES = 65_536
_TOO_SLOW = "messages are not read fast enough"
# How long a client that broke the protocol may go on sending. Closing at once would reset the connection, and the
# client would never see the reason.
_LINGER_SECONDS = 1.0
_PING = frames.ping_frame(b"capstan")


class SocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one socket may take."""

    handshake_seconds: float = 10.0
    max_message_bytes: int = 1_048_576
    send_buffer_bytes: int = 8_388_608
    ping_seconds: float = 20.0
    pong_seconds: float = 20.0
    close_seconds: float = 5.0


class SocketSurroundings(msgspec.Struct, kw_only=True):
    """What every socket of one server shares."""

    handshakes: Handshakes
    feed: FeedService
    limits: SocketLimits


class _State(Enum):
    OPENING = "opening"
    OPEN = "open"
    # A close frame was sent; the client's answer, or the deadline, ends it.
    CLOSING = "closing"
    CLOSED = "closed"


class WebSocketConnection(asyncio.Protocol):
    """One socket. Made by uvicorn's rules: the class is bound to its surroundings with `websocket_class`."""

    surroundings: SocketSurroundings
    transport: asyncio.Transport

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self._connections: set[Any] = server_state.connections
        self._tasks: set[asyncio.Task[None]] = server_state.tasks
        limits = self.surroundings.limits
        self._limits = limits
        self._most_buffered = limits.send_buffer_bytes
        self._state = _State.OPENING
        self._early = bytearray()
        self._reader = FrameReader(max_message_bytes=limits.max_message_bytes)
        self._session: Session | None = None
        self._drained = asyncio.Event()
        # Why nothing is read: the session has enough to do, or the client does not read.
        self._paused = False
        self._choked = False
        # When something must have happened: the handshake be over, the client have answered, or a ping be due.
        self.deadline = math.inf
        self._pinged_at: float | None = None
        # What waited to be sent when the client was last looked at, while it did not read fast enough.
        self._backlog = 0
        # What comes cannot be understood any more and is thrown away.
        self._deaf = False

    def begin(self, transport: asyncio.Transport, target: bytes, headers: Headers, client: str) -> None:
        """Take over a connection whose client asks for an upgrade."""
        self.transport = transport
        self._connections.add(self)
        self.deadline = self.loop.time() + self._limits.handshake_seconds
        task = self.loop.create_task(self._open(target, headers, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what the event loop calls

    def data_received(self, data: bytes) -> None:
        if self._state is _State.OPENING:
            self._early += data
            if len(self._early) > _MOST_EARLY_BYTES:
                self._abort()
            return
        if self._deaf:
            return
        if self._pinged_at is not None:
            # Any sign of life will do.
            self._pinged_at = None
            self.deadline = self.loop.time() + self._limits.ping_seconds
        self._read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._connections.discard(self)
        self._end_session()
        self._drained.set()

    def pause_writing(self) -> None:
        self._choked = True
        self._listen()

    def resume_writing(self) -> None:
        self._choked = False
        self._drained.set()
        self._listen()

    # --- what the server calls

    def shutdown(self) -> None:
        """The server is stopping."""
        if self._state is _State.OPENING:
            self._abort()
        else:
            self.close(frames.GOING_AWAY, "the server is stopping")

    def check_deadline(self, now: float) -> None:
        """Called by the sweep: ping, or let a client go that gives no sign of life."""
        if now < self.deadline:
            return
        if self._state is not _State.OPEN:
            self._abort()
        elif self._pinged_at is None:
            self.transport.write(_PING)
            self._pinged_at = now
            self.deadline = now + self._limits.pong_seconds
        elif self._paused or self._makes_progress():
            # We do not listen at the moment, so we cannot blame the client for silence.
            self.deadline = now + self._limits.pong_seconds
        elif self._choked:
            self.close(frames.SLOW_CONSUMER, _TOO_SLOW)
        else:
            self.close(frames.INTERNAL_ERROR, "no answer to a ping")

    # --- what the session calls

    def send_frame(self, frame: bytes) -> None:
        """Send a message that is framed already. On the path of every message to every client."""
        if self._state is not _State.OPEN:
            return
        if self.transport.get_write_buffer_size() > self._most_buffered:
            self.close(frames.SLOW_CONSUMER, _TOO_SLOW)
            return
        self.transport.write(frame)

    def send_text(self, text: bytes) -> None:
        """Send one message."""
        if len(text) <= _LARGE_BYTES:
            self.send_frame(frames.text_frame(text))
            return
        self.send_frame(frames.header(Opcode.TEXT, len(text)))
        if self._state is _State.OPEN:
            self.transport.write(text)

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake. What waits to be sent is sent before, if the client reads it in time."""
        if self._state is not _State.OPEN:
            return
        self._state = _State.CLOSING
        self.deadline = self.loop.time() + self._limits.close_seconds
        self.transport.write(frames.close_frame(code, reason))
        self._end_session()
        self._drained.set()
        # The client's answer must be heard.
        self._paused = self._choked = False
        self._listen()

    def pause(self) -> None:
        """Stop reading from the client."""
        self._paused = True
        self._listen()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        self._listen()

    async def drain(self, below: int) -> bool:
        """Wait until less than `below` bytes wait to be sent; false when the socket is closing."""
        while self._state is _State.OPEN and self.transport.get_write_buffer_size() >= below:
            self._drained.clear()
            await self._drained.wait()
        return self._state is _State.OPEN

    # --- inside

    async def _open(self, target: bytes, headers: Headers, client: str) -> None:
        around = self.surroundings
        try:
            admitted = await around.handshakes.admit(target, headers, client)
            session = await self._make_session(admitted)
        except Refused as refusal:
            self._answer(refusal.response)
            return
        except Exception:
            log.exception("handshake_failed")
            self._abort()
            return
        if self._state is not _State.OPENING:
            session.end()
            return
        self._session = session
        self.transport.write(around.handshakes.accepted(admitted))
        self._state = _State.OPEN
        self.deadline = self.loop.time() + self._limits.ping_seconds
        if self._early:
            early, self._early = bytes(self._early), bytearray()
            self._read(early)

    async def _make_session(self, admitted: Admitted) -> Session:
        around = self.surroundings
        try:
            return around.feed.open(self, admitted.caller, admitted.key_digest, admitted.network)
        except Exception as error:
            raise Refused(await around.handshakes.refusal(admitted.context, [], error)) from error

    def _answer(self, response: bytes) -> None:
        """Answer a handshake that is refused, and end."""
        if self._state is _State.OPENING:
            self._state = _State.CLOSING
            self.transport.write(response)
            self.transport.close()

    def _read(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except Violation as violation:
            self.close(violation.code, violation.reason)
            self._deaf = True
            self.deadline = self.loop.time() + _LINGER_SECONDS

    def _take(self, message: Message) -> None:
        if message.opcode is Opcode.CLOSE:
            self._closed_by_client(message.data)
        elif self._state is not _State.OPEN:
            return
        elif message.opcode is Opcode.PING:
            self.send_frame(frames.pong_frame(message.data))
        elif message.opcode is not Opcode.PONG and self._session is not None:
            self._session.receive(message.data)

    def _closed_by_client(self, data: bytes) -> None:
        code = frames.close_code(data)
        if self._state is _State.OPEN:
            self.close(frames.NORMAL if code == frames.NO_STATUS else code, "")
        self.transport.close()

    def _makes_progress(self) -> bool:
        """Whether a client that does not read fast enough has read something since the last look."""
        before, self._backlog = self._backlog, self.transport.get_write_buffer_size()
        return self._choked and (not before or self._backlog < before)

    def _listen(self) -> None:
        """Read from the client, or not, as the two reasons say."""
        if self.transport.is_closing():
            return
        if self._paused or self._choked:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def _abort(self) -> None:
        self._state = _State.CLOSING
        self._end_session()
        self.transport.abort()


def websocket_class(surroundings: SocketSurroundings) -> type[WebSocketConnection]:
    """The protocol class of one server."""
    return type("BoundWebSocket", (WebSocketConnection,), {"surroundings": surroundings})
