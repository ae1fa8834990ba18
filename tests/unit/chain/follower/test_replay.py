"""A replay of older blocks that ends in the live stream."""

from __future__ import annotations

import asyncio

import pytest

from capstan.chain.follower.follower import FollowerOptions
from capstan.chain.follower.models import Demand, Reverted
from capstan.chain.follower.replay import ReplayHalted, ReplayTooLong
from capstan.chain.heads.source import HeadOptions
from tests.support.stream_nodes import StreamNode, Walker, grow, until
from tests.unit.chain.follower.conftest import Build, same


async def test_a_replay_ends_in_the_live_stream_without_gap_or_repetition(build: Build) -> None:
    chain = grow([], 60)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    world.follower.subscribe(Walker(), Demand.HEADERS)
    await world.settle()
    walker = Walker()
    steps = 0

    async def pace() -> None:
        nonlocal chain, steps
        steps += 1
        if steps % 5 == 0:
            chain = grow(chain, 1)
            node.adopt(chain)
            await world.poll()

    unsubscribe = await asyncio.wait_for(world.follower.replay(10, walker, Demand.LOGS, pace=pace), 20)
    assert walker.blocks[-1].hash == world.follower.position.hash if world.follower.position else False
    chain = grow(chain, 5)
    node.adopt(chain)
    await world.settle()
    unsubscribe()
    assert walker.hashes == [made.hash for made in chain[10:]]
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[10:], strict=True))


async def test_reorganisations_during_a_replay_are_told(build: Build) -> None:
    chain = grow([], 60)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    world.follower.subscribe(Walker(), Demand.HEADERS)
    chain = grow(chain, 10)
    node.adopt(chain)
    await world.settle()
    walker = Walker()
    branch = 0

    async def pace() -> None:
        nonlocal chain, branch
        if len(walker.blocks) in (52, 55, 57) and branch < 6:
            branch += 1
            chain = grow(chain[: 61 + branch], 12, branch=branch)
            node.adopt(chain)
            await world.settle()

    await asyncio.wait_for(world.follower.replay(10, walker, Demand.LOGS, pace=pace), 20)
    chain = grow(chain, 2)
    node.adopt(chain)
    await world.settle()
    assert branch
    assert walker.hashes == [made.hash for made in chain[10:]]


async def test_what_a_replay_has_told_is_reverted_however_old_it_is(build: Build) -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll(times=6)
    walker = Walker()
    await asyncio.wait_for(world.follower.replay(20, walker, Demand.LOGS), 30)
    read = [await world.follower.block(number, Demand.LOGS) for number in (15, 16)]
    chain = grow(chain[:30], 15, branch=1)
    node.adopt(chain)
    node.forget_orphans()
    await world.settle()
    assert None not in read
    assert walker.hashes == [made.hash for made in chain[20:]]
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[20:], strict=True))
    reverted = [delta.block for delta in walker.deltas if isinstance(delta, Reverted)]
    assert [block.number for block in reverted] == list(range(39, 29, -1))
    assert all(block.logs is not None for block in reverted)


async def test_a_replay_from_the_next_block_is_live_at_once(build: Build) -> None:
    chain = grow([], 20)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    walker = Walker()
    await asyncio.wait_for(world.follower.replay(20, walker, Demand.LOGS), 30)
    chain = grow(chain, 3)
    node.adopt(chain)
    await world.settle()
    assert walker.hashes == [made.hash for made in chain[20:]]


async def test_a_replay_from_too_far_back_is_refused(build: Build) -> None:
    node = StreamNode("one", grow([], 200))
    world = build(node, options=FollowerOptions(replay_blocks=50, linger_seconds=0.0))
    await world.poll()
    with pytest.raises(ReplayTooLong) as refused:
        await world.follower.replay(100, Walker(), Demand.LOGS)
    assert refused.value.first == 149


async def test_what_a_replay_has_told_is_reverted_although_others_read_many_older_blocks(build: Build) -> None:
    chain = grow([], 80)
    node = StreamNode("one", chain)
    world = build(node, options=FollowerOptions(window=16, linger_seconds=0.0, retry_seconds=0.005))
    await world.poll(times=6)
    walker = Walker()
    await asyncio.wait_for(world.follower.replay(66, walker, Demand.LOGS), 30)
    for number in range(10, 60):
        assert await world.follower.block(number, Demand.LOGS) is not None
    chain = grow(chain[:68], 15, branch=1)
    node.adopt(chain)
    node.forget_orphans()
    await world.settle()
    assert walker.hashes == [made.hash for made in chain[66:]]
    assert len([delta for delta in walker.deltas if isinstance(delta, Reverted)]) == 12


async def test_a_replay_that_would_have_to_take_back_a_final_block_fails(build: Build) -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = build(node, heads=HeadOptions(finality_tags=False, finality_depth=5))
    await world.poll(times=3)
    world.follower.subscribe(Walker(joins_later=True), Demand.HEADERS)
    await world.settle()
    walker = Walker()

    async def pace() -> None:
        if len(walker.blocks) != 38:
            return
        # The replay stands on what the stream takes back; before it goes on, the other branch becomes final.
        branch = grow(chain[:36], 5, branch=1)
        node.adopt(branch)
        await world.settle()
        node.adopt(grow(branch, 20, branch=1))
        await world.settle()

    with pytest.raises(ReplayHalted, match="final"):
        await asyncio.wait_for(world.follower.replay(0, walker, Demand.LOGS, pace=pace), 30)


async def test_a_replay_does_not_wait_for_a_stream_that_has_stopped(build: Build) -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = build(node, heads=HeadOptions(finality_tags=False, finality_depth=5))
    await world.poll(times=3)
    world.follower.subscribe(Walker(joins_later=True), Demand.HEADERS)
    await world.settle()
    replay = asyncio.create_task(world.follower.replay(60, Walker(), Demand.LOGS))
    node.adopt(grow(chain[:20], 40, branch=1))
    await world.poll(times=6)
    await until(lambda: world.follower.halted is not None, what="the halt")
    with pytest.raises(ReplayHalted, match="final"):
        await asyncio.wait_for(replay, 30)
