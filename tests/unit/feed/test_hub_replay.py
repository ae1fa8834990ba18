"""What was told is told as removed, whatever others replay meanwhile; and a replay that cannot go on ends."""

from __future__ import annotations

import asyncio

from capstan.chain.follower.models import Demand
from capstan.chain.heads.source import HeadOptions
from capstan.core.frames import INTERNAL_ERROR
from capstan.feed.hub import Hub
from tests.support.feed import Feed, KeptSocket, block_at, subscribe
from tests.support.stream_nodes import StreamNode, Walker, World, grow, until


def removed_blocks(socket: KeptSocket, subscription: str) -> list[str]:
    return [log["blockHash"] for log in socket.results(subscription) if log["removed"]]


async def test_replayed_logs_are_taken_back_although_another_client_replays_many_older_blocks() -> None:
    feed = Feed()
    feed.stream.apply(*(block_at(number) for number in range(1, 401)))
    socket, session = feed.connect()
    logs = subscribe(session, "logs", {"fromBlock": hex(395)})
    await until(lambda: feed.stream.consumers, what="the end of the first replay")
    other_socket, other = feed.connect()
    older = subscribe(other, "logs", {"fromBlock": "0x1"})
    await until(lambda: len(other_socket.results(older)) > 1, what="the other replay")
    while len(other_socket.results(older)) < 380:
        await asyncio.sleep(0)
    other.end()
    assert len(other_socket.results(older)) < 395, "the test must end it before it comes to the same blocks"
    # The stream itself had applied the blocks when nobody wanted logs.
    feed.stream.blocks[-10:] = [block_at(number, logs=None) for number in range(391, 401)]
    feed.stream.revert(10)
    assert removed_blocks(socket, logs) == [f"0xa{number}" for number in range(400, 394, -1)]


async def test_logs_are_taken_back_after_many_reorganisations_above_their_block() -> None:
    feed = Feed()
    socket, session = feed.connect()
    logs = subscribe(session, "logs", {})
    feed.stream.apply(*(block_at(number) for number in range(60)))
    for branch in "bcdefgh":
        feed.stream.apply(*(block_at(number, branch) for number in range(60, 250)))
        feed.stream.revert(190)
    feed.stream.revert(60)
    assert removed_blocks(socket, logs)[-60:] == [f"0xa{number}" for number in range(59, -1, -1)]


async def test_a_replay_that_meets_a_halt_closes_the_socket() -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = World(node, heads=HeadOptions(finality_tags=False, finality_depth=5))
    feed = Feed()
    feed.hub = Hub(world.follower, lambda: world.tracker.number)
    try:
        await world.poll(times=3)
        world.follower.subscribe(Walker(joins_later=True), Demand.HEADERS)
        await world.settle()
        socket, session = feed.connect()
        subscribe(session, "logs", {"fromBlock": hex(60)})
        node.adopt(grow(chain[:20], 40, branch=1))
        await world.poll(times=6)
        await until(lambda: socket.closed is not None, what="the close")
        assert socket.close_code() == INTERNAL_ERROR
        assert len(feed.hub) == 0
    finally:
        await world.close()
