"""Whatever several upstreams do, the announced chain keeps its promises: checked on random histories."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.chain.heads.headers import Header
from tests.support.head_nodes import HeadNode, Tracked, chain_of

GENESIS = chain_of(1, 60)


class World:
    """One true chain that grows and forks, and nodes that see it with delay."""

    def __init__(self, random: Random, nodes: int) -> None:
        self.random = random
        self.history = [list(GENESIS)]
        self.nodes = [HeadNode(f"node-{place}", GENESIS) for place in range(nodes)]
        self.branches = 0

    @property
    def truth(self) -> list[Header]:
        return self.history[-1]

    def grow(self) -> None:
        truth = self.truth
        self.history.append(truth + self._blocks(truth[-1], self.random.randint(1, 4)))

    def fork(self) -> None:
        """The chain is reorganised: some blocks go, more come."""
        depth = self.random.randint(1, 32)
        kept = self.truth[:-depth]
        self.history.append(kept + self._blocks(kept[-1], depth + self.random.randint(1, 3)))

    def show(self, node: HeadNode) -> None:
        """The node sees the chain as it is, or as it was a few moments ago."""
        delay = self.random.choice([0, 0, 1, 2])
        node.blocks = list(self.history[max(0, len(self.history) - 1 - delay)])

    def _blocks(self, on: Header, count: int) -> list[Header]:
        self.branches += 1
        return chain_of(on.number + 1, count, branch=self.branches, on=on)


async def play(seed: int, nodes: int, steps: int) -> None:
    random = Random(seed)
    world = World(random, nodes)
    tracked = Tracked(*world.nodes)
    await tracked.poll(after=2.0)
    for _ in range(steps):
        random.choices([world.grow, world.fork], [4, 1])[0]()
        for node in world.nodes:
            node.fault = None
            if random.random() < 0.2:
                node.fail()
            elif random.random() < 0.7:
                world.show(node)
        asked = random.sample(world.nodes, random.randint(1, nodes))
        async with asyncio.timeout(10):
            await asyncio.gather(*(tracked.poll(node, after=random.choice([0.1, 1.0])) for node in asked))
    # When all agree again, the announced chain is the true one, whatever happened before.
    world.grow()
    for node in world.nodes:
        node.fault, node.blocks = None, list(world.truth)
    for _ in range(3):
        await tracked.poll(after=40.0)
    assert tracked.tracker.latest == world.truth[-1]
    chain = tracked.tracker.chain
    assert chain is not None
    assert list(chain.headers) == world.truth[-len(chain) :]
    # `Tracked` has checked every single change; this is the sum of them.
    assert tracked.replayed == world.truth[-len(tracked.replayed) :]
    for change in tracked.changes:
        if not change.reverted and not change.restarted:
            assert change.applied


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 4), steps=st.integers(1, 25))
def test_the_announced_chain_ends_at_the_true_one_and_changes_replay_exactly(seed: int, nodes: int, steps: int) -> None:
    asyncio.run(play(seed, nodes, steps))


@pytest.mark.parametrize("seed", range(20))
async def test_without_forks_the_number_never_goes_back(seed: int) -> None:
    random = Random(seed)
    world = World(random, 3)
    tracked = Tracked(*world.nodes)
    await tracked.poll(after=2.0)
    for _ in range(60):
        world.grow()
        node = random.choice(world.nodes)
        world.show(node)
        if random.random() < 0.1:
            node.blocks = node.blocks[: -random.randint(1, 20)]
        await tracked.poll(node, after=random.random())
    assert tracked.numbers == sorted(tracked.numbers)
    assert not any(change.reverted or change.restarted for change in tracked.changes)
