"""One WebSocket connection on a transport that the test holds: time, back pressure, and how it ends."""

import asyncio
from typing import Any

import pytest

from capstan.core import frames
from capstan.core.frames import Opcode
from capstan.server.handshake import Refused
from capstan.server.websocket import SocketLimits, SocketSurroundings, WebSocketConnection, websocket_class
from tests.support.feed import read_server_frames

LIMITS = SocketLimits(send_buffer_bytes=1_000, ping_seconds=20, pong_seconds=10, close_seconds=5, handshake_seconds=7)


class HeldTransport:
    """A transport that keeps what is written, and sends it only when told to."""

    def __init__(self) -> None:
        self.written = b""
        self.waiting = 0
        self.closed = self.aborted = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class KeptSession:
    """A session that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.ended = 0

    def receive(self, message: bytes) -> None:
        self.received.append(message)

    def end(self) -> None:
        self.ended += 1


class Server:
    """What the connection asks: handshakes that wait for the test, and one session."""

    def __init__(self) -> None:
        self.decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.session = KeptSession()
        self.connections: set[Any] = set()
        self.tasks: set[Any] = set()

    async def admit(self, target: bytes, headers: Any, peer: str) -> Any:
        if not await self.decided:
            raise Refused(b"HTTP/1.1 401 Unauthorized\r\n\r\n")
        return type("Admitted", (), {"caller": None, "key_digest": b"", "network": None, "context": None})()

    def accepted(self, admitted: Any) -> bytes:
        return b"HTTP/1.1 101\r\n\r\n"

    def open(self, *_: Any) -> KeptSession:
        return self.session


async def connect(*, decide: bool | None = True) -> tuple[WebSocketConnection, Any, Server]:
    """A connection, after its handshake unless `decide` is None."""
    server: Any = Server()
    kind = websocket_class(SocketSurroundings(handshakes=server, feed=server, limits=LIMITS))
    connection, transport = kind(None, server, None), HeldTransport()
    held: Any = transport
    connection.begin(held, b"/v1/ws/a/b", [], "127.0.0.1")
    if decide is not None:
        server.decided.set_result(decide)
        await settle()
        transport.written = b"" if decide else transport.written
    return connection, transport, server


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def text(payload: bytes) -> bytes:
    """A client's message, masked with zeros."""
    return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload


def close_code(transport: HeldTransport) -> int | None:
    """The code of the close frame that was written, if one was."""
    found = [message for message in read_server_frames(transport.written) if message.opcode is Opcode.CLOSE]
    return int.from_bytes(found[0].data[:2]) if found else None


async def test_messages_sent_before_the_handshake_is_answered_are_kept() -> None:
    connection, _, server = await connect(decide=None)
    connection.data_received(text(b"early"))
    server.decided.set_result(True)
    await settle()
    assert server.session.received == [b"early"]


async def test_a_client_cannot_fill_our_memory_before_its_handshake() -> None:
    connection, transport, server = await connect(decide=None)
    for _ in range(20):
        connection.data_received(bytes(8_000))
    assert transport.aborted
    server.decided.set_result(True)
    await settle()
    assert server.session.ended == 1


async def test_a_handshake_that_takes_too_long_ends() -> None:
    connection, transport, _ = await connect(decide=None)
    now = asyncio.get_running_loop().time()
    connection.check_deadline(now + 6)
    assert not transport.aborted
    connection.check_deadline(now + 8)
    assert transport.aborted


async def test_a_refused_handshake_is_answered_and_closed() -> None:
    _, transport, _ = await connect(decide=False)
    assert transport.written.startswith(b"HTTP/1.1 401")
    assert transport.closed


async def test_a_silent_client_is_pinged_and_then_let_go() -> None:
    connection, transport, server = await connect()
    now = asyncio.get_running_loop().time()
    connection.check_deadline(now + 19)
    assert transport.written == b""
    connection.check_deadline(now + 21)
    assert [message.opcode for message in read_server_frames(transport.written)] == [Opcode.PING]
    connection.check_deadline(now + 32)
    assert close_code(transport) == frames.INTERNAL_ERROR
    assert server.session.ended == 1
    connection.check_deadline(now + 60)
    assert transport.aborted


async def test_any_sign_of_life_answers_a_ping() -> None:
    connection, transport, _ = await connect()
    now = asyncio.get_running_loop().time()
    connection.check_deadline(now + 21)
    connection.data_received(text(b"{}"))
    connection.check_deadline(now + 19)
    assert close_code(transport) is None
    # The next ping comes after the usual time, not after that of an answer.
    assert connection.deadline >= now + 20


async def test_a_client_that_reads_slowly_but_does_read_is_not_blamed_for_silence() -> None:
    connection, transport, _ = await connect()
    now = asyncio.get_running_loop().time()
    connection.pause_writing()
    transport.waiting = 900
    for step in range(1, 5):
        transport.waiting -= 100
        connection.check_deadline(now + 40 * step)
        assert close_code(transport) is None
    connection.check_deadline(now + 200)
    connection.check_deadline(now + 240)
    assert close_code(transport) == frames.SLOW_CONSUMER


async def test_we_do_not_blame_a_client_that_we_do_not_listen_to() -> None:
    connection, transport, _ = await connect()
    now = asyncio.get_running_loop().time()
    connection.pause()
    assert not transport.reading
    for step in range(1, 5):
        connection.check_deadline(now + 40 * step)
    assert close_code(transport) is None
    connection.resume()
    assert transport.reading


async def test_too_much_that_waits_to_be_sent_is_1013_and_the_session_ends() -> None:
    connection, transport, server = await connect()
    transport.waiting = 1_000
    connection.send_text(b"fits")
    assert close_code(transport) is None
    transport.waiting = 1_001
    connection.send_text(b"does not fit")
    connection.send_text(b"nor this")
    assert close_code(transport) == frames.SLOW_CONSUMER
    assert b"fit" not in transport.written.partition(b"fits")[2].replace(b"read fast enough", b"")
    assert server.session.ended == 1


async def test_a_large_message_is_sent_whole() -> None:
    connection, transport, _ = await connect()
    connection.send_text(b"x" * 200_000)
    [message] = read_server_frames(transport.written)
    assert len(message.data) == 200_000


async def test_waiting_for_room_ends_with_room_or_with_the_socket() -> None:
    connection, transport, _ = await connect()
    transport.waiting = 500
    assert await connection.drain(501)
    waiting = asyncio.create_task(connection.drain(100))
    await settle()
    assert not waiting.done()
    transport.waiting = 50
    connection.resume_writing()
    assert await waiting
    transport.waiting = 500
    waiting = asyncio.create_task(connection.drain(100))
    await settle()
    connection.close(frames.NORMAL, "")
    assert not await waiting


@pytest.mark.parametrize("data", [b"\xff" * 10, b"\x81\x02{}"])
async def test_after_a_violation_nothing_is_heard_and_the_client_has_time_to_see_why(data: bytes) -> None:
    connection, transport, server = await connect()
    connection.data_received(data)
    assert close_code(transport) == frames.PROTOCOL_ERROR
    # Closing at once would reset the connection while the client still sends.
    assert not transport.is_closing()
    connection.data_received(text(b"more"))
    assert server.session.received == []
    connection.check_deadline(asyncio.get_running_loop().time() + 2)
    assert transport.aborted


async def test_the_closing_handshake_is_answered_in_both_directions() -> None:
    connection, transport, server = await connect()
    connection.data_received(bytes((0x88, 0x82)) + bytes(4) + (4000).to_bytes(2))
    assert close_code(transport) == 4000
    assert transport.closed
    connection.connection_lost(None)
    assert server.session.ended == 1
    assert server.connections == set()
    other, other_transport, _ = await connect()
    other.shutdown()
    assert close_code(other_transport) == frames.GOING_AWAY
    assert not other_transport.closed
    other.data_received(bytes((0x88, 0x82)) + bytes(4) + (1001).to_bytes(2))
    assert other_transport.closed
