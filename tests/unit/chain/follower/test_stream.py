"""The stream over scripted nodes: order, content, what is fetched, replays, halts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from capstan.chain.follower.follower import FollowerOptions
from capstan.chain.follower.models import Applied, Block, Delta, Demand, Reverted
from capstan.chain.follower.reader import ReaderOptions
from capstan.chain.heads.source import HeadOptions
from tests.support.stream_nodes import StreamNode, Walker, grow, until
from tests.unit.chain.follower.conftest import Build, same


async def test_blocks_come_in_order_with_their_logs(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    for _ in range(12):
        chain = grow(chain, 1)
        node.adopt(chain)
        await world.settle()
    assert walker.hashes == [made.hash for made in chain[5:]]
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[5:], strict=True))
    assert world.follower.head is walker.blocks[-1]


async def test_the_header_is_that_of_new_heads(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.HEADERS)
    chain = grow(chain, 1)
    node.adopt(chain)
    await world.settle()
    header = msgspec.json.decode(walker.blocks[0].header)
    expected = chain[5].json(full=False)
    for name in ("transactions", "uncles", "withdrawals", "size", "totalDifficulty"):
        del expected[name]
    assert header == expected
    assert walker.blocks[0].logs is None
    assert walker.blocks[0].transactions is None


async def test_nothing_is_fetched_while_nobody_has_subscribed(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    world = build(node)
    for _ in range(5):
        chain = grow(chain, 1)
        node.adopt(chain)
        await world.poll()
    assert world.follower.position is None
    unsubscribe = world.follower.subscribe(Walker(), Demand.LOGS)
    chain = grow(chain, 3)
    node.adopt(chain)
    await world.settle()
    unsubscribe()
    assert world.follower.position is None
    asked = node.count("eth_getLogs")
    chain = grow(chain, 4)
    node.adopt(chain)
    await world.poll(times=3)
    assert node.count("eth_getLogs") == asked


async def test_only_what_is_demanded_is_fetched(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    world.follower.subscribe(Walker(), Demand.HEADERS)
    chain = grow(chain, 6)
    node.adopt(chain)
    await world.settle()
    assert node.count("eth_getLogs") == 0
    logs, full = Walker(), Walker()
    world.follower.subscribe(logs, Demand.LOGS)
    chain = grow(chain, 6)
    node.adopt(chain)
    await world.settle()
    assert node.count("eth_getLogs") > 0
    assert node.count("eth_getBlockReceipts") == 0
    world.follower.subscribe(full, Demand.FULL)
    chain = grow(chain, 6)
    node.adopt(chain)
    await world.settle()
    assert [len(block.receipts or ()) for block in full.blocks] == [len(made.transactions) for made in chain[-6:]]
    assert [len(block.transactions or ()) for block in full.blocks] == [len(made.transactions) for made in chain[-6:]]
    assert all(same(block, made) for block, made in zip(logs.blocks, chain[-12:], strict=True))


@pytest.mark.parametrize(
    ("lacks", "demand"),
    [
        ({"eth_getBlockReceipts"}, Demand.FULL),
        ({"eth_getLogs"}, Demand.LOGS),
        ({"eth_getLogs", "eth_getBlockReceipts"}, Demand.LOGS),
        ({"eth_getLogs", "eth_getBlockReceipts"}, Demand.FULL),
    ],
)
async def test_another_way_to_the_logs_is_learned_and_remembered(lacks: set[str], demand: Demand, build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    node.lacks = lacks
    world = build(node, reading=ReaderOptions(pause=0.001, width=1))
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, demand)
    chain = grow(chain, 20)
    node.adopt(chain)
    await world.settle()
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[5:], strict=True))
    assert all(node.count(method) <= 2 for method in lacks), "asked again although nobody has it"


async def test_logs_that_an_upstream_leaves_out_are_asked_for_elsewhere(build: Build) -> None:
    chain = grow([], 5)
    forgetful, whole = StreamNode("forgetful", chain), StreamNode("whole", chain)
    forgetful.forgets_logs = 1_000
    world = build(forgetful, whole)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 20)
    for node in (forgetful, whole):
        node.adopt(chain)
    await world.settle()
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[5:], strict=True))
    assert sum(len(made.logs) for made in chain[5:]) > 10


async def test_logs_that_come_late_are_waited_for(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    node.forgets_logs = 2
    world = build(node)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 10)
    node.adopt(chain)
    await world.settle()
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[5:], strict=True))


async def test_a_block_without_its_logs_is_never_told(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    node.forgets_logs = 1_000_000
    node.lacks = {"eth_getBlockReceipts", "eth_getTransactionReceipt"}
    world = build(node)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 10)
    node.adopt(chain)
    first_with_logs = next(made for made in chain[5:] if made.logs)
    await world.poll()
    await until(lambda: node._denied.get(("logs", first_with_logs.hash), 0) > 8, what="many questions")
    assert all(block.number < first_with_logs.number for block in walker.blocks)
    node.forgets_logs = 0
    await world.settle()
    assert all(same(block, made) for block, made in zip(walker.blocks, chain[5:], strict=True))


@pytest.mark.parametrize("depth", range(1, 21))
async def test_a_reorganisation_reverts_and_applies(depth: int, build: Build) -> None:
    chain = grow([], 30)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, depth + 2)
    node.adopt(chain)
    await world.settle()
    branch = grow(chain[:-depth], depth + 2, branch=1)
    node.adopt(branch)
    node.forget_orphans()
    await world.settle()
    reverted = [delta.block.hash for delta in walker.deltas if isinstance(delta, Reverted)]
    assert reverted == [made.hash for made in reversed(chain[-depth:])]
    assert walker.hashes == [made.hash for made in branch[30:]]
    assert all(same(block, made) for block, made in zip(walker.blocks, branch[30:], strict=True))


async def test_a_reorganisation_below_the_first_block_told_tells_the_whole_new_branch(build: Build) -> None:
    chain = grow([], 30)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll(times=10)
    walker = Walker(joins_later=True)
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 1)
    node.adopt(chain)
    await world.settle()
    branch = grow(chain[:25], 8, branch=1)
    node.adopt(branch)
    await world.settle()
    # The block that was the tip when it subscribed counts as applied.
    assert [type(delta) for delta in walker.deltas[:4]] == [Applied, Reverted, Reverted, Applied]
    assert walker.hashes == [made.hash for made in branch[25:]]


async def test_a_block_that_leaves_the_chain_while_it_is_fetched_is_never_told(build: Build) -> None:
    chain = grow([], 10)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    await world.settle()
    node.late = 1_000_000
    gone = grow(chain, 2, branch=1)
    node.adopt(gone)
    await world.poll()
    await asyncio.sleep(0.01)
    assert not walker.deltas
    node.late = 0
    branch = grow(chain, 4, branch=2)
    node.adopt(branch)
    node.forget_orphans()
    await world.settle()
    assert walker.hashes == [made.hash for made in branch[10:]]
    assert not [delta for delta in walker.deltas if isinstance(delta, Reverted)]


async def test_a_gap_far_wider_than_the_headers_kept_is_filled(build: Build) -> None:
    chain = grow([], 10)
    node = StreamNode("one", chain)
    world = build(node, heads=HeadOptions(finality_tags=False, window=16, gap_limit=8, backfill=4))
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    await world.settle()
    chain = grow(chain, 300)
    node.adopt(chain)
    await world.poll(times=3, after=400.0)
    await world.settle()
    assert walker.hashes == [made.hash for made in chain[10:]]


async def test_a_reorganisation_within_a_wide_gap_is_walked_back(build: Build) -> None:
    chain = grow([], 20)
    node = StreamNode("one", chain)
    world = build(node, heads=HeadOptions(finality_tags=False, window=16, gap_limit=8, backfill=4))
    await world.poll()
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 6)
    node.adopt(chain)
    await world.settle()
    branch = grow(chain[:23], 200, branch=1)
    node.adopt(branch)
    await world.poll(times=4, after=400.0)
    await world.settle()
    assert walker.hashes == [made.hash for made in branch[20:]]


async def test_a_second_consumer_with_a_greater_demand_never_gets_less(build: Build) -> None:
    chain = grow([], 10)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()
    world.follower.subscribe(Walker(), Demand.HEADERS)
    await world.settle()
    chain = grow(chain, 8)
    node.adopt(chain)
    # The blocks are being fetched without logs when somebody comes who needs them.
    await world.poll()
    seen: list[Delta] = []
    world.follower.subscribe(seen.append, Demand.FULL)
    await world.settle()
    assert seen
    assert all(delta.block.logs is not None and delta.block.receipts is not None for delta in seen)


async def test_a_consumer_that_raises_harms_nobody(build: Build) -> None:
    chain = grow([], 5)
    node = StreamNode("one", chain)
    world = build(node)
    await world.poll()

    def broken(_delta: Delta) -> None:
        raise RuntimeError("a mistake")

    walker = Walker()
    world.follower.subscribe(broken, Demand.HEADERS)
    world.follower.subscribe(walker, Demand.HEADERS)
    chain = grow(chain, 3)
    node.adopt(chain)
    await world.settle()
    assert len(walker.blocks) == 3


async def test_asking_for_the_head_keeps_the_stream_for_a_while(build: Build) -> None:
    node = StreamNode("one", grow([], 5))
    world = build(node, options=FollowerOptions(retry_seconds=0.005, linger_seconds=30.0))
    await world.poll()
    heads: list[Block | None] = [world.follower.head]

    def asked() -> bool:
        heads.append(world.follower.head)
        return heads[-1] is not None

    await until(asked, what="the head")
    assert heads[0] is None
    assert heads[-1] is not None
    assert heads[-1].hash == node.chain[-1].hash
    found = await world.follower.block(2, Demand.LOGS)
    assert found is not None
    assert same(found, node.chain[2])
    assert await world.follower.block(99, Demand.LOGS) is None
