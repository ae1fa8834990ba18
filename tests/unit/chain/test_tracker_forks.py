"""Forks and finality: when another branch is followed, when the number goes back, and what can never be taken back."""

from __future__ import annotations

import pytest

from capstan.chain.heads.headers import ChainChange, Header
from capstan.chain.heads.source import HeadOptions
from tests.support.head_nodes import HeadNode, Tracked, chain_of, evm_spec

MAIN = chain_of(1, 400)


def main(height: int, *, start: int = 1) -> list[Header]:
    return MAIN[start - 1 : height]


# --- forks


@pytest.mark.parametrize("depth", range(1, 33))
async def test_a_longer_branch_of_the_only_upstream_replaces_the_old_one(depth: int) -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    await tracked.poll()
    node.blocks = main(100 + depth)
    await tracked.poll()
    new = chain_of(101, depth + 1, branch=1, on=MAIN[99])
    node.reorganise(100, new)
    assert await tracked.poll() == 101 + depth
    old = tuple(reversed(main(100 + depth, start=101)))
    assert tracked.changes[-1] == ChainChange(applied=tuple(new), reverted=old)
    assert node.noted[-1] == 101 + depth


async def test_the_same_height_on_another_branch_is_taken_from_the_upstream_that_had_announced() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    await tracked.poll()
    other = chain_of(100, 1, branch=1, on=MAIN[98])
    node.reorganise(99, other)
    assert await tracked.poll() == 100
    assert tracked.tracker.latest == other[0]


async def test_a_lone_upstream_on_a_longer_fork_does_not_drag_the_others_along() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    fork = chain_of(99, 50, branch=1, on=MAIN[97])
    for height in range(101, 110):
        nodes[2].reorganise(98, fork[: height - 98 + 1])
        nodes[0].blocks = nodes[1].blocks = main(height)
        assert await tracked.poll() == height
    assert all(not change.reverted for change in tracked.changes)
    assert nodes[2].noted[-1] == 98, "only up to the fork does it have our chain"


async def test_a_branch_is_taken_as_soon_as_most_upstreams_stand_on_it() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    fork = chain_of(100, 2, branch=1, on=MAIN[98])
    nodes[0].reorganise(99, fork)
    assert await tracked.poll(nodes[0]) == 100, "one of three is not enough"
    assert tracked.tracker.latest == MAIN[99]
    nodes[1].reorganise(99, fork[:1])
    assert await tracked.poll(nodes[1]) == 101, "two of three are, though one has not come as far"
    assert tracked.replayed[-2:] == fork
    assert nodes[2].noted[-1] == 99


async def test_between_two_upstreams_the_branch_that_is_clearly_ahead_wins() -> None:
    nodes = [HeadNode("a", main(100)), HeadNode("b", main(100))]
    tracked = Tracked(*nodes)
    await tracked.poll()
    fork = chain_of(100, 5, branch=1, on=MAIN[98])
    nodes[1].reorganise(99, fork[:2])
    assert await tracked.poll() == 100
    nodes[1].reorganise(99, fork[:3])
    assert await tracked.poll() == 102
    assert tracked.tracker.latest == fork[2]


async def test_a_shorter_branch_is_followed_when_the_only_upstream_insists_on_it() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    await tracked.poll()
    fork = chain_of(97, 2, branch=1, on=MAIN[95])
    node.reorganise(96, fork)
    assert await tracked.poll() == 100
    assert await tracked.poll() == 98
    assert tracked.tracker.latest == fork[1]
    assert node.noted[-1] == 98


async def test_a_shorter_branch_is_not_followed_while_anyone_still_has_ours() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    fork = chain_of(97, 2, branch=1, on=MAIN[95])
    nodes[0].reorganise(96, fork)
    nodes[1].reorganise(96, fork)
    for _ in range(10):
        assert await tracked.poll(after=5.0) == 100
    nodes[2].reorganise(96, fork)
    await tracked.poll(after=5.0)
    assert await tracked.poll(after=5.0) == 98


async def test_a_head_that_is_taken_back_by_its_only_upstream_goes_back_after_a_while() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    await tracked.poll()
    node.blocks = main(95)
    for _ in range(3):
        assert await tracked.poll(after=0.9) == 100
    assert await tracked.poll(after=2.0) == 95
    assert tracked.changes[-1] == ChainChange(reverted=tuple(reversed(main(100, start=96))))


async def test_a_head_is_not_taken_back_while_anyone_says_there_is_a_higher_one() -> None:
    announcer, other = HeadNode("announcer", main(100)), HeadNode("other", main(98))
    tracked = Tracked(announcer, other)
    assert await tracked.poll(after=2.0) == 100
    announcer.blocks = main(95)
    other.serves_blocks, other.blocks = False, main(103)
    for _ in range(10):
        assert await tracked.poll() == 100
        tracked.clock.advance(2.0)


async def test_a_development_chain_may_be_rewritten_at_once_even_below_finality() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node, spec=evm_spec(dev_methods=True), options=HeadOptions(finality_depth=10))
    for height in range(100, 140):
        node.blocks = main(height)
        await tracked.poll()
    await tracked.tracker.poll_finality()
    assert tracked.tracker.finalized_number == 129
    node.blocks = main(135)
    assert await tracked.poll() == 135
    assert tracked.changes[-1].reverted == tuple(reversed(main(139, start=136)))
    node.blocks = main(110)
    assert await tracked.poll() == 110
    assert tracked.changes[-1] == ChainChange(applied=(MAIN[109],), restarted=True)
    assert tracked.tracker.finalized_number == 100
    node.blocks = chain_of(0, 1, branch=5)
    assert await tracked.poll() == 0
    node.blocks = chain_of(0, 2000, branch=5)
    assert await tracked.poll() == 1999


# --- finality


async def test_finality_is_what_two_upstreams_say() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    for height in range(60, 101):
        for node in nodes:
            node.blocks = main(height)
        await tracked.poll()
    nodes[0].finalized, nodes[0].safe = MAIN[99], MAIN[99]
    nodes[1].finalized, nodes[1].safe = MAIN[69], MAIN[79]
    nodes[2].finalized, nodes[2].safe = MAIN[64], MAIN[74]
    await tracked.tracker.poll_finality()
    assert tracked.tracker.finalized_number == 70
    assert tracked.tracker.safe_number == 80
    nodes[0].finalized = nodes[1].finalized = MAIN[61]
    await tracked.tracker.poll_finality()
    assert tracked.tracker.finalized_number == 70


async def test_a_reorganisation_takes_safety_back_until_it_is_said_anew() -> None:
    node = HeadNode("a", main(90))
    tracked = Tracked(node)
    await tracked.poll()
    node.blocks, node.finalized, node.safe = main(100), MAIN[89], MAIN[97]
    await tracked.poll()
    await tracked.tracker.poll_finality()
    assert tracked.tracker.safe_number == 98
    node.reorganise(95, chain_of(96, 7, branch=1, on=MAIN[94]))
    await tracked.poll()
    assert tracked.tracker.safe_number == 95
    assert tracked.tracker.finalized_number == 90


async def test_a_final_block_that_is_not_on_our_chain_is_not_final() -> None:
    node = HeadNode("a", main(90))
    tracked = Tracked(node)
    await tracked.poll()
    node.blocks = main(100)
    await tracked.poll()
    for wrong in (chain_of(95, 1, branch=4)[0], MAIN[149]):
        node.finalized = wrong
        await tracked.tracker.poll_finality()
        assert tracked.tracker.finalized_number is None


async def test_where_no_upstream_knows_the_tag_finality_is_a_depth() -> None:
    node = HeadNode("a", main(100))
    node.knows_tags = False
    tracked = Tracked(node, options=HeadOptions(finality_depth=30))
    await tracked.poll()
    seen = [tracked.tracker.finalized_number]
    await tracked.tracker.poll_finality()
    seen.append(tracked.tracker.finalized_number)
    node.blocks = main(105)
    await tracked.poll()
    await tracked.tracker.poll_finality()
    assert [*seen, tracked.tracker.finalized_number] == [None, 70, 75]
    assert sum(1 for _, params in node.calls if params[0] == "finalized") == 1, "it is not asked again and again"


async def test_a_branch_below_finality_is_refused_loudly_and_the_head_stays() -> None:
    nodes = [HeadNode(name, main(90)) for name in "ab"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    for node in nodes:
        node.blocks, node.finalized = main(100), MAIN[94]
    await tracked.poll()
    await tracked.tracker.poll_finality()
    assert tracked.tracker.finalized_number == 95
    for node in nodes:
        node.reorganise(93, chain_of(94, 20, branch=2, on=MAIN[92]))
    for _ in range(5):
        assert await tracked.poll() == 100
    assert tracked.tracker.fault is not None
    assert "block 95 is final" in tracked.tracker.fault
    for node in nodes:
        node.blocks = main(101)
    assert await tracked.poll() == 101
    assert tracked.tracker.fault is None
