"""The feed against clients that are slow, silent, greedy or broken, and a server that stops."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import websockets
from websockets.frames import Frame, Opcode

from tests.support.devnet import EvmDevnet
from tests.support.feed_client import RpcError, connected, linked, socket_url
from tests.support.gateway import Gateway, serving
from tests.support.service import run_json

_KIB = 1024
HALF_OPEN = 400
# Far more than it takes: about six kilobytes.
MOST_BYTES_OF_ONE = 64 * _KIB
SETTINGS = {
    "feed.subscriptions_per_socket": 5,
    "feed.message_bytes": 64 * _KIB,
    "feed.send_buffer_bytes": 64 * _KIB,
    "feed.sockets_per_key": 40,
    "feed.refusals": 20,
    "feed.ping_seconds": 1,
    "feed.pong_seconds": 1,
    "feed.close_seconds": 2,
    "feed.replay_blocks": 50,
    "log.access": True,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feed")


@pytest.fixture(scope="module")
def gateway(quiet_devnet: EvmDevnet, directory: Path) -> Iterator[Gateway]:
    with serving(directory, [quiet_devnet.url], settings=SETTINGS) as running:
        yield running


def address(gateway: Gateway) -> str:
    return socket_url(gateway.service.base_url, key=gateway.key)


async def raw_socket(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket after its handshake, to which a test writes frames of its own."""
    parts = urlsplit(address(gateway))
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert answer.startswith(b"HTTP/1.1 101 ")
    return reader, writer


async def close_code(reader: asyncio.StreamReader) -> int:
    """The code of the close frame that comes, after whatever comes before it."""
    async with asyncio.timeout(20):
        while True:
            first, length = await reader.readexactly(2)
            if length == 126:
                length = int.from_bytes(await reader.readexactly(2))
            elif length == 127:
                length = int.from_bytes(await reader.readexactly(8))
            payload = await reader.readexactly(length)
            if first & 0x0F == Opcode.CLOSE:
                return int.from_bytes(payload[:2])


def frame(opcode: Opcode, payload: bytes) -> bytes:
    return bytes(Frame(opcode, payload).serialize(mask=True))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(frame(Opcode.TEXT, b"\xff\xfe"), 1007, id="not UTF-8"),
        pytest.param(b"\xc1" + frame(Opcode.TEXT, b"{}")[1:], 1002, id="compressed"),
        pytest.param(b"\x81\x02{}", 1002, id="not masked"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 1002, id="not WebSocket"),
        pytest.param(frame(Opcode.CONT, b"{}"), 1002, id="a fragment of nothing"),
        pytest.param(frame(Opcode.TEXT, b"x" * (64 * _KIB + 1)), 1009, id="too large"),
        pytest.param(frame(Opcode.TEXT, b" " * (2 << 20)), 1009, id="much too large"),
        pytest.param(frame(Opcode.CLOSE, (1006).to_bytes(2)), 1002, id="a code that may not be sent"),
        pytest.param(frame(Opcode.CLOSE, (4000).to_bytes(2)), 4000, id="an ordinary close"),
    ],
)
async def test_what_breaks_the_protocol_closes_with_the_right_code(gateway: Gateway, data: bytes, code: int) -> None:
    reader, writer = await raw_socket(gateway)
    writer.write(data)
    assert await close_code(reader) == code
    writer.close()


async def test_fragments_binary_messages_pings_and_garbage_are_handled(gateway: Gateway) -> None:
    async with websockets.connect(address(gateway), proxy=None) as connection:
        await connection.send(['{"id":1,"met', 'hod":"eth_', 'chainId"}'])
        assert json.loads(await connection.recv())["result"] == "0x7a69"
        await connection.send(b'{"id":2,"method":"eth_chainId"}')
        assert json.loads(await connection.recv())["id"] == 2
        await asyncio.wait_for(await connection.ping(b"hello"), 10)
        for garbage in ("", "{", "[]", "null", '"text"', "{}", "[" * 100, b"\xff\x00"):
            await connection.send(garbage)
            reply = json.loads(await connection.recv())
            assert reply["error"]["code"] in (-32700, -32600), garbage
        await connection.send('{"id":3,"method":"eth_chainId"}')
        assert json.loads(await connection.recv())["id"] == 3


async def test_a_slow_client_is_closed_with_1013_and_the_others_miss_nothing(
    gateway: Gateway, quiet_devnet: EvmDevnet
) -> None:
    reader, writer = await raw_socket(gateway)
    # A window of a few kilobytes, so that the system's buffers do not hide for long that nothing is read.
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _KIB)
    for number in range(5):
        call = {"id": number, "method": "eth_subscribe", "params": ["newHeads"]}
        writer.write(frame(Opcode.TEXT, json.dumps(call).encode()))
    await asyncio.sleep(0)
    reader._transport.pause_reading()  # type: ignore[attr-defined] # the one way to read nothing at all
    async with connected(address(gateway)) as good:
        heads = await good.subscribe("newHeads")
        mined = 0
        async with asyncio.timeout(120):
            while await sockets(gateway) == 2:
                await quiet_devnet.mine_async(20)
                mined += 20
        await good.wait_for(lambda: len(good.of(heads)) >= mined)
        assert await sockets(gateway) == 1
        assert linked(good.of(heads))
        assert len(good.of(heads)) == mined
    reader._transport.resume_reading()  # type: ignore[attr-defined] # see above
    writer.close()


async def sockets(gateway: Gateway) -> float:
    """How many sockets the service has open."""
    return await asyncio.to_thread(gateway.metric, "capstan_feed_sockets") or 0.0


async def until_sockets(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(20):
        while await sockets(gateway) != count:
            await asyncio.sleep(0.05)


async def test_a_client_that_does_not_answer_pings_is_let_go(gateway: Gateway) -> None:
    reader, writer = await raw_socket(gateway)
    assert await close_code(reader) == 1011
    writer.close()
    await until_sockets(gateway, 0)


async def test_a_client_that_vanishes_leaves_nothing_behind(gateway: Gateway) -> None:
    async with connected(address(gateway)) as client:
        await client.subscribe("newHeads")
        client.connection.transport.abort()
        await until_sockets(gateway, 0)
    assert await asyncio.to_thread(gateway.metric, "capstan_feed_subscriptions", kind="newHeads") == 0


async def test_subscriptions_replays_and_sockets_are_bounded(gateway: Gateway, quiet_devnet: EvmDevnet) -> None:
    await quiet_devnet.mine_async(60)
    async with connected(address(gateway)) as client:
        with pytest.raises(RpcError, match="50 blocks") as caught:
            await client.subscribe("newHeads", {"fromBlock": "0x1"})
        assert caught.value.code == -32602
        for _ in range(5):
            await client.subscribe("logs", {})
        with pytest.raises(RpcError, match="5 subscriptions") as caught:
            await client.subscribe("newHeads")
        assert caught.value.code == -32005
    opened = [await websockets.connect(address(gateway), proxy=None) for _ in range(40)]
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(address(gateway), proxy=None)
    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["retry-after"] == "1"
    assert b"40 sockets" in bytes(refused.value.response.body or b"")
    await asyncio.gather(*(connection.close() for connection in opened))
    async with connected(address(gateway)) as client:
        assert await client.call("eth_chainId")


async def test_a_client_that_does_not_stop_over_its_limit_is_closed_with_4429(
    gateway: Gateway, directory: Path
) -> None:
    command = ("keys", "create", "--plan", "free", "--data-dir", str(directory / "data"))
    key = (await asyncio.to_thread(run_json, *command))["key"]
    async with connected(socket_url(gateway.service.base_url, key=key)) as client:
        for number in range(60):
            await client.connection.send(json.dumps({"id": f"call {number}", "method": "eth_chainId"}))
        assert (await client.wait_closed())[0] == 4429


async def test_half_open_silent_and_garbage_clients_cost_little_and_nobody_loses_a_head(
    quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"server.header_timeout_seconds": 10, "log.access": False}
    with serving(tmp_path_factory.mktemp("hostile"), [quiet_devnet.url], settings=settings) as gateway:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(address(gateway))) for _ in range(3)]
            heads = [await client.subscribe("newHeads") for client in clients]
            before = gateway.memory_bytes()
            half = await half_open(gateway, stack, HALF_OPEN)
            grown = gateway.memory_bytes() - before
            assert grown < HALF_OPEN * MOST_BYTES_OF_ONE, f"{grown // HALF_OPEN} bytes for each"
            for _ in range(20):
                reader, writer = await raw_socket(gateway)
                writer.write(frame(Opcode.TEXT, b"{") * 5 + b"\xff" * 64)
                assert await close_code(reader) == 1002
                writer.close()
            await quiet_devnet.mine_async(5)
            ready = await asyncio.to_thread(httpx.get, f"{gateway.service.origin}/readyz", timeout=30, trust_env=False)
            assert ready.status_code == 200
            # None of them says anything more, and all are let go.
            async with asyncio.timeout(90):
                for reader in half:
                    await reader.read()
            await quiet_devnet.mine_async(5)
            for client, subscription in zip(clients, heads, strict=True):
                told = client.of(subscription)
                await client.wait_for(partial(has, told, 10))
                assert len(told) == 10
                assert linked(told)


def has(told: list[object], count: int) -> bool:
    return len(told) >= count


async def half_open(gateway: Gateway, stack: AsyncExitStack, count: int) -> list[asyncio.StreamReader]:
    """Clients that connect and send nothing, or the beginning of a request."""
    parts = urlsplit(address(gateway))
    readers = []
    for number in range(count):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        stack.callback(writer.close)
        if number % 2:
            writer.write(b"GET /v1/ws/ethereum/devnet HTTP/1.1\r\nHost: x\r\nConnection: Upg")
        readers.append(reader)
    return readers


async def test_limits_shared_through_redis_hold_on_the_socket(
    quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory, valkey_url: str
) -> None:
    home = tmp_path_factory.mktemp("shared")
    # On a machine that stalls, a slow Redis must not count as gone.
    settings = {"redis.url": valkey_url, "redis.command_timeout_seconds": 20}
    with serving(home, [quiet_devnet.url], settings=settings) as gateway:
        command = ("keys", "create", "--plan", "free", "--data-dir", str(home / "data"))
        key = (await asyncio.to_thread(run_json, *command))["key"]
        async with connected(socket_url(gateway.service.base_url, key=key)) as client:
            heads = await client.subscribe("newHeads")
            answers = await asyncio.gather(*(client.call("eth_chainId") for _ in range(30)), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, RpcError)]
            assert len(refused) >= 15
            assert {answer.code for answer in refused} == {-32005}
            await quiet_devnet.mine_async(3)
            await client.wait_for(lambda: len(client.of(heads)) == 3)


async def test_origins_are_checked_where_they_are_configured(
    quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"server.cors_origins": ["https://app.example.com"]}
    with serving(tmp_path_factory.mktemp("origins"), [quiet_devnet.url], settings=settings) as gateway:
        url = address(gateway)
        for origin in ("https://app.example.com", gateway.service.origin, None):
            async with connected(url, origin=origin) as client:
                assert await client.call("eth_chainId")
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(url, origin="https://evil.example.com", proxy=None)  # type: ignore[arg-type] # a str
        assert refused.value.response.status_code == 403


async def test_a_stopping_server_says_1001_and_no_key_is_ever_logged(
    quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"log.access": True, "log.level": "debug"}
    with serving(tmp_path_factory.mktemp("stop"), [quiet_devnet.url], settings=settings) as gateway:
        async with connected(address(gateway)) as client:
            await client.subscribe("newHeads")
            with pytest.raises(websockets.InvalidStatus):
                await websockets.connect(f"{address(gateway)}x", proxy=None)
            stopped = asyncio.create_task(asyncio.to_thread(gateway.service.stop))
            assert (await client.wait_closed())[0] == 1001
            assert await stopped == 0
        log = gateway.service.log_text
        assert '"path":"/v1/ws/ethereum/devnet","status":101' in log
        assert '"path":"/v1/ws/ethereum/devnet","status":401' in log
        assert gateway.key not in log
        assert "apiKey" not in log
