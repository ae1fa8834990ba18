"""The slots of a Solana network."""

from __future__ import annotations

from capstan.chain.heads.solana import SolanaHeads
from tests.support.head_nodes import HeadNode, Tracked, evm_spec

SPEC = evm_spec(family="solana", block_time_ms=400)


def node(name: str, slot: int) -> HeadNode:
    made = HeadNode(name)
    made.slots = {"processed": slot, "confirmed": slot - 2, "finalized": slot - 32}
    return made


def at(made: HeadNode, slot: int) -> None:
    made.slots = {"processed": slot, "confirmed": slot - 2, "finalized": slot - 32}


async def test_the_head_is_the_highest_processed_slot() -> None:
    first, second = node("a", 1000), node("b", 1003)
    tracked = Tracked(first, second, spec=SPEC)
    await tracked.poll()
    assert await tracked.poll() == 1003
    assert tracked.tracker.latest is None
    assert tracked.tracker.chain is None
    assert first.noted[-1] == 1000
    assert second.noted[-1] == 1003
    assert [params for method, params in first.calls if method == "getSlot"] == [[{"commitment": "processed"}]] * 2


async def test_confirmed_is_safe_and_finalized_is_final() -> None:
    first, second = node("a", 1000), node("b", 1003)
    tracked = Tracked(first, second, spec=SPEC)
    await tracked.poll()
    await tracked.tracker.poll_finality()
    assert (tracked.tracker.safe_number, tracked.tracker.finalized_number) == (998, 968)
    at(first, 900)
    at(second, 900)
    await tracked.tracker.poll_finality()
    assert tracked.tracker.finalized_number == 968


async def test_a_lagging_upstream_never_moves_the_slot_back() -> None:
    ahead, behind = node("a", 1000), node("b", 900)
    tracked = Tracked(ahead, behind, spec=SPEC)
    assert await tracked.poll(after=2.0) == 1000
    ahead.fail()
    for slot in (901, 950, 999):
        at(behind, slot)
        assert await tracked.poll(after=20.0) == 1000
    at(behind, 1001)
    assert await tracked.poll() == 1001


async def test_a_slot_goes_back_only_when_the_upstream_that_announced_it_insists() -> None:
    only = node("a", 1000)
    tracked = Tracked(only, spec=SPEC)
    await tracked.poll()
    at(only, 990)
    assert [await tracked.poll(after=4.0) for _ in range(4)] == [1000, 1000, 1000, 990]


async def test_an_absurd_slot_is_believed_only_when_another_confirms() -> None:
    nodes = [node(name, 1000) for name in "abc"]
    tracked = Tracked(*nodes, spec=SPEC)
    await tracked.poll()
    at(nodes[0], 10**12)
    for _ in range(5):
        assert await tracked.poll() == 1000
    assert 10**12 not in nodes[0].noted
    await tracked.tracker.poll_finality()
    assert tracked.tracker.finalized_number == 968
    at(nodes[1], 10**12 + 1)
    assert await tracked.poll() == 10**12 + 1


async def test_the_block_height_is_kept_beside_the_slot() -> None:
    tracked = Tracked(node("a", 1000), spec=SPEC)
    await tracked.poll()
    await tracked.tracker.poll_finality()
    source = tracked.tracker.source
    assert isinstance(source, SolanaHeads)
    assert source.block_height == 988
