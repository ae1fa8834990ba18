"""The network side, on real sockets: HTTP rules, bounds, slow clients, ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from capstan.devnet.solana.server import NodeServer, PortUnavailable, bind_ports
from capstan.devnet.solana.settings import NodeSettings

SECONDS = 10.0


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    """A node with its clock running, and a client. Everything inside has a time limit."""
    node = NodeServer(NodeSettings(**{"slot_milliseconds": 50} | settings))
    async with asyncio.timeout(SECONDS), node.serving() as port:
        clock = asyncio.create_task(node.keep_time())
        try:
            async with aiohttp.ClientSession() as client:
                yield client, port
        finally:
            clock.cancel()


def request(method: str, *params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}


async def test_health_is_also_a_plain_page() -> None:
    async with serving() as (client, port):
        url = f"http://127.0.0.1:{port}"
        async with client.post(url, json=request("getHealth")) as reply:
            assert await reply.json() == {"jsonrpc": "2.0", "result": "ok", "id": 1}
            assert reply.headers["Access-Control-Allow-Origin"] == "*"
        async with client.get(f"{url}/health") as reply:
            assert await reply.text() == "ok"


async def test_only_json_is_taken_and_only_so_much() -> None:
    async with serving(max_body_bytes=1_000) as (client, port):
        url = f"http://127.0.0.1:{port}"
        async with client.post(url, data=b"x", headers={"Content-Type": "text/plain"}) as reply:
            assert reply.status == 415
        async with client.post(url, json=["x" * 2_000]) as reply:
            assert reply.status == 413
        async with client.get(url) as reply:
            assert reply.status == 405
        async with client.post(url, json={"jsonrpc": "2.0", "method": "getHealth"}) as reply:
            assert (reply.status, await reply.read()) == (200, b"")


@pytest.mark.parametrize("offset", [0, 1])
async def test_subscriptions_work_on_both_ports(offset: int) -> None:
    async with serving() as (client, port), client.ws_connect(f"ws://127.0.0.1:{port + offset}") as ws:
        await ws.send_json(request("slotSubscribe"))
        reply = await ws.receive_json()
        first, second = await ws.receive_json(), await ws.receive_json()
        assert first["params"]["subscription"] == reply["result"]
        assert second["params"]["result"]["slot"] == first["params"]["result"]["slot"] + 1


async def test_requests_are_not_served_on_the_subscription_port() -> None:
    async with (
        serving() as (client, port),
        client.post(f"http://127.0.0.1:{port + 1}", json=request("getHealth")) as reply,
    ):
        assert reply.status == 405


async def test_a_client_that_falls_behind_is_disconnected() -> None:
    async with serving(max_queue_per_socket=8) as (client, port):
        async with client.ws_connect(f"ws://127.0.0.1:{port}") as ws:
            # A slot is announced to all subscriptions at once: the ninth has no place in the queue.
            for _ in range(9):
                await ws.send_json(request("slotSubscribe"))
            while (message := await ws.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert message.data == aiohttp.WSCloseCode.TRY_AGAIN_LATER
        async with client.post(f"http://127.0.0.1:{port}", json=request("getHealth")) as reply:
            assert reply.status == 200


async def test_sockets_are_bounded_and_freed() -> None:
    async with serving(max_sockets=1) as (client, port):
        url = f"ws://127.0.0.1:{port}"
        async with client.ws_connect(url):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(url)
            assert refused.value.status == 503
        while True:  # the server notices the close a moment later; `serving` limits the wait
            try:
                async with client.ws_connect(url) as ws:
                    await ws.send_json(request("getVersion"))
                    assert "result" in await ws.receive_json()
                return
            except aiohttp.WSServerHandshakeError:
                await asyncio.sleep(0.01)


async def test_an_oversized_socket_message_closes_the_socket() -> None:
    async with (
        serving(max_socket_message_bytes=1_000) as (client, port),
        client.ws_connect(f"ws://127.0.0.1:{port}") as ws,
    ):
        await ws.send_str("x" * 2_000)
        message = await ws.receive()
        assert message.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


async def test_stopping_tells_the_sockets() -> None:
    async with aiohttp.ClientSession() as client:
        async with serving() as (_, port):
            ws = await client.ws_connect(f"ws://127.0.0.1:{port}")
        message = await ws.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.data == aiohttp.WSCloseCode.GOING_AWAY
        await ws.close()


def test_a_taken_port_is_named() -> None:
    # The port before it is free: otherwise that one would be named.
    before, taken = bind_ports("127.0.0.1", 0)
    before.close()
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=f"cannot listen on 127.0.0.1 port {port}"):
            bind_ports("127.0.0.1", port)
        with pytest.raises(PortUnavailable, match=f"port {port}"):
            bind_ports("127.0.0.1", port - 1)


def test_port_zero_finds_two_neighbours() -> None:
    first, second = bind_ports("127.0.0.1", 0)
    with first, second:
        assert second.getsockname()[1] == first.getsockname()[1] + 1
