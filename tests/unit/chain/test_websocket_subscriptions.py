"""Subscriptions at an upstream over WebSocket, the heads and the pending transactions that come that way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from msgspec import Raw

from capstan.chain.errors import NodeError, UpstreamRefused, UpstreamTimeoutError
from capstan.chain.follower.models import PendingTransaction
from capstan.chain.follower.pending import PendingOptions, PendingTransactions
from capstan.chain.heads.headers import Header
from capstan.chain.heads.listening import HeadListener
from capstan.chain.member import PooledUpstream
from capstan.chain.pool import UpstreamPool
from capstan.chain.websocket import UpstreamSubscription, WebSocketUpstream
from capstan.core.clock import SystemClock
from tests.unit.chain.test_websocket import Socket, SocketNode, node_of, says_nothing, until

HEAD = {"number": "0x5", "hash": "0x" + "ab" * 32, "parentHash": "0x" + "aa" * 32, "timestamp": "0x64"}


def told(subscription: Any, result: Any) -> str:
    params = {"subscription": subscription, "result": result}
    return json.dumps({"jsonrpc": "2.0", "method": "eth_subscription", "params": params})


def answered(call: dict[str, Any], result: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})


async def subscribes(socket: Socket, call: dict[str, Any]) -> None:
    await socket.send_str(answered(call, "0x7" if call["method"] == "eth_subscribe" else True))


async def subscribe(upstream: WebSocketUpstream, heard: list[Any], timeout: float = 5.0) -> UpstreamSubscription:
    def listener(raw: Raw) -> None:
        heard.append(json.loads(bytes(raw)))

    return await upstream.subscribe(
        "eth_subscribe", b'["newHeads"]', listener, unsubscribe="eth_unsubscribe", timeout=timeout
    )


async def test_results_reach_the_listener_of_their_subscription_only() -> None:
    async with node_of(subscribes) as (node, upstream):
        heard: list[Any] = []
        await subscribe(upstream, heard)
        (socket,) = node.sockets
        for text in (told("0x7", 1), told("0x8", 2), told("0x7", 3)):
            await socket.send_str(text)
        await until(lambda: len(heard) == 2)
        assert heard == [1, 3]


async def test_results_that_overtake_the_answer_are_not_lost() -> None:
    async def eager(socket: Socket, call: dict[str, Any]) -> None:
        await socket.send_str(told("0x7", 1))
        await socket.send_str(answered(call, "0x7"))
        await socket.send_str(told("0x7", 2))

    async with node_of(eager) as (_node, upstream):
        heard: list[Any] = []
        await subscribe(upstream, heard)
        await until(lambda: len(heard) == 2)
        assert heard == [1, 2]


async def test_the_end_of_the_connection_ends_the_subscription() -> None:
    async with node_of(subscribes) as (node, upstream):
        subscription = await subscribe(upstream, [])
        (socket,) = node.sockets
        await socket.close()
        await subscription.wait_lost()
        await subscription.close()
        assert node.calls[-1]["method"] == "eth_subscribe", "nobody is there to be told"


async def test_closing_a_subscription_tells_the_upstream() -> None:
    async with node_of(subscribes) as (node, upstream):
        heard: list[Any] = []
        subscription = await subscribe(upstream, heard)
        await subscription.close()
        assert (node.calls[-1]["method"], node.calls[-1]["params"]) == ("eth_unsubscribe", ["0x7"])
        (socket,) = node.sockets
        await socket.send_str(told("0x7", 1))
        await upstream.call("m", b"[]", timeout=30.0)
        assert heard == []


async def test_an_upstream_dropped_while_it_was_subscribed_to_closes_after_the_subscription() -> None:
    async with node_of(subscribes) as (node, upstream):
        upstream.retire()
        subscription = await subscribe(upstream, [])
        await subscription.close()
        assert node.calls[-1]["method"] == "eth_unsubscribe"
        await until(lambda: not node.sockets)


async def test_a_listener_that_raises_does_not_end_the_connection() -> None:
    async with node_of(subscribes) as (node, upstream):

        def broken(_raw: Raw) -> None:
            raise RuntimeError("a mistake")

        await upstream.subscribe("eth_subscribe", b"[]", broken, unsubscribe="eth_unsubscribe", timeout=30.0)
        (socket,) = node.sockets
        await socket.send_str(told("0x7", 1))
        await upstream.call("m", b"[]", timeout=30.0)
        assert node.connections == 1


async def test_an_upstream_that_does_not_answer_or_refuses_is_told_apart() -> None:
    async with node_of(says_nothing) as (_node, upstream):
        with pytest.raises(UpstreamTimeoutError):
            await subscribe(upstream, [], timeout=0.05)

    async def refuses(socket: Socket, call: dict[str, Any]) -> None:
        error = {"code": -32601, "message": "no subscriptions here"}
        await socket.send_str(json.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error}))

    async with node_of(refuses) as (_node, upstream):
        with pytest.raises(NodeError):
            await subscribe(upstream, [])


async def test_heads_are_heard_and_the_subscription_is_made_again() -> None:
    heard: list[Header] = []

    async def observe(header: Header) -> None:
        heard.append(header)

    async with node_of(subscribes) as (node, upstream):
        listener = HeadListener("socket", upstream, observe, lambda: False)
        task = asyncio.create_task(listener.run())
        try:
            await until(lambda: len(node.calls) == 1)
            (socket,) = node.sockets
            await socket.send_str(told("0x7", HEAD))
            await until(lambda: len(heard) == 1)
            assert heard == [Header(5, HEAD["hash"], HEAD["parentHash"], 100)]
            await socket.send_str(told("0x7", {"number": "nonsense"}))
            await socket.close()
            await until(lambda: len(node.calls) == 2)
            (socket,) = node.sockets
            await socket.send_str(told("0x7", {**HEAD, "number": "0x6"}))
            await until(lambda: len(heard) == 2)
            assert heard[1].number == 6
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_nobody_listens_while_the_network_is_idle() -> None:
    async def observe(_header: Header) -> None:
        raise AssertionError("there is nothing to hear")

    async with node_of(subscribes) as (node, upstream):
        idle = False
        listener = HeadListener("socket", upstream, observe, lambda: idle)
        task = asyncio.create_task(listener.run())
        try:
            await until(lambda: len(node.calls) == 1)
            idle = True
            await until(lambda: len(node.calls) == 2)
            assert node.calls[-1]["method"] == "eth_unsubscribe"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Mempool:
    """What a node says about pending transactions."""

    def __init__(self, *, offers_whole: bool = True) -> None:
        self.offers_whole = offers_whole
        self.subscribed: list[list[Any]] = []

    async def talk(self, socket: Socket, call: dict[str, Any]) -> None:
        method, params = call["method"], call["params"]
        if method == "eth_subscribe":
            if len(params) > 1 and not self.offers_whole:
                error = {"code": -32602, "message": "invalid params"}
                await socket.send_str(json.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error}))
                return
            self.subscribed.append(params)
            await socket.send_str(answered(call, "0x7"))
        elif method == "eth_getTransactionByHash":
            await socket.send_str(answered(call, {"hash": params[0], "asked": True}))
        else:
            await socket.send_str(answered(call, True))


def pending_of(upstream: WebSocketUpstream, **options: Any) -> PendingTransactions:
    clock = SystemClock()
    pool = UpstreamPool("ethereum/devnet", [PooledUpstream(upstream, clock)], deadline_seconds=5.0, clock=clock)
    quick = PendingOptions(first_pause=0.01, look_seconds=0.02, **options)
    return PendingTransactions("ethereum/devnet", lambda: pool, quick)


async def only_socket(node: SocketNode) -> Socket:
    (socket,) = node.sockets
    return socket


@pytest.mark.parametrize("offers_whole", [True, False])
async def test_whole_transactions_are_told_where_offered_and_fetched_where_not(offers_whole: bool) -> None:
    mempool = Mempool(offers_whole=offers_whole)
    async with node_of(mempool.talk) as (node, upstream):
        pending = pending_of(upstream)
        hashes: list[PendingTransaction] = []
        whole: list[PendingTransaction] = []
        pending.subscribe(hashes.append, False)
        pending.subscribe(whole.append, True)
        await until(lambda: bool(mempool.subscribed))
        socket = await only_socket(node)
        for name in ("0xAA", "0xbb", "0xaa"):
            await socket.send_str(told("0x7", {"hash": name} if offers_whole else name))
        await until(lambda: len(whole) == 2)
        assert mempool.subscribed == [["newPendingTransactions", True] if offers_whole else ["newPendingTransactions"]]
        assert [item.hash for item in hashes] == ["0xaa", "0xbb"]
        contents = {item.hash: json.loads(bytes(item.transaction or b"null")) for item in whole}
        expected = {"0xaa": {"hash": "0xAA"}, "0xbb": {"hash": "0xbb"}}
        asked = {name: {"hash": name, "asked": True} for name in ("0xaa", "0xbb")}
        assert contents == (expected if offers_whole else asked)
        await pending.close()


async def test_nothing_is_watched_once_nobody_listens_and_memory_is_bounded() -> None:
    mempool = Mempool()
    async with node_of(mempool.talk) as (node, upstream):
        pending = pending_of(upstream, remembered=10)
        heard: list[PendingTransaction] = []
        unsubscribe = pending.subscribe(heard.append, False)
        await until(lambda: bool(mempool.subscribed))
        socket = await only_socket(node)
        for number in range(50):
            await socket.send_str(told("0x7", hex(number)))
        await until(lambda: len(heard) == 50)
        assert len(pending._seen) == 10
        unsubscribe()
        await until(lambda: node.calls[-1]["method"] == "eth_unsubscribe")
        await pending.close()


async def test_the_mempool_is_watched_again_after_the_upstream_died() -> None:
    mempool = Mempool()
    async with node_of(mempool.talk) as (node, upstream):
        pending = pending_of(upstream)
        heard: list[PendingTransaction] = []
        pending.subscribe(heard.append, False)
        await until(lambda: len(mempool.subscribed) == 1)
        await (await only_socket(node)).close()
        await until(lambda: len(mempool.subscribed) == 2)
        await (await only_socket(node)).send_str(told("0x7", "0x1"))
        await until(lambda: len(heard) == 1)
        await pending.close()


async def give_up(node: SocketNode, upstream: WebSocketUpstream, how: str) -> dict[str, Any]:
    """Subscribe, and leave before the node has answered; the call that the node got."""
    if how == "timeout":
        with pytest.raises(UpstreamTimeoutError):
            await subscribe(upstream, [], timeout=0.05)
    else:
        leaving = asyncio.create_task(subscribe(upstream, []))
        await until(lambda: bool(node.calls))
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    await until(lambda: bool(node.calls))
    return node.calls[0]


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
async def test_a_subscription_that_nobody_waited_for_is_ended_when_its_id_comes(how: str) -> None:
    async with node_of(says_nothing) as (node, upstream):
        call = await give_up(node, upstream, how)
        node.talk = subscribes
        await (await only_socket(node)).send_str(answered(call, "0x9"))
        await until(lambda: len(node.calls) == 2)
        assert (node.calls[1]["method"], node.calls[1]["params"]) == ("eth_unsubscribe", ["0x9"])
        # Once: a second reply to the same call is nobody's.
        await (await only_socket(node)).send_str(answered(call, "0x9"))
        await (await subscribe(upstream, [])).close()
        assert [one["method"] for one in node.calls[2:]] == ["eth_subscribe", "eth_unsubscribe"]


async def test_a_late_refusal_leaves_nothing_to_end() -> None:
    async with node_of(says_nothing) as (node, upstream):
        call = await give_up(node, upstream, "timeout")
        node.talk = subscribes
        error = {"code": -32601, "message": "no subscriptions here"}
        await (await only_socket(node)).send_str(json.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error}))
        await upstream.call("m", b"[]", timeout=30.0)
        assert [one["method"] for one in node.calls] == ["eth_subscribe", "m"]


@pytest.mark.parametrize("reply_first", [True, False])
async def test_leaving_in_the_very_moment_of_the_reply_ends_the_subscription(reply_first: bool) -> None:
    async with node_of(says_nothing) as (node, upstream):
        leaving = asyncio.create_task(subscribe(upstream, []))
        await until(lambda: bool(node.calls))
        connection = upstream._connection
        assert connection is not None
        reply = aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, answered(node.calls[0], "0x9"), None)
        # Both before the task that subscribes can run.
        if reply_first:
            connection._take(reply)
            leaving.cancel()
        else:
            leaving.cancel()
            connection._take(reply)
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await until(lambda: len(node.calls) == 2)
        assert (node.calls[1]["method"], node.calls[1]["params"]) == ("eth_unsubscribe", ["0x9"])


async def test_calls_to_subscribe_that_a_node_leaves_unanswered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capstan.chain.websocket._MAX_UNANSWERED", 2)
    async with node_of(says_nothing) as (node, upstream):
        for _ in range(2):
            with pytest.raises(UpstreamTimeoutError):
                await subscribe(upstream, [], timeout=0.05)
        with pytest.raises(UpstreamRefused, match="unanswered"):
            await subscribe(upstream, [])
        node.talk = subscribes
        await (await only_socket(node)).send_str(answered(node.calls[0], "0x9"))
        await until(lambda: len(node.calls) == 3)
        await subscribe(upstream, [])
        # What was left unanswered long ago stands in nobody's way.
        with monkeypatch.context() as patch:
            patch.setattr("capstan.chain.websocket._MAX_UNANSWERED", 1)
            with pytest.raises(UpstreamRefused):
                await subscribe(upstream, [])
            patch.setattr("capstan.chain.websocket._UNANSWERED_SECONDS", 0.0)
            await subscribe(upstream, [])
