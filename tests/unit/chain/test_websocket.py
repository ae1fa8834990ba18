"""An upstream over WebSocket, and the ways it can fail. The normal line is tested against a real node in tests/e2e."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from capstan.chain.clients import client_for
from capstan.chain.errors import (
    NodeError,
    UpstreamDisconnected,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeoutError,
    UpstreamUnreachable,
)
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.chain.websocket import WebSocketUpstream
from capstan.core.clock import ManualClock
from tests.support.faulty_node import FaultyNode, network_spec, results

TIMEOUT = 5.0
Socket: TypeAlias = web.WebSocketResponse
Talk: TypeAlias = Callable[[Socket, dict[str, Any]], Awaitable[None]]


class SocketNode:
    """A node over WebSocket that does with each call what the test says."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.calls: list[dict[str, Any]] = []
        self.connections = 0
        self.refuse = 0
        self.headers: list[str | None] = []
        self.sockets: set[Socket] = set()
        application = web.Application()
        application.router.add_get("/", self._serve)
        self.server = TestServer(application)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/")).replace("http", "ws")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.get("Authorization"))
        if self.refuse:
            return web.Response(status=self.refuse)
        self.connections += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.add(socket)
        async for message in socket:
            call = json.loads(message.data)
            self.calls.append(call)
            await self.talk(socket, call)
        self.sockets.discard(socket)
        return socket


@asynccontextmanager
async def node_of(talk: Talk, **changes: Any) -> AsyncIterator[tuple[SocketNode, WebSocketUpstream]]:
    node = SocketNode(talk)
    await node.server.start_server(host="127.0.0.1")
    async with open_session() as session:
        upstream = client_for(UpstreamSpec(name="socket", url=node.url, **changes), "evm", session)
        assert isinstance(upstream, WebSocketUpstream)
        try:
            async with asyncio.timeout(20):
                yield node, upstream
        finally:
            await upstream.close()
            await node.server.close()


async def echo(socket: Socket, call: dict[str, Any]) -> None:
    await socket.send_str(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": call["params"]}))


async def says_nothing(_: Socket, __: dict[str, Any]) -> None:
    """Takes the call."""


async def hangs_up(socket: Socket, _: dict[str, Any]) -> None:
    await socket.close()


def says(text: str) -> Talk:
    async def talk(socket: Socket, call: dict[str, Any]) -> None:
        await socket.send_str(text.replace("ID", str(call["id"])))

    return talk


async def ask(upstream: WebSocketUpstream, *params: Any, timeout: float = TIMEOUT, repeatable: bool = True) -> Any:
    raw = await upstream.call("m", json.dumps(params).encode(), timeout=timeout, repeatable=repeatable)
    return json.loads(bytes(raw))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_many_calls_share_one_connection_and_answers_find_their_calls_in_any_order() -> None:
    waiting: list[tuple[Socket, dict[str, Any]]] = []

    async def answers_backwards(socket: Socket, call: dict[str, Any]) -> None:
        waiting.append((socket, call))
        if len(waiting) == 50:
            for entry in reversed(waiting):
                await echo(*entry)

    async with node_of(answers_backwards) as (node, upstream):
        answers = await asyncio.gather(*(ask(upstream, number) for number in range(50)))
        assert answers == [[number] for number in range(50)]
        assert node.connections == 1


async def test_a_result_comes_back_byte_for_byte() -> None:
    async with node_of(says('{"jsonrpc":"2.0","id":ID,"result": {"b" : 1.50, "a":"é"} }')) as (_, upstream):
        assert bytes(await upstream.call("m", b"[]", timeout=TIMEOUT)) == '{"b" : 1.50, "a":"é"}'.encode()


async def test_the_error_of_a_node_comes_back() -> None:
    talk = says('{"jsonrpc":"2.0","id":ID,"error":{"code":3,"message":"execution reverted","data":"0x1"}}')
    async with node_of(talk) as (_, upstream):
        with pytest.raises(NodeError, match="execution reverted") as caught:
            await ask(upstream)
        assert bytes(caught.value.raw) == b'{"code":3,"message":"execution reverted","data":"0x1"}'


async def test_calls_in_flight_fail_when_the_connection_ends_and_the_next_call_connects_again() -> None:
    async with node_of(says_nothing) as (node, upstream):
        calls = [asyncio.create_task(ask(upstream, repeatable=False)) for _ in range(5)]
        await until(lambda: len(node.calls) == 5)
        for socket in tuple(node.sockets):
            await socket.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [UpstreamDisconnected] * 5
        node.talk = echo
        assert await ask(upstream, 1) == [1]
        assert node.connections == 2


async def test_a_read_is_sent_again_on_a_new_connection_and_a_transaction_is_not() -> None:
    async with node_of(hangs_up) as (node, upstream):
        with pytest.raises(UpstreamDisconnected):
            await ask(upstream)
        assert len(node.calls) == 2
        with pytest.raises(UpstreamDisconnected):
            await ask(upstream, repeatable=False)
        assert len(node.calls) == 3


async def test_a_stall_ends_with_the_timeout_and_a_late_answer_disturbs_nobody() -> None:
    async with node_of(says_nothing) as (node, upstream):
        with pytest.raises(UpstreamTimeoutError):
            await ask(upstream, timeout=0.1)
        node.talk = echo
        (socket,) = node.sockets
        await echo(socket, node.calls[0])
        assert await ask(upstream, 2) == [2]
        assert node.connections == 1


@pytest.mark.parametrize(
    "noise",
    [
        '{"jsonrpc":"2.0","id":99999,"result":"0xbad"}',
        '{"jsonrpc":"2.0","id":"ID","result":"0xbad"}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}',
        '{"jsonrpc":"2.0","id":' + "9" * 5_000 + ',"result":"0xbad"}',
        '{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"0x1","result":{}}}',
    ],
)
async def test_replies_to_other_calls_and_notifications_are_ignored(noise: str) -> None:
    async def talks_much(socket: Socket, call: dict[str, Any]) -> None:
        await says(noise)(socket, call)
        await echo(socket, call)

    async with node_of(talks_much) as (node, upstream):
        assert await ask(upstream, 7) == [7]
        assert node.connections == 1


@pytest.mark.parametrize("garbage", ["<html>", '{"jsonrpc":"2.0","id":ID,"result":', "[]", '"text"', '{"id":ID}'])
async def test_garbage_ends_the_connection(garbage: str) -> None:
    async with node_of(says(garbage)) as (_, upstream):
        with pytest.raises(UpstreamDisconnected, match="not a JSON-RPC reply"):
            await ask(upstream, repeatable=False)


async def test_a_message_that_is_too_large_is_not_taken() -> None:
    flood = says('{"jsonrpc":"2.0","id":ID,"result":"' + "0" * 100_000 + '"}')
    async with node_of(flood, max_response_bytes=50_000) as (_, upstream):
        with pytest.raises(UpstreamDisconnected, match="too large"):
            await ask(upstream, repeatable=False)


async def test_attempts_to_connect_are_not_made_too_often() -> None:
    async with node_of(echo) as (node, upstream):
        node.refuse = 500
        for _ in range(10):
            with pytest.raises(UpstreamUnreachable):
                await ask(upstream)
        assert len(node.headers) < 4
        node.refuse = 0

        async def works() -> bool:
            try:
                return bool(await ask(upstream, 1))
            except UpstreamUnreachable:
                return False

        while not await works():
            await asyncio.sleep(0.02)


async def test_a_refusal_at_the_door_is_a_refusal_and_headers_are_sent() -> None:
    async with node_of(echo, headers=(("Authorization", "Bearer x"),)) as (node, upstream):
        node.refuse = 401
        with pytest.raises(UpstreamRefused, match="401"):
            await ask(upstream)
        assert node.headers == ["Bearer x"]


async def test_calls_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capstan.chain.websocket._MAX_IN_FLIGHT", 3)
    async with node_of(says_nothing) as (node, upstream):
        calls = [asyncio.create_task(ask(upstream)) for _ in range(3)]
        await until(lambda: len(node.calls) == 3)
        with pytest.raises(UpstreamRefused, match="in flight"):
            await ask(upstream)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        node.talk = echo
        assert await ask(upstream, 1) == [1]


async def test_nobody_there_is_unreachable() -> None:
    async with node_of(echo) as (node, upstream):
        await node.server.close()
        with pytest.raises(UpstreamFailure) as caught:
            await ask(upstream)
        assert isinstance(caught.value, UpstreamUnreachable)
        assert not caught.value.maybe_delivered


async def test_a_pool_uses_both_kinds_and_fails_over_between_them() -> None:
    async with node_of(hangs_up) as (node, _), FaultyNode(results("http")) as other:
        registry = ChainRegistry(open_session(), ManualClock())
        try:
            socket = UpstreamSpec(name="socket", url=node.url)
            registry.replace([network_spec(socket, other.spec("http"))])
            pool = registry.networks()[0].pool
            assert await pool.request("m", []) == "http"
            node.talk = echo
            assert await pool.request("m", [1]) == [1]
        finally:
            await registry.close()
        await until(lambda: not node.sockets)


async def test_a_dropped_upstream_closes_once_its_calls_are_answered() -> None:
    async with node_of(says_nothing) as (node, _):
        registry = ChainRegistry(open_session(), ManualClock())
        try:
            registry.replace([network_spec(UpstreamSpec(name="socket", url=node.url))])
            call = asyncio.create_task(registry.networks()[0].pool.request("m", [1]))
            await until(lambda: len(node.calls) == 1)
            registry.replace([])
            (socket,) = node.sockets
            await echo(socket, node.calls[0])
            assert await call == [1]
            await until(lambda: not node.sockets)
        finally:
            await registry.close()


async def test_a_closed_session_is_unreachable() -> None:
    session = open_session()
    await session.close()
    upstream = WebSocketUpstream(UpstreamSpec(name="x", url="ws://127.0.0.1:9"), "evm", session)
    with pytest.raises(UpstreamUnreachable, match="shutting down"):
        await ask(upstream)


async def test_the_client_is_chosen_by_the_address() -> None:
    async with aiohttp.ClientSession() as session:
        kinds = {
            url: isinstance(client_for(UpstreamSpec(name="x", url=url), "evm", session), WebSocketUpstream)
            for url in ("http://h", "https://h", "ws://h", "wss://h", "WSS://h")
        }
    assert kinds == {"http://h": False, "https://h": False, "ws://h": True, "wss://h": True, "WSS://h": True}
