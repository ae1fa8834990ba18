"""A small HTTP/1.1 client for one upstream: POST a body, get the body of the answer. Nothing else.

`Upstream` uses it for every call. It keeps connections open and uses each for one request at a time; it parses with
httptools, follows no redirect, keeps no cookie and reads no proxy setting. It exists because calls to nodes are the
bulk of what the service does: the general client in use elsewhere costs ten times as much for each call
(bench/rpc.py).

Failures are raised as `WireError` with a reason, and with whether the request may have been delivered.
"""

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from capstan.chain.connection import END, Awaited, Connection, Sending, WireAnswer, WireError, WireOptions
from capstan.core.memo import Memo

__all__ = ["Sending", "WireAnswer", "WireClient", "WireError", "WireOptions"]

_SWEEP_SECONDS = 0.05
_IDLE_SECONDS = 4.0
_LARGE_AT_ONCE = 2
_LONGEST_HEAD = 2048
_HEADS_BYTES = 256 * 1024
_HEAD_OVERHEAD = 200
# With one of these, an answer is not simply a head and as many bytes as its Content-Length says.
_UNUSUAL = re.compile(rb"\r\n(?:transfer-encoding|content-encoding|upgrade|trailer)[ \t]*:", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)", re.IGNORECASE)


class WireClient:
    """The connections to one upstream."""

    def __init__(self, options: WireOptions) -> None:
        self.options = options
        parts = urlsplit(options.url)
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._context = ssl.create_default_context() if self._secure else None
        # What every request begins with: all of its head up to the length of its body.
        self.head = _head(options, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query)
        # Connections on which a request can be sent at once.
        self.idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._opening = 0
        # Connections on which a large answer is being read, and those on which one waits for its turn.
        self._large: set[Connection] = set()
        self._waiting_large: deque[Connection] = deque()
        self._queue: deque[Sending] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        # The clock of the loop, which deadlines go by. It is the loop's own as soon as there is a connection.
        self.time: Callable[[], float] = time.monotonic
        # When the sweep ran last.
        self._now = 0.0
        # Heads of answers that the parser has read, and how many bytes of body follow them.
        self.heads: Memo[bytes, int] = Memo(_HEADS_BYTES, lambda head, _: len(head) + _HEAD_OVERHEAD)

    def post(self, body: bytes, timeout: float, *, repeatable: bool) -> "asyncio.Future[WireAnswer]":
        """Send a body; the future gives the answer or raises `WireError`. Cancelling it gives the request up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[WireAnswer] = loop.create_future()
        request = b"%b%d\r\n\r\n%b" % (self.head, len(body), body)
        self.send(Awaited(request, loop.time() + timeout, repeatable, future))
        return future

    def send(self, pending: Sending) -> None:
        """Send a request as soon as a connection is free."""
        if self.idle and self._sweeper is not None:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                # As `Connection.send` does, without a call.
                connection.pending = pending
                connection.heard = False
                connection.transport.write(pending.request)
                return
        loop = asyncio.get_running_loop()
        self.time = loop.time
        self._start(pending, loop)
        if self._sweeper is None:
            self._now = loop.time()
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)

    def accepts(self) -> bool:
        """Whether a request would be sent or queued, and not refused on the spot. Asked within the event loop."""
        if self.idle:
            return True
        self.time = asyncio.get_running_loop().time
        return not self._closed and len(self._queue) < self.options.waiting

    def learn(self, piece: bytes, body_bytes: int) -> None:
        """Remember the head of an answer that the parser found to be all of `piece`, if it is an ordinary one.

        Equal bytes mean the same at the start of an answer, so the parser need not read them again.
        """
        end = piece.find(END) + len(END)
        head = piece[:end]
        lines = head.count(b"\r\n")
        if end > _LONGEST_HEAD or head.count(b"\r") != lines or head.count(b"\n") != lines:
            return
        lengths = _LENGTH.findall(head)
        if len(piece) - end == body_bytes and lengths == [b"%d" % body_bytes] and _UNUSUAL.search(head) is None:
            self.heads.put(head, body_bytes)

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        error = WireError("disconnect", "the client is closed", maybe_delivered=True)
        queued = tuple(self._queue)
        self._queue.clear()
        for pending in queued:
            if not pending.over:
                pending.fail(error)
        for connection in tuple(self._open):
            connection.fail(error)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release(self, connection: Connection) -> None:
        """A connection is free: give it the next request, or keep it for later."""
        while self._queue:
            pending = self._queue.popleft()
            if not pending.over:
                connection.send(pending)
                return
        # Good to a twentieth of a second: the sweep, which compares it, runs no more often.
        connection.idle_since = self._now
        self.idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        # Calls that wait would otherwise wait for a connection that nobody opens.
        self._connect_if_needed(asyncio.get_running_loop())

    def take_place(self, connection: Connection) -> bool:
        """Let an answer that has become large go on, unless enough such are being read; then it waits for its turn.

        Otherwise as many answers as there are connections, each as large as is allowed, would be in memory at once.
        """
        if len(self._large) < _LARGE_AT_ONCE:
            self._large.add(connection)
            return True
        self._waiting_large.append(connection)
        return False

    def leave_place(self, connection: Connection) -> None:
        """A large answer is read or given up: the next one may go on."""
        if connection in self._waiting_large:
            self._waiting_large.remove(connection)
            return
        self._large.discard(connection)
        if self._waiting_large:
            follower = self._waiting_large.popleft()
            self._large.add(follower)
            follower.transport.resume_reading()

    def retry(self, pending: Sending) -> None:
        """Send a request again that an idle connection swallowed, at most once."""
        pending.repeatable = False
        self._start(pending, asyncio.get_running_loop())

    def _start(self, pending: Sending, loop: asyncio.AbstractEventLoop) -> None:
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                connection.send(pending)
                return
        if self._closed or len(self._queue) >= self.options.waiting:
            pending.fail(WireError("busy", "too many calls are waiting", maybe_delivered=False))
            return
        self._queue.append(pending)
        self._connect_if_needed(loop)

    def _connect_if_needed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open one more connection if calls wait for it and there may be one more."""
        while self._queue and self._queue[0].over:
            self._queue.popleft()
        has_room = len(self._open) + self._opening < self.options.connections
        if has_room and self._opening < len(self._queue) and not self._closed:
            self._opening += 1
            task = loop.create_task(self._connect(loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        problem: Exception | None = None
        try:
            async with asyncio.timeout(self.options.connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(self),
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._host if self._secure else None,
                )
        except Exception as error:
            # Not only what the network does: a host name that cannot be encoded raises a ValueError, for one.
            problem = error
        finally:
            self._opening -= 1
        if problem is not None:
            self._connect_failed(problem)
            return
        self._open.add(connection)
        self.release(connection)

    def _connect_failed(self, error: Exception) -> None:
        """What waits fails, unless there are open connections to serve it; then the sweep tries to connect again."""
        if self._open:
            return
        reason = "cannot connect" if not isinstance(error, TimeoutError) else "cannot connect in time"
        while self._queue:
            pending = self._queue.popleft()
            if not pending.over:
                pending.fail(WireError("connect", f"{reason} ({type(error).__name__})", maybe_delivered=False))

    def _sweep(self) -> None:
        """End what is overdue or given up, and connections that were idle for long."""
        loop = asyncio.get_running_loop()
        now = self._now = loop.time()
        for connection in tuple(self._open):
            pending = connection.pending
            if pending is not None and (now >= pending.deadline or pending.over):
                connection.fail(WireError("timeout", "no complete answer in time", maybe_delivered=True))
        for pending in tuple(self._queue):
            if now >= pending.deadline and not pending.over:
                pending.fail(WireError("timeout", "no connection was free in time", maybe_delivered=False))
        while self.idle and now - self.idle[0].idle_since > _IDLE_SECONDS:
            self.idle.popleft().transport.close()
        # After an attempt that failed while other connections were open. Not at once, so that a node that refuses is
        # not asked in a tight loop.
        self._connect_if_needed(loop)
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep) if self._open or self._queue else None


def _head(options: WireOptions, host: str, path: str, query: str) -> bytes:
    """The request up to the number of its Content-Length."""
    headers = {
        "Host": host,
        "User-Agent": "capstan",
        "Accept": "application/json",
        "Accept-Encoding": "gzip" if options.gzip else "identity",
        "Content-Type": "application/json",
        **dict(options.headers),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    target = f"{path}?{query}" if query else path
    return f"POST {target} HTTP/1.1\r\n{lines}Content-Length: ".encode("latin-1")
