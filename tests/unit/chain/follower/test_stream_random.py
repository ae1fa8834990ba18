"""Whatever the upstreams do, the stream is a valid walk that ends at the true chain: checked on random histories.

Reorganisations of depth 1 to 20, gaps, upstreams that die, lag, forget blocks that are gone, tell content late or tell
logs incompletely, and consumers that come and go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.chain.follower.models import Demand
from capstan.chain.follower.reader import ReaderOptions
from capstan.chain.heads.source import HeadOptions
from tests.support.stream_nodes import Made, StreamNode, Walker, World, grow

START = grow([], 40)


class Histories:
    """One true chain that grows and forks, and nodes that see it as it is or as it was."""

    def __init__(self, random: Random, nodes: int) -> None:
        self.random = random
        self.history = [START]
        self.nodes = [StreamNode(f"node-{place}", START) for place in range(nodes)]
        self.branches = 0

    @property
    def truth(self) -> list[Made]:
        return self.history[-1]

    def grow(self) -> None:
        self.history.append(grow(self.truth, self.random.choice([1, 1, 1, 3, 12]), branch=self.branches))

    def fork(self) -> None:
        depth = self.random.randint(1, 20)
        self.branches += 1
        kept = self.truth[:-depth]
        self.history.append(grow(kept, depth + self.random.randint(1, 3), branch=self.branches))

    def disturb(self, node: StreamNode) -> None:
        node.heal()
        fate = self.random.random()
        if fate < 0.15:
            node.fail()
        elif fate < 0.3:
            node.late = self.random.randint(1, 12)
        elif fate < 0.45:
            node.forgets_logs = self.random.randint(1, 12)
        if self.random.random() < 0.75:
            delay = self.random.choice([0, 0, 0, 1, 2])
            node.adopt(self.history[max(0, len(self.history) - 1 - delay)])
        if self.random.random() < 0.3:
            node.forget_orphans()


async def play(seed: int, nodes: int, steps: int, narrow: bool) -> None:
    random = Random(seed)
    histories = Histories(random, nodes)
    heads = HeadOptions(finality_tags=False, window=48, gap_limit=8 if narrow else 64, backfill=8)
    world = World(*histories.nodes, heads=heads, reading=ReaderOptions(pause=0.0, rounds=2))
    try:
        await world.poll(after=2.0)
        first, others, replays = Walker(joins_later=True), list[Walker](), list[Walker]()
        following: list[asyncio.Task[Callable[[], None]]] = []
        world.follower.subscribe(first, Demand.LOGS)
        for _ in range(steps):
            random.choices([histories.grow, histories.fork], [4, 1])[0]()
            for node in histories.nodes:
                histories.disturb(node)
            await world.poll(after=random.choice([0.1, 1.0, 1.0, 30.0]))
            for _ in range(random.choice([0, 0, 5, 40])):
                await asyncio.sleep(0)
            if random.random() < 0.2:
                others.append(Walker(joins_later=True))
                world.follower.subscribe(others[-1], random.choice([Demand.HEADERS, Demand.FULL]))
            if random.random() < 0.15:
                replays.append(Walker(joins_later=True))
                start = random.randint(20, len(histories.truth))
                following.append(asyncio.create_task(world.follower.replay(start, replays[-1], Demand.LOGS)))
        for node in histories.nodes:
            node.heal()
            node.adopt(histories.truth)
        histories.grow()
        for node in histories.nodes:
            node.adopt(histories.truth)
        await world.poll(times=3, after=40.0)
        await world.settle()
        check(first, histories.truth)
        for other in others:
            assert other.hashes == [made.hash for made in histories.truth[-len(other.blocks) :]] or not other.blocks
        async with asyncio.timeout(10):
            await asyncio.gather(*following)
        for replay in replays:
            if replay.blocks:
                check(replay, histories.truth)
        assert world.follower.halted is None
    finally:
        await world.close()


def check(walker: Walker, truth: list[Made]) -> None:
    """`Walker` has checked every single delta; this is the sum of them."""
    assert walker.blocks[-1].hash == truth[-1].hash
    told = truth[walker.blocks[0].number :]
    assert walker.hashes == [made.hash for made in told]
    for block, made in zip(walker.blocks, told, strict=True):
        assert [msgspec.json.decode(log.raw) for log in block.logs or ()] == made.logs


@pytest.mark.parametrize(("seed", "nodes", "steps"), [(653, 4, 38), (1196, 2, 17)])
async def test_histories_that_once_went_wrong(seed: int, nodes: int, steps: int) -> None:
    await play(seed, nodes, steps, narrow=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 4), steps=st.integers(1, 25), narrow=st.booleans())
def test_the_stream_is_a_valid_walk_that_ends_at_the_true_chain(
    seed: int, nodes: int, steps: int, narrow: bool
) -> None:
    asyncio.run(play(seed, nodes, steps, narrow))
