"""Subscriptions shared by many and kept over the death of upstreams. The real node is in tests/e2e."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.models import UpstreamSpec
from capstan.chain.topics import Topics
from capstan.chain.upstream import open_session
from capstan.chain.websocket import WebSocketUpstream
from tests.unit.chain.test_websocket import Socket, SocketNode


class Publisher:
    """What a node does with subscriptions; the test says when it tells something."""

    def __init__(self) -> None:
        self.subscribed: dict[int, tuple[Socket, list[Any]]] = {}
        self.ended: list[int] = []
        # Nothing is answered while it is closed.
        self.gate = asyncio.Event()
        self.gate.set()
        self._ids = itertools.count(7)
        self.node = SocketNode(self._talk)

    async def _talk(self, socket: Socket, call: dict[str, Any]) -> None:
        await asyncio.wait_for(self.gate.wait(), 10)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": call["id"]}
        if call["method"].endswith("Unsubscribe"):
            self.ended.append(call["params"][0])
            self.subscribed.pop(call["params"][0], None)
            reply["result"] = True
        elif call["params"] == ["bad"]:
            reply["error"] = {"code": -32602, "message": "Invalid params"}
        else:
            identifier = next(self._ids)
            self.subscribed[identifier] = (socket, call["params"])
            reply["result"] = identifier
        await socket.send_str(json.dumps(reply))

    async def tell(self, result: Any) -> None:
        """Send to every subscription."""
        for identifier, (socket, _) in list(self.subscribed.items()):
            message = {"jsonrpc": "2.0", "method": "slotNotification"}
            await socket.send_str(json.dumps({**message, "params": {"result": result, "subscription": identifier}}))

    async def die(self) -> None:
        """End every connection."""
        self.subscribed.clear()
        for socket in list(self.node.sockets):
            await socket.close()


@asynccontextmanager
async def topics_on(*publishers: Publisher) -> AsyncIterator[Topics]:
    """The topics of a network with these upstreams."""
    for publisher in publishers:
        await publisher.node.server.start_server(host="127.0.0.1")
    async with open_session() as session, asyncio.timeout(20):
        specs = [UpstreamSpec(name=f"u{n}", url=one.node.url) for n, one in enumerate(publishers)]
        topics = Topics("solana/devnet", [WebSocketUpstream(spec, "solana", session) for spec in specs])
        try:
            yield topics
        finally:
            await topics.close()
            for publisher in publishers:
                await publisher.node.server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def join(topics: Topics, heard: list[bytes], params: bytes = b"[]") -> Any:
    """A member that is open."""
    member = await topics.join("slotSubscribe", params, "slotUnsubscribe", lambda result: heard.append(bytes(result)))
    member.open()
    return member


async def test_many_share_one_subscription_at_the_upstream() -> None:
    """The upstream is told to end it when the last leaves."""
    publisher = Publisher()
    async with topics_on(publisher) as topics:
        heard: list[list[bytes]] = [[], [], []]
        members = [await join(topics, one) for one in heard]
        assert len(publisher.subscribed) == 1
        await publisher.tell(1)
        await until(lambda: heard == [[b"1"]] * 3)
        members[0].leave()
        members[1].leave()
        await publisher.tell(2)
        await until(lambda: heard[2] == [b"1", b"2"])
        assert heard[0] == [b"1"]
        members[2].leave()
        await until(lambda: publisher.ended == [7])
        assert len(topics) == 0


async def test_other_params_are_another_topic() -> None:
    """And other methods, too."""
    publisher = Publisher()
    async with topics_on(publisher) as topics:
        await join(topics, [])
        await join(topics, [], b'["x"]')
        assert [params for _, params in publisher.subscribed.values()] == [[], ["x"]]


async def test_the_death_of_an_upstream_moves_the_topic_to_the_other() -> None:
    """The members notice nothing but what was told in between."""
    first, second = Publisher(), Publisher()
    async with topics_on(first, second) as topics:
        heard: list[bytes] = []
        await join(topics, heard)
        await first.tell("before")
        await until(lambda: len(heard) == 1)
        first.node.refuse = 503
        await first.die()
        await until(lambda: len(second.subscribed) == 1)
        await second.tell("after")
        await until(lambda: heard == [b'"before"', b'"after"'])


async def test_a_topic_comes_back_when_every_upstream_was_away() -> None:
    """It is tried again until it works."""
    only = Publisher()
    async with topics_on(only) as topics:
        heard: list[bytes] = []
        await join(topics, heard)
        only.node.refuse = 503
        await only.die()
        await asyncio.sleep(0.3)
        assert not only.subscribed
        only.node.refuse = 0
        await until(lambda: len(only.subscribed) == 1)
        await only.tell(9)
        await until(lambda: heard == [b"9"])


async def test_what_comes_before_a_member_is_open_is_told_then() -> None:
    """The client must learn the id of its subscription first."""
    publisher = Publisher()
    async with topics_on(publisher) as topics:
        heard: list[bytes] = []
        member = await topics.join("slotSubscribe", b"[]", "slotUnsubscribe", lambda r: heard.append(bytes(r)))
        other: list[bytes] = []
        await join(topics, other)
        await publisher.tell(1)
        await until(lambda: other == [b"1"])
        assert heard == []
        member.open()
        assert heard == [b"1"]


async def test_the_words_of_the_node_reach_whoever_asked() -> None:
    """A refusal is not tried again, and leaves nothing behind."""
    publisher = Publisher()
    async with topics_on(publisher) as topics:
        with pytest.raises(NodeError, match="Invalid params"):
            await join(topics, [], b'["bad"]')
        assert len(topics) == 0


async def test_no_upstream_is_an_error_at_once() -> None:
    """Nobody waits for one that may come back; the next who asks tries again."""
    publisher = Publisher()
    publisher.node.refuse = 503
    async with topics_on(publisher) as topics:
        with pytest.raises(EveryUpstreamFailed):
            await join(topics, [])
        publisher.node.refuse = 0

        async def joined() -> bool:
            try:
                await join(topics, [])
            except EveryUpstreamFailed:
                return False
            return True

        async with asyncio.timeout(10):
            while not await joined():
                await asyncio.sleep(0.05)


async def test_a_client_that_leaves_before_the_node_has_answered_leaves_no_subscription_there() -> None:
    """The id of the subscription comes when nobody listens any more, and is used to end it."""
    publisher = Publisher()
    publisher.gate.clear()
    async with topics_on(publisher) as topics:
        joining = asyncio.create_task(join(topics, []))
        await until(lambda: len(publisher.node.calls) == 1)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert len(topics) == 0
        publisher.gate.set()
        await until(lambda: publisher.ended == [7])
        assert not publisher.subscribed
