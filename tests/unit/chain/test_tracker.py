"""Which head is announced: the first one, races, lag, lies and gaps, with nodes that behave as told."""

from __future__ import annotations

import asyncio

import pytest

from capstan.chain.heads.headers import ChainChange, Header
from capstan.chain.heads.source import HeadOptions
from tests.support.head_nodes import HeadNode, Tracked, chain_of, evm_spec

MAIN = chain_of(1, 400)


def main(height: int, *, start: int = 1) -> list[Header]:
    return MAIN[start - 1 : height]


# --- the first head


async def test_the_first_head_of_a_single_upstream_is_announced_at_once() -> None:
    node = HeadNode("a", main(10))
    tracked = Tracked(node)
    assert tracked.tracker.number is None
    assert tracked.tracker.age_seconds is None
    assert await tracked.poll() == 10
    assert tracked.tracker.latest == MAIN[9]
    assert tracked.changes == [ChainChange(applied=(MAIN[9],))]
    assert node.noted == [10]


async def test_the_first_head_is_one_that_two_upstreams_are_near_to() -> None:
    liar = HeadNode("liar", chain_of(1_000_000, 1, branch=9))
    tracked = Tracked(liar, HeadNode("b", main(10)), HeadNode("c", main(11)))
    assert await tracked.poll(liar) is None
    assert await tracked.poll(tracked.nodes[1]) is None
    assert await tracked.poll(tracked.nodes[2]) == 11
    assert await tracked.poll() == 11
    assert liar.noted == []


async def test_upstreams_that_do_not_answer_hold_up_the_first_head_for_a_moment_only() -> None:
    quick, slow = HeadNode("quick", main(10)), HeadNode("slow")
    slow.stall()
    tracked = Tracked(quick, slow, options=HeadOptions(startup_seconds=1.0))
    assert await tracked.poll(quick) is None
    assert await tracked.poll(quick, after=1.0) == 10


async def test_upstreams_that_fail_do_not_hold_up_the_first_head() -> None:
    quick, dead = HeadNode("quick", main(10)), HeadNode("dead")
    dead.fail()
    tracked = Tracked(quick, dead)
    await tracked.poll(dead)
    assert await tracked.poll(quick) == 10


async def test_a_head_that_nobody_confirms_is_given_up_when_two_others_agree_far_below() -> None:
    liar, first, second = HeadNode("liar", chain_of(9_000, 1, branch=9)), HeadNode("b"), HeadNode("c")
    first.stall()
    second.stall()
    tracked = Tracked(liar, first, second)
    assert await tracked.poll(liar, after=2.0) == 9_000
    first.blocks, second.blocks = main(10), main(10)
    first.resume()
    second.resume()
    assert await tracked.poll(first) == 9_000
    assert await tracked.poll(second) == 10
    assert tracked.changes[-1] == ChainChange(applied=(MAIN[9],), restarted=True)
    # From now on the two decide, and the liar is a lone one far ahead.
    assert await tracked.poll() == 10
    assert tracked.nodes[1].noted[-1] == 10


# --- longer


async def test_blocks_are_applied_one_by_one_in_order() -> None:
    node = HeadNode("a", main(10))
    tracked = Tracked(node)
    for height in range(10, 20):
        node.blocks = main(height)
        assert await tracked.poll() == height
    assert tracked.replayed == main(19, start=10)
    assert node.count("eth_getBlockByHash") == 0


@pytest.mark.parametrize("gap", [2, 3, 9, 40, 128])
async def test_missing_blocks_are_fetched_and_linked(gap: int) -> None:
    node = HeadNode("a", main(10))
    tracked = Tracked(node, options=HeadOptions(backfill=0))
    await tracked.poll()
    node.blocks = main(10 + gap)
    assert await tracked.poll() == 10 + gap
    assert tracked.changes[-1] == ChainChange(applied=tuple(main(10 + gap, start=11)))
    # Asked for once each: the head itself, and what lies between.
    assert len(node.calls) == 2 + gap - 1


async def test_the_faster_upstream_wins_and_the_slower_one_changes_nothing() -> None:
    fast, slow = HeadNode("fast", main(10)), HeadNode("slow", main(10))
    tracked = Tracked(fast, slow)
    await tracked.poll()
    for height in range(11, 15):
        fast.blocks = main(height)
        assert await tracked.poll(fast) == height
        assert await tracked.poll(slow) == height
        slow.blocks = main(height)
        assert await tracked.poll(slow) == height
    assert tracked.replayed == main(14, start=10)
    assert slow.noted[-2:] == [13, 14]


async def test_a_lagging_upstream_never_moves_the_head_back() -> None:
    ahead, behind = HeadNode("ahead", main(100)), HeadNode("behind", main(80))
    tracked = Tracked(ahead, behind)
    assert await tracked.poll(after=2.0) == 100
    ahead.fail()
    for _ in range(50):
        assert await tracked.poll(after=10.0) == 100
    assert behind.noted[-1] == 80
    assert tracked.numbers == [100]


async def test_an_upstream_behind_a_load_balancer_may_flicker() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    await tracked.poll()
    for height in (98, 98, 100, 97, 100, 99, 99, 101, 100, 99, 101):
        node.blocks = main(height)
        await tracked.poll(after=1.0)
    assert tracked.numbers == [100, 101]


# --- lies


async def test_an_upstream_that_jumps_absurdly_ahead_alone_is_distrusted_until_another_confirms() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    far = chain_of(5_000, 2, branch=9)
    nodes[2].blocks = far[:1]
    for _ in range(10):
        assert await tracked.poll() == 100
    assert nodes[2].noted == [100]
    nodes[1].blocks = far
    assert await tracked.poll() == 5_001
    assert tracked.changes[-1] == ChainChange(applied=(far[1],), restarted=True)


async def test_an_upstream_that_is_ahead_alone_is_believed_when_its_blocks_link() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    nodes[2].serves_blocks = False
    nodes[2].blocks = main(180)
    for _ in range(5):
        assert await tracked.poll() == 100
    nodes[2].serves_blocks = True
    assert await tracked.poll(after=40.0) == 180
    assert tracked.replayed == main(180, start=100)


async def test_a_head_whose_parents_do_not_exist_is_never_announced() -> None:
    nodes = [HeadNode(name, main(100)) for name in "ab"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    nodes[1].blocks = chain_of(102, 2, branch=9, on=chain_of(101, 1, branch=9)[0])[1:]
    for height in range(100, 120):
        nodes[0].blocks = main(height)
        assert await tracked.poll(after=1.0) == height
    assert nodes[1].count("eth_getBlockByHash") < 10, "it is asked ever less often"


async def test_a_time_away_explains_a_jump() -> None:
    nodes = [HeadNode(name, main(100)) for name in "ab"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    for node in nodes:
        node.blocks = main(300)
    assert await tracked.poll(nodes[0], after=150.0) == 300
    assert tracked.changes[-1] == ChainChange(applied=(MAIN[299],), restarted=True)


async def test_the_only_upstream_is_followed_when_it_insists_on_an_unlinked_head() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    await tracked.poll()
    node.blocks = chain_of(9_000, 1, branch=3)
    assert [await tracked.poll() for _ in range(3)] == [100, 100, 9_000]


async def test_a_true_hash_with_an_invented_parent_does_not_stay_in_the_way() -> None:
    honest, liar = HeadNode("honest", main(100)), HeadNode("liar", main(100))
    tracked = Tracked(honest, liar)
    await tracked.poll()
    real = MAIN[101]
    liar.blocks = [*main(100), Header(102, real.hash, "0x" + "77" * 32, real.timestamp)]
    await tracked.poll(liar)
    honest.blocks = main(102)
    assert await tracked.poll(honest) == 102
    assert tracked.replayed == main(102, start=100)


async def test_an_invented_header_that_was_fetched_is_not_held_against_others() -> None:
    honest, liar = HeadNode("honest", main(100)), HeadNode("liar", main(100))
    tracked = Tracked(honest, liar)
    await tracked.poll()
    real = MAIN[101]
    liar.blocks = [*main(100), Header(102, real.hash, "0x" + "77" * 32, real.timestamp), MAIN[102]]
    assert await tracked.poll(liar) == 100
    honest.blocks = main(103)
    assert await tracked.poll(honest) == 103
    assert tracked.replayed == main(103, start=100)


async def test_headers_below_the_first_head_are_fetched_but_not_announced() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node)
    for _ in range(12):
        await tracked.poll()
    chain = tracked.tracker.chain
    assert chain is not None
    assert chain.headers == tuple(main(100, start=100 - len(chain) + 1))
    assert len(chain) >= 64
    assert node.count("eth_getBlockByNumber") == 12 + len(chain) - 1
    assert tracked.replayed == [MAIN[99]]


async def test_invented_headers_are_not_put_below_the_first_head() -> None:
    node = HeadNode("a", [*chain_of(1, 99, branch=7), MAIN[99]])
    tracked = Tracked(node)
    for _ in range(3):
        await tracked.poll()
    chain = tracked.tracker.chain
    assert chain is not None
    assert chain.headers == (MAIN[99],)


# --- races


async def test_an_answer_that_was_overtaken_is_not_taken() -> None:
    node = HeadNode("a", main(100))
    tracked = Tracked(node, spec=evm_spec(dev_methods=True))
    await tracked.poll()
    node.stall()
    before = len(node.calls)
    late = asyncio.create_task(tracked.tracker.poll_one(node))
    async with asyncio.timeout(10):
        while len(node.calls) == before:
            await asyncio.sleep(0)
        await tracked.tracker.observe(node, MAIN[100])
        assert tracked.tracker.number == 101
        node.resume()
        await late
    assert tracked.tracker.number == 101


async def test_an_upstream_that_stalls_while_it_is_asked_for_parents_delays_nobody() -> None:
    stalling, other = HeadNode("stalling", main(100)), HeadNode("other", main(100))
    tracked = Tracked(stalling, other)
    await tracked.poll()
    stalling.stall()
    walk = asyncio.create_task(tracked.tracker.observe(stalling, MAIN[104]))
    async with asyncio.timeout(10):
        while stalling.count("eth_getBlockByHash") == 0:
            await asyncio.sleep(0)
        for height in (103, 106):
            other.blocks = main(height)
            assert await tracked.poll(other) == height
        stalling.blocks = main(105)
        stalling.resume()
        await walk
    assert tracked.tracker.number == 106
    assert tracked.replayed == main(106, start=100)


async def test_an_upstream_that_was_removed_has_no_say() -> None:
    nodes = [HeadNode(name, main(100)) for name in "abc"]
    tracked = Tracked(*nodes)
    await tracked.poll()
    tracked.tracker.update(tracked.tracker.spec, nodes[:1])
    nodes[1].blocks = nodes[2].blocks = main(101)
    await tracked.poll(nodes[1])
    await tracked.poll(nodes[2])
    assert tracked.tracker.number == 100
