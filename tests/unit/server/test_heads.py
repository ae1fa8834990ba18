"""Which request heads are remembered, and that no request is read differently because its head was seen before."""

import asyncio
from hashlib import sha256
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from capstan.core.ids import RequestIds
from capstan.limits.models import Decision
from capstan.server.heads import END, HeadMemo, RequestHead
from capstan.server.protocol import CapstanProtocol, ConnectionLimits, Surroundings, protocol_class
from capstan.server.responses import ResponseEncoder

BODY = b'{"id":1}'
KEY = (b"x-api-key", b"svc_live_x")
LENGTH = (b"content-length", b"8")


def text(*lines: bytes, end: bytes = b"\r\n") -> bytes:
    return end.join((b"POST /v1/rpc/a/b HTTP/1.1", *lines, b"", b""))


def learned(piece: bytes, headers: list[tuple[bytes, bytes]], body: bytes = BODY) -> HeadMemo:
    memo = HeadMemo()
    memo.learn(piece, RequestHead(b"/v1/rpc/a/b", headers), body)
    return memo


def test_an_ordinary_head_is_remembered_by_its_bytes() -> None:
    head = text(b"X-API-Key: svc_live_x", b"Content-Length: 8")
    memo = learned(head + BODY, [KEY, LENGTH])
    known = memo.get(head)
    assert known is not None
    assert known.body_bytes == 8
    assert known.head.digest == sha256(b"svc_live_x").digest()
    assert memo.get(head.replace(b"svc_live_x", b"svc_live_y")) is None
    memo.clear()
    assert memo.get(head) is None


@pytest.mark.parametrize(
    ("piece", "headers"),
    [
        pytest.param(text(b"X: y") + BODY, [KEY], id="no length"),
        pytest.param(text(b"Content-Length: 9") + BODY, [KEY, (b"content-length", b"9")], id="another length"),
        pytest.param(text(b"Content-Length: 08") + BODY, [KEY, (b"content-length", b"08")], id="odd length"),
        pytest.param(text(b"a: b", b"c: d") + BODY, [KEY, LENGTH, LENGTH], id="two lengths"),
        pytest.param(text(b"a: b") + BODY, [KEY, LENGTH, (b"transfer-encoding", b"chunked")], id="two framings"),
        pytest.param(text(b"a: b") + BODY, [KEY, LENGTH, (b"expect", b"100-continue")], id="expects"),
        pytest.param(text(b"a: b") + BODY, [KEY, LENGTH, (b"upgrade", b"h2c")], id="upgrade"),
        pytest.param(text(b"a: b", end=b"\n") + b"\r\n\r\n" + BODY, [KEY, LENGTH], id="bare line feeds"),
        pytest.param(text(b"a: b\rc: d") + BODY, [KEY, LENGTH], id="bare carriage return"),
        pytest.param(text(b"a: b") + BODY + b"POST", [KEY, LENGTH], id="more than one message"),
        pytest.param(text(b"a: " + b"b" * 5000) + BODY, [KEY, LENGTH], id="long"),
        pytest.param(BODY, [KEY, LENGTH], id="no end"),
    ],
)
def test_an_unusual_head_is_not_remembered(piece: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    assert len(learned(piece, headers)) == 0


@pytest.mark.parametrize("name", [b"authorization", b"x-request-id", b"x-forwarded-for", b"x-explain", b"x-api-key"])
def test_a_head_with_more_than_one_plain_key_has_no_digest(name: bytes) -> None:
    assert RequestHead(b"/v1/rpc/a/b", [KEY, (name, b"1")]).digest is None


@pytest.mark.parametrize("value", [b"Bearer svc_test_x", b"bearer   svc_test_x "])
def test_a_bearer_key_is_the_same_key(value: bytes) -> None:
    head = RequestHead(b"/v1/rpc/a/b", [(b"authorization", value)])
    assert head.digest == RequestHead(b"/v1/rpc/a/b", [(b"x-api-key", b"svc_test_x")]).digest
    assert head.digest == sha256(b"svc_test_x").digest()
    for other in (b"Basic svc_test_x", b"Bearer", b""):
        assert RequestHead(b"/v1/rpc/a/b", [(b"authorization", other)]).digest != head.digest


def test_the_memory_is_bounded_and_shows_no_key() -> None:
    memo = HeadMemo(max_bytes=50_000)
    for number in range(2_000):
        head = text(b"X-API-Key: svc_live_%d" % number, b"Content-Length: 8")
        memo.learn(head + BODY, RequestHead(b"/v1/rpc/a/b", [KEY, LENGTH]), BODY)
    assert 10 < len(memo) < 70
    assert "svc_live" not in repr(memo.get(head))
    assert "svc_live" not in repr(memo)


class Forgetful(HeadMemo):
    """Remembers nothing, so that the parser reads every request."""

    def learn(self, piece: bytes, head: RequestHead, body: bytes) -> None:
        """Forget it."""


class Recorder:
    """In the place of the fast path: answers at once, and notes what it was given."""

    def __init__(self, heads: HeadMemo) -> None:
        self.heads = heads
        self.seen: list[tuple[bytes, list[tuple[bytes, bytes]], bytes, bool]] = []

    def answer(self, head: RequestHead, body: bytes, _client: str, keep_alive: bool) -> bytes:
        self.seen.append((head.target, head.headers, body, keep_alive))
        return b"<%d>" % len(self.seen)

    async def refuse(self, _head: RequestHead, _client: str, _error: Exception) -> bytes:
        return b"<refused>"

    def note_refusal(self, *_: object) -> None:
        """Not of interest."""


class Transport:
    """Collects what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, _name: str) -> None:
        """Nothing is known of the peer."""


async def _application(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


_LIMITS = ConnectionLimits(
    header_timeout_seconds=10,
    body_timeout_seconds=10,
    keep_alive_seconds=10,
    max_header_bytes=2_000,
    max_body_bytes=100,
    max_connections=10,
)


def connection(heads: HeadMemo, loop: asyncio.AbstractEventLoop) -> tuple[CapstanProtocol, Transport, Recorder]:
    recorder = Recorder(heads)
    surroundings = Surroundings(
        limits=_LIMITS,
        fast_path=recorder,  # type: ignore[arg-type] # has what the protocol uses
        encoder=ResponseEncoder(),
        request_ids=RequestIds(),
        sockets=object,  # type: ignore[arg-type] # nothing is upgraded here
        decide=lambda _client: Decision(True, 0, 0, 0, 0, ""),
    )
    kind = protocol_class(surroundings)
    config = uvicorn.Config(_application, http=kind, ws="none", lifespan="off", log_config=None)
    config.load()
    transport = Transport()
    protocol = kind(config, ServerState(), {}, loop)
    protocol.connection_made(transport)  # type: ignore[arg-type] # has what the protocol uses
    return protocol, transport, recorder


def post(*lines: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join((b"POST /v1/rpc/a/b HTTP/" + version, *lines, b"", b"")) + body


ORDINARY = post(b"X-API-Key: svc_live_x", b"Content-Length: 8")
MESSAGES = [
    ORDINARY,
    ORDINARY,
    post(b"X-API-Key: svc_live_y", b"Content-Length: 8"),
    post(b"Content-Length: 0", body=b""),
    post(b"X-API-Key: svc_live_x", b"Transfer-Encoding: chunked", body=b"8\r\n" + BODY + b"\r\n0\r\n\r\n"),
    # A body that looks like the head of a message.
    post(b"Content-Length: %d" % len(ORDINARY), body=ORDINARY),
    b"\r\n",
    # What ends the connection, or is refused.
    post(b"Content-Length: 8", b"Connection: close"),
    post(b"Content-Length: 8", version=b"1.0"),
    post(b"Content-Length: 8", b"Transfer-Encoding: chunked"),
    post(b"Content-Length: 8", b"Content-Length: 8"),
    post(b"Content-Length: 101", body=b"x" * 101),
    post(b"X: " + b"y" * 3_000, b"Content-Length: 8"),
    b"\x00",
]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(MESSAGES), max_size=6),
    st.lists(st.integers(min_value=1, max_value=400), max_size=8),
    st.sampled_from(["between messages", "behind heads", "anywhere"]),
)
def test_a_known_head_changes_nothing_however_the_stream_is_cut(
    messages: list[bytes], cuts: list[int], where: str
) -> None:
    async def compare() -> None:
        loop = asyncio.get_running_loop()
        known = HeadMemo()
        for message in MESSAGES[:6]:
            connection(known, loop)[0].data_received(message)
        assert len(known) >= 3
        with_memory, plain = connection(known, loop), connection(Forgetful(), loop)
        for piece in pieces(messages, cuts, where):
            for protocol, _, _ in (with_memory, plain):
                protocol.data_received(piece)
            # A refusal is written by a task.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert with_memory[2].seen == plain[2].seen
        assert with_memory[1].closed == plain[1].closed
        assert without_id(with_memory[1].written) == without_id(plain[1].written)

    asyncio.run(compare())


def pieces(messages: list[bytes], lengths: list[int], where: str) -> list[bytes]:
    """The stream of these messages, cut."""
    if where == "between messages":
        return messages
    if where == "behind heads":
        # So that a body which looks like a message is a piece of its own.
        parts = [message.partition(END) for message in messages]
        return [piece for head, end, body in parts for piece in (head + end, body) if piece]
    stream, cut = b"".join(messages), []
    for length in lengths:
        cut.append(stream[:length])
        stream = stream[length:]
    return [piece for piece in (*cut, stream) if piece]


def without_id(written: bytes) -> list[bytes]:
    return [line for line in written.split(b"\r\n") if not line.startswith(b"x-request-id")]


async def test_a_known_head_is_answered_without_the_parser() -> None:
    known = HeadMemo()
    loop = asyncio.get_running_loop()
    connection(known, loop)[0].data_received(ORDINARY)
    protocol, transport, recorder = connection(known, loop)
    protocol.parser = None  # type: ignore[assignment] # whoever uses it fails
    protocol.data_received(ORDINARY)
    assert transport.written == b"<1>"
    assert [body for _, _, body, _ in recorder.seen] == [BODY]
    # The wait for the next request is bounded as after any other.
    assert protocol.deadline <= loop.time() + _LIMITS.keep_alive_seconds
