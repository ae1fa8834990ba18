"""One connection to an upstream: a request goes out, the answer is read, and whoever made the request is told.

Made by `wire`, which pools the connections and decides what is sent on which. Answers are parsed with httptools. The
heads of most answers of an upstream are the same bytes again and again, but for the date; what the parser made of one
is remembered by its owner, so that a whole answer with a known head need not be parsed. Nothing here waits.
"""

import asyncio
import zlib
from typing import Any, Protocol

import httptools
import msgspec

from capstan.core.memo import Memo

_OK = 200
END = b"\r\n\r\n"

# Beyond this an answer is large, and only a few such are read at once.
_LARGE = 4 * 1024 * 1024

# So much may come at a stretch without any of the body: as head, as trailer or between two chunks. The parser puts the
# pieces of a header together anew with each that comes, which would take ever longer.
_LONGEST_HEAD = 64 * 1024


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


class Sending(msgspec.Struct, eq=False):
    """One request on its way, and how the one who made it is told of its end: `succeed` or `fail`, once."""

    request: bytes
    # By the clock of the loop.
    deadline: float
    # Whether it may be sent again when a connection from the pool turns out to be dead.
    repeatable: bool

    @property
    def over(self) -> bool:
        """Whether nobody waits any more: it has been told, or has given the request up."""
        raise NotImplementedError

    def succeed(self, status: int, body: bytes) -> None:
        """A complete answer came. Must not raise."""
        raise NotImplementedError

    def fail(self, error: WireError) -> None:
        """There will be no answer. Must not raise."""
        raise NotImplementedError


class Awaited(Sending, eq=False):
    """A request whose maker waits for a future. Cancelling the future gives the request up."""

    future: asyncio.Future[WireAnswer]

    @property
    def over(self) -> bool:
        return self.future.done()

    def succeed(self, status: int, body: bytes) -> None:
        if not self.future.done():
            self.future.set_result(WireAnswer(status, body))

    def fail(self, error: WireError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Keeper(Protocol):
    """Whose connections they are, as far as a connection needs to know."""

    @property
    def options(self) -> WireOptions: ...

    @property
    def heads(self) -> Memo[bytes, int]:
        """Heads of answers that the parser has read, and how many bytes of body follow them."""
        ...

    def learn(self, piece: bytes, body_bytes: int) -> None:
        """The parser found `piece` to be a whole answer with so long a body."""
        ...

    def release(self, connection: "Connection") -> None:
        """The connection is free."""
        ...

    def forget(self, connection: "Connection") -> None:
        """The connection is gone."""
        ...

    def take_place(self, connection: "Connection") -> bool:
        """An answer has become large. False: it must wait, and its reading is resumed when there is a place."""
        ...

    def leave_place(self, connection: "Connection") -> None:
        """The large answer is read or given up."""
        ...

    def retry(self, pending: Sending) -> None:
        """An idle connection swallowed the request: send it again."""
        ...


class Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self, client: "Keeper") -> None:
        self._client = client
        self._known_heads = client.heads.get
        self._young_heads = client.heads.get_young
        self.transport: Any = None
        self.pending: Sending | None = None
        self.idle_since = 0.0
        self._parser: Any = None
        # All that has come so far, as long as that is one piece.
        self._piece: bytes | None = None
        self._body: list[bytes] = []
        self._size = 0
        # Bytes since the last of the body, and bytes of headers, that of the trailer included.
        self._without_body = 0
        self._headers = 0
        self.heard = False
        self._used = False
        self._unzip: Any = None
        # Whether a place for a large answer was asked for.
        self._has_place = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, pending: Sending) -> None:
        """Begin a request."""
        self.pending = pending
        self.heard = False
        self.transport.write(pending.request)

    def data_received(self, data: bytes) -> None:
        pending = self.pending
        if pending is None:
            # Bytes that nobody asked for: the connection cannot be trusted any more.
            self.transport.close()
            return
        if self.heard:
            self._piece = None
        else:
            end = data.find(END) + len(END)
            head = data[:end]
            size = self._young_heads(head) or self._known_heads(head)
            if size is not None and len(data) - end == size:
                # An answer in one piece, with a head that the parser has read before.
                self.pending = None
                self._used = True
                self._client.release(self)
                pending.succeed(_OK, data[end:])
                return
            self._begin_answer(data)
        self._parse(data)

    def _begin_answer(self, data: bytes) -> None:
        self.heard = True
        self._piece = data
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._size = 0
        self._without_body = 0
        self._headers = 0
        self._unzip = None

    def _parse(self, data: bytes) -> None:
        self._without_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail(WireError("malformed", "the answer is not HTTP", maybe_delivered=True))
        except zlib.error:
            self.fail(WireError("malformed", "the answer is not the gzip it claims to be", maybe_delivered=True))
        # Unless the answer is complete: then nothing is under way, or the next request, of which nothing was heard.
        if self._without_body > _LONGEST_HEAD and self.heard and self.pending is not None:
            self._fail_for_head()

    def _fail_for_head(self) -> None:
        reason = f"the head of the answer is longer than {_LONGEST_HEAD} bytes"
        self.fail(WireError("malformed", reason, maybe_delivered=True))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.forget(self)
        self._drop()
        pending, self.pending = self.pending, None
        if pending is None or pending.over:
            return
        if self._used and not self.heard and pending.repeatable:
            # The upstream closed an idle connection just as we used it: that says nothing about the upstream.
            self._client.retry(pending)
            return
        if self.heard:
            pending.fail(WireError("malformed", "the answer broke off", maybe_delivered=True))
            return
        pending.fail(WireError("disconnect", "the connection ended without an answer", maybe_delivered=True))

    def _drop(self) -> None:
        """What came is read, or is not wanted."""
        self._body = []
        if self._has_place:
            self._has_place = False
            self._client.leave_place(self)

    def fail(self, error: WireError) -> None:
        """End the request under way with an error, and the connection with it."""
        pending, self.pending = self.pending, None
        self._drop()
        self.transport.abort()
        if pending is not None:
            pending.fail(error)

    # Callbacks of the parser.
    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += len(name) + len(value)
        if self._headers > _LONGEST_HEAD and self.heard:
            self._fail_for_head()
            return
        if name.lower() == b"content-encoding" and value.strip().lower() in (b"gzip", b"x-gzip"):
            self._unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def on_body(self, body: bytes) -> None:
        self._without_body = 0
        if self._unzip is not None:
            # Bounded, so that a small answer cannot unpack to a huge one.
            body = self._unzip.decompress(body, self._client.options.max_response_bytes + 1)
        self._size += len(body)
        if self._size > self._client.options.max_response_bytes:
            limit = self._client.options.max_response_bytes
            self.fail(WireError("too_large", f"the answer is larger than {limit} bytes", maybe_delivered=True))
            return
        self._body.append(body)
        if self._size > _LARGE and not self._has_place:
            self._has_place = True
            if not self._client.take_place(self):
                self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self.heard:
            # The next request is under way already, so this answers nothing that was asked.
            self.fail(WireError("malformed", "more came than was asked for", maybe_delivered=True))
            return
        pending, self.pending = self.pending, None
        if pending is None:
            return
        if self._unzip is not None:
            self._body.append(self._unzip.flush())
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        # An idle connection must not keep it.
        self._drop()
        status = self._parser.get_status_code()
        self._used = True
        if self._parser.should_keep_alive():
            if status == _OK and self._unzip is None and self._piece is not None:
                self._client.learn(self._piece, len(body))
            self._client.release(self)
        else:
            # Not `close`, which waits until a request is sent that nobody may read, and for the farewell of TLS.
            self.transport.abort()
        pending.succeed(status, body)
