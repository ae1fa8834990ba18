"""Clients that ask and do not read: what waits for them is bounded, they are let go in time, others are not held up.

The protocol serves real sockets here. Time is told to it, as the sweep does.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from capstan.core.ids import RequestIds
from capstan.limits.models import Decision
from capstan.server.heads import HeadMemo, RequestHead
from capstan.server.protocol import CapstanProtocol, ConnectionLimits, Surroundings, protocol_class
from capstan.server.responses import ResponseEncoder

SIZE = 1_000_000
# What a transport takes before it says that it has enough.
HIGH_WATER = 65_536
REQUESTS = 60
LIMITS = ConnectionLimits(
    header_timeout_seconds=10,
    body_timeout_seconds=10,
    keep_alive_seconds=10,
    max_header_bytes=2_000,
    max_body_bytes=100,
    max_connections=10,
)
SECONDS = 20
BODY = b'{"id":1}'


class LargeAnswers:
    """In the place of the fast path: answers everything at once, and at length."""

    def __init__(self) -> None:
        self.heads = HeadMemo()
        self.asked = 0

    def answer(self, head: RequestHead, body: bytes, client: str, keep_alive: bool) -> bytes:
        self.asked += 1
        size = {b"huge": 20 * SIZE, b"large": SIZE}.get(head.target.rpartition(b"/")[2], 1)
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size


class Server:
    """The protocol on a port."""

    def __init__(self) -> None:
        self.fast_path = LargeAnswers()
        self.state = ServerState()
        self.ordinary = 0
        self.port = 0

    async def application(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.ordinary += 1
        headers = [(b"content-length", b"%d" % SIZE)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * SIZE})

    def only(self) -> CapstanProtocol:
        [found] = self.state.connections
        assert isinstance(found, CapstanProtocol)
        return found

    def waiting(self) -> int:
        return self.only().transport.get_write_buffer_size()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    surroundings = Surroundings(
        limits=LIMITS,
        fast_path=server.fast_path,  # type: ignore[arg-type] # has what the protocol uses
        encoder=ResponseEncoder(),
        request_ids=RequestIds(),
        sockets=object,  # type: ignore[arg-type] # nothing is upgraded here
        decide=lambda _client: Decision(True, 0, 0, 0, 0, ""),
    )
    kind = protocol_class(surroundings)
    config = uvicorn.Config(
        server.application, http=kind, ws="none", lifespan="off", log_config=None, interface="asgi3"
    )
    config.load()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: kind(config, server.state, {}, loop), "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with asyncio.timeout(SECONDS):
        yield server
    listening.close()
    for connection in tuple(server.state.connections):
        connection.transport.abort()


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[socket.socket]:
    loop = asyncio.get_running_loop()
    with socket.socket() as made:
        made.setblocking(False)
        await loop.sock_connect(made, ("127.0.0.1", server.port))
        yield made


def post(what: bytes, *lines: bytes) -> bytes:
    head = (b"POST /v1/rpc/a/" + what + b" HTTP/1.1", b"Content-Length: %d" % len(BODY), *lines, b"", b"")
    return b"\r\n".join(head) + BODY


def get() -> bytes:
    return b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def ask(server: Server) -> None:
    """Another client is answered."""
    async with client(server) as other:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(other, post(b"small"))
        assert (await loop.sock_recv(other, 1000)).startswith(b"HTTP/1.1 200 OK")


async def choked(server: Server, connection: socket.socket, pieces: list[bytes]) -> CapstanProtocol:
    """Send requests and read nothing until the server cannot write any more."""
    loop = asyncio.get_running_loop()
    for piece in pieces:
        await loop.sock_sendall(connection, piece)
        await asyncio.sleep(0)
    await until(lambda: server.state.connections)
    protocol = server.only()
    await until(lambda: protocol.flow.write_paused)
    await ask(server)
    await until(lambda: len(server.state.connections) == 1)
    return protocol


async def read_whole(server: Server, connection: socket.socket, answers: int) -> None:
    """Read so many large answers, of which never more than one waits."""
    loop = asyncio.get_running_loop()
    left = answers * SIZE
    while left > 0:
        piece = await loop.sock_recv(connection, 1 << 20)
        assert piece, f"closed with {left} bytes to come"
        # Nothing but the bodies has this letter.
        left -= piece.count(b"x")
        assert server.waiting() <= SIZE + 2 * HIGH_WATER
    assert left == 0


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([post(b"large")] * REQUESTS, id="one by one"),
        pytest.param([post(b"large") * REQUESTS], id="in one piece"),
        pytest.param([get()] * REQUESTS, id="ordinary"),
        pytest.param([(post(b"large") + get()) * (REQUESTS // 2)], id="mixed"),
    ],
)
async def test_unread_answers_are_bounded_and_all_come_once_they_are_read(pieces: list[bytes]) -> None:
    async with serving() as server, client(server) as connection:
        protocol = await choked(server, connection, pieces)
        assert server.waiting() <= SIZE + HIGH_WATER
        assert server.fast_path.asked + server.ordinary < REQUESTS // 2
        assert not protocol.transport.is_reading()
        loop = asyncio.get_running_loop()
        await read_whole(server, connection, REQUESTS)
        await until(protocol.transport.is_reading)
        await loop.sock_sendall(connection, post(b"small"))
        assert (await loop.sock_recv(connection, 1000)).endswith(b"\r\n\r\nx")


@pytest.mark.parametrize("closing", [False, True])
async def test_a_client_that_does_not_read_is_let_go_after_the_deadline(closing: bool) -> None:
    async with serving() as server, client(server) as connection:
        loop = asyncio.get_running_loop()
        requests = post(b"huge", b"Connection: close") if closing else post(b"large") * REQUESTS
        protocol = await choked(server, connection, [requests])
        assert protocol.transport.is_closing() is closing
        now = loop.time()
        protocol.check_deadline(now)
        protocol.check_deadline(now + LIMITS.body_timeout_seconds - 1)
        assert protocol in server.state.connections
        await ask(server)
        protocol.check_deadline(now + LIMITS.body_timeout_seconds + 1)
        await until(lambda: protocol not in server.state.connections)
        await ask(server)


async def test_a_client_that_reads_slowly_is_not_let_go() -> None:
    async with serving() as server, client(server) as connection:
        protocol = await choked(server, connection, [post(b"large") * REQUESTS])
        loop = asyncio.get_running_loop()
        now = loop.time()
        protocol.check_deadline(now)
        for _ in range(5):
            before = server.waiting()
            while server.waiting() == before:
                assert await loop.sock_recv(connection, 1 << 20)
                await asyncio.sleep(0.001)
            now += LIMITS.body_timeout_seconds + 1
            protocol.check_deadline(now)
            assert not protocol.transport.is_closing()


async def test_the_wait_for_the_next_request_begins_when_the_answer_was_read() -> None:
    async with serving() as server, client(server) as connection:
        protocol = await choked(server, connection, [post(b"large")] * 20)
        loop = asyncio.get_running_loop()
        protocol.check_deadline(loop.time() + 2 * LIMITS.keep_alive_seconds)
        assert not protocol.transport.is_closing()
        await read_whole(server, connection, 20)
        await until(protocol.transport.is_reading)
        protocol.check_deadline(loop.time())
        assert not protocol.transport.is_closing()


async def test_a_stop_lets_the_client_read_what_waits_for_it() -> None:
    async with serving() as server, client(server) as connection:
        protocol = await choked(server, connection, [post(b"large")] * REQUESTS)
        begun = server.fast_path.asked
        protocol.shutdown()
        loop = asyncio.get_running_loop()
        received = 0
        while piece := await loop.sock_recv(connection, 1 << 20):
            received += len(piece)
        # One of those begun is the other client's, and one more is finished that was read but not begun.
        assert received > begun * SIZE
        assert server.fast_path.asked == begun
        assert not server.state.connections
