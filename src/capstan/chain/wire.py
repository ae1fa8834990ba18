"""A small HTTP/1.1 client for one upstream: POST a body, get the body of the answer. Nothing else.

`Upstream` uses it for every call. It keeps connections open and uses each for one request at a time; it parses with
httptools, follows no redirect, keeps no cookie and reads no proxy setting. It exists because calls to nodes are the
bulk of what the service does: the general client in use elsewhere costs ten times as much for each call
(bench/rpc.py).

Failures are raised as `WireError` with a reason, and with whether the request may have been delivered.
"""

import asyncio
import ssl
import zlib
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

_SWEEP_SECONDS = 0.05
_IDLE_SECONDS = 4.0


class WireError(Exception):
    """No usable answer. `kind` says why: connect, timeout, disconnect, malformed, too_large, busy."""

    def __init__(self, kind: str, reason: str, *, maybe_delivered: bool) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.maybe_delivered = maybe_delivered


class WireAnswer(msgspec.Struct, frozen=True, gc=False):
    """What came back."""

    status: int
    body: bytes


class WireOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach one upstream."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    connect_timeout_seconds: float = 3.0
    max_response_bytes: int = 64 * 1024 * 1024
    connections: int = 64
    waiting: int = 10_000
    gzip: bool = False


class _Pending:
    """One request: its bytes, who waits for it, and until when."""

    __slots__ = ("deadline", "future", "repeatable", "request")

    def __init__(self, request: bytes, future: "asyncio.Future[WireAnswer]", deadline: float, repeatable: bool) -> None:
        self.request = request
        self.future = future
        self.deadline = deadline
        self.repeatable = repeatable


class _Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self, client: "WireClient") -> None:
        self._client = client
        self.transport: Any = None
        self.pending: _Pending | None = None
        self.idle_since = 0.0
        self._parser: Any = None
        self._body: list[bytes] = []
        self._size = 0
        self._heard = False
        self._used = False
        self._unzip: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, pending: _Pending) -> None:
        """Begin a request."""
        self.pending = pending
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._size = 0
        self._heard = False
        self._unzip = None
        self.transport.write(pending.request)

    def data_received(self, data: bytes) -> None:
        if self.pending is None:
            # Bytes that nobody asked for: the connection cannot be trusted any more.
            self.transport.close()
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail(WireError("malformed", "the answer is not HTTP", maybe_delivered=True))
        except zlib.error:
            self.fail(WireError("malformed", "the answer is not the gzip it claims to be", maybe_delivered=True))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.forget(self)
        pending, self.pending = self.pending, None
        if pending is None or pending.future.done():
            return
        if self._used and not self._heard and pending.repeatable:
            # The upstream closed an idle connection just as we used it: that says nothing about the upstream.
            self._client.retry(pending)
            return
        if self._heard:
            pending.future.set_exception(WireError("malformed", "the answer broke off", maybe_delivered=True))
            return
        pending.future.set_exception(
            WireError("disconnect", "the connection ended without an answer", maybe_delivered=True)
        )

    def fail(self, error: WireError) -> None:
        """End the request under way with an error, and the connection with it."""
        pending, self.pending = self.pending, None
        if pending is not None and not pending.future.done():
            pending.future.set_exception(error)
        self.transport.abort()

    # Callbacks of the parser.
    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-encoding" and value.strip().lower() in (b"gzip", b"x-gzip"):
            self._unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def on_body(self, body: bytes) -> None:
        if self._unzip is not None:
            # Bounded, so that a small answer cannot unpack to a huge one.
            body = self._unzip.decompress(body, self._client.options.max_response_bytes + 1)
        self._size += len(body)
        if self._size > self._client.options.max_response_bytes:
            limit = self._client.options.max_response_bytes
            self.fail(WireError("too_large", f"the answer is larger than {limit} bytes", maybe_delivered=True))
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        pending, self.pending = self.pending, None
        if pending is None:
            return
        if self._unzip is not None:
            self._body.append(self._unzip.flush())
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        answer = WireAnswer(self._parser.get_status_code(), body)
        self._used = True
        if self._parser.should_keep_alive():
            self._client.release(self)
        else:
            self.transport.close()
        if not pending.future.done():
            pending.future.set_result(answer)


class WireClient:
    """The connections to one upstream."""

    def __init__(self, options: WireOptions) -> None:
        self.options = options
        parts = urlsplit(options.url)
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._context = ssl.create_default_context() if self._secure else None
        self._head = _head(options, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query)
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._opening = 0
        self._queue: deque[_Pending] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def post(self, body: bytes, timeout: float, *, repeatable: bool) -> "asyncio.Future[WireAnswer]":
        """Send a body; the future gives the answer or raises `WireError`. Cancelling it gives the request up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[WireAnswer] = loop.create_future()
        pending = _Pending(b"%b%d\r\n\r\n%b" % (self._head, len(body), body), future, loop.time() + timeout, repeatable)
        self._start(pending, loop)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return future

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        error = WireError("disconnect", "the client is closed", maybe_delivered=True)
        for pending in self._queue:
            if not pending.future.done():
                pending.future.set_exception(error)
        self._queue.clear()
        for connection in tuple(self._open):
            connection.fail(error)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release(self, connection: _Connection) -> None:
        """A connection is free: give it the next request, or keep it for later."""
        while self._queue:
            pending = self._queue.popleft()
            if not pending.future.done():
                connection.send(pending)
                return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def retry(self, pending: _Pending) -> None:
        """Send a request again that an idle connection swallowed, at most once."""
        pending.repeatable = False
        self._start(pending, asyncio.get_running_loop())

    def _start(self, pending: _Pending, loop: asyncio.AbstractEventLoop) -> None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.send(pending)
                return
        if self._closed or len(self._queue) >= self.options.waiting:
            pending.future.set_exception(WireError("busy", "too many calls are waiting", maybe_delivered=False))
            return
        self._queue.append(pending)
        if len(self._open) + self._opening < self.options.connections and self._opening < len(self._queue):
            self._opening += 1
            task = loop.create_task(self._connect(loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            async with asyncio.timeout(self.options.connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self),
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._host if self._secure else None,
                )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            self._opening -= 1
            self._connect_failed(error)
            return
        self._opening -= 1
        self._open.add(connection)
        self.release(connection)

    def _connect_failed(self, error: Exception) -> None:
        """The request that waited longest fails, unless open connections will serve it."""
        if self._open:
            return
        reason = "cannot connect" if not isinstance(error, TimeoutError) else "cannot connect in time"
        while self._queue:
            pending = self._queue.popleft()
            if not pending.future.done():
                pending.future.set_exception(
                    WireError("connect", f"{reason} ({type(error).__name__})", maybe_delivered=False)
                )

    def _sweep(self) -> None:
        """End what is overdue or given up, and connections that were idle for long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._open):
            pending = connection.pending
            if pending is not None and (now >= pending.deadline or pending.future.cancelled()):
                connection.fail(WireError("timeout", "no complete answer in time", maybe_delivered=True))
        for pending in tuple(self._queue):
            if now >= pending.deadline and not pending.future.done():
                pending.future.set_exception(
                    WireError("timeout", "no connection was free in time", maybe_delivered=False)
                )
        while self._idle and now - self._idle[0].idle_since > _IDLE_SECONDS:
            self._idle.popleft().transport.close()
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
