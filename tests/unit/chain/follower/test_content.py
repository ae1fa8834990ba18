"""Which content of a block is believed: answers that cannot be whole or cannot be read, and odd bloom filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from capstan.chain.follower.decoding import logs_of
from capstan.chain.follower.models import Block, Demand
from capstan.chain.follower.reader import ContentUnavailable, ReaderOptions
from capstan.feed.notifications import removed
from tests.support.stream_nodes import Made, StreamNode, World, grow
from tests.unit.chain.follower.conftest import Build, same

CHAIN = grow([], 60)
# Blocks with several transactions and several logs.
RICH = [made for made in CHAIN if len(made.logs) > 2 and len(made.transactions) > 1]
BOTH = (Demand.LOGS, Demand.FULL)
QUICK = ReaderOptions(pause=0.001, rounds=2)

Change = Callable[[Any], Any]


class LyingNode(StreamNode):
    """Changes some of its answers."""

    def __init__(self, name: str, chain: list[Made], **changes: Change) -> None:
        super().__init__(name, chain)
        self.changes = changes

    def _answer(self, method: str, arguments: Any) -> Any:
        answer = super()._answer(method, arguments)
        change = self.changes.get(method)
        return answer if change is None else change(answer)


def asked_second(node: StreamNode) -> StreamNode:
    """So the pool asks the other one first."""
    node.spec = msgspec.structs.replace(node.spec, tier=1)
    return node


def nothing(_answer: Any) -> Any:
    return []


def without_logs(receipts: Any) -> Any:
    return [{**receipt, "logs": []} for receipt in receipts]


def without_own_logs(receipt: Any) -> Any:
    return {**receipt, "logs": []}


def every_second(logs: Any) -> Any:
    return logs[::2]


def receipts_with_every_second(receipts: Any) -> Any:
    kept = [log["logIndex"] for log in every_second([log for receipt in receipts for log in receipt["logs"]])]
    return [{**receipt, "logs": [log for log in receipt["logs"] if log["logIndex"] in kept]} for receipt in receipts]


def odd_bloom(block: Any) -> Any:
    """One bit more than the logs of the block explain."""
    bits = int(block["logsBloom"], 16)
    spare = next(bit for bit in range(2048) if not bits >> bit & 1)
    return {**block, "logsBloom": f"0x{bits | 1 << spare:0512x}"}


def full_bloom(block: Any) -> Any:
    return {**block, "logsBloom": "0x" + "ff" * 256}


async def read(world: World, made: Made, demand: Demand) -> Block:
    await world.poll()
    return await world.reader.block(made.number, made.hash, demand)


@pytest.mark.parametrize("demand", BOTH)
async def test_a_lone_upstream_that_has_lost_its_logs_is_not_believed_in_two_ways(build: Build, demand: Demand) -> None:
    node = LyingNode("one", CHAIN, eth_getLogs=nothing, eth_getBlockReceipts=without_logs)
    world = build(node, reading=QUICK)
    for made in RICH[:2]:
        with pytest.raises(ContentUnavailable, match=str(made.number)):
            await read(world, made, demand)
    node.changes = {}
    assert same(await read(world, RICH[0], demand), RICH[0])


@pytest.mark.parametrize("demand", BOTH)
async def test_one_upstream_in_two_ways_is_not_enough_where_there_are_two(build: Build, demand: Demand) -> None:
    changes = {"eth_getLogs": every_second, "eth_getBlockReceipts": receipts_with_every_second}
    loser, gone = LyingNode("loser", CHAIN, **changes), StreamNode("gone", CHAIN)
    world = build(loser, gone, reading=QUICK)
    await world.poll()
    gone.fail()
    with pytest.raises(ContentUnavailable, match=r"bloom|positions"):
        await read(world, RICH[0], demand)


@pytest.mark.parametrize("demand", BOTH)
async def test_logs_that_differ_in_content_do_not_confirm_each_other(build: Build, demand: Demand) -> None:
    def other_data(logs: Any) -> Any:
        return [{**log, "data": "0xbad0"} for log in logs]

    node = LyingNode("one", CHAIN, eth_getBlockByHash=odd_bloom, eth_getLogs=other_data)
    world = build(node, reading=QUICK)
    with pytest.raises(ContentUnavailable):
        await read(world, RICH[0], demand)


@pytest.mark.parametrize("demand", BOTH)
@pytest.mark.parametrize("upstreams", [1, 2])
async def test_a_bloom_filter_of_the_chains_own_is_passed_over_for_the_block_alone(
    build: Build, demand: Demand, upstreams: int
) -> None:
    nodes = [LyingNode(f"node{index}", CHAIN, eth_getBlockByHash=odd_bloom) for index in range(upstreams)]
    world = build(*nodes, reading=QUICK)
    for made in RICH[:6]:
        assert same(await read(world, made, demand), made)
    for node in nodes:
        node.changes = {"eth_getLogs": nothing, "eth_getBlockReceipts": without_logs}
    if upstreams == 1:
        with pytest.raises(ContentUnavailable):
            await read(world, RICH[6], demand)
    nodes[0].changes = {}
    assert same(await read(world, RICH[6], demand), RICH[6])


@pytest.mark.parametrize("demand", BOTH)
async def test_a_chain_with_odd_bloom_filters_is_not_waited_for_again_and_again(build: Build, demand: Demand) -> None:
    node = LyingNode("one", CHAIN, eth_getBlockByHash=odd_bloom)
    world = build(node, reading=ReaderOptions(pause=0.001, rounds=4))
    for made in RICH[:5]:
        await read(world, made, demand)
    before = len(node.calls)
    assert same(await read(world, RICH[5], demand), RICH[5])
    asked = [method for method, _ in node.calls[before:] if method in ("eth_getLogs", "eth_getBlockReceipts")]
    assert sorted(asked) == ["eth_getBlockReceipts", "eth_getLogs"]


async def test_a_bloom_filter_that_names_everything_says_nothing(build: Build) -> None:
    world = build(LyingNode("one", CHAIN, eth_getBlockByHash=full_bloom), reading=QUICK)
    empty = next(made for made in CHAIN if made.transactions and not made.logs)
    for made in (empty, RICH[0]):
        assert same(await read(world, made, Demand.LOGS), made)


def index_of_no_number(receipts: Any) -> Any:
    return [{**receipt, "transactionIndex": "first"} for receipt in receipts]


def broken_logs(receipts: Any) -> Any:
    return [{**receipt, "logs": [{"address": 1}]} for receipt in receipts]


@pytest.mark.parametrize("change", [without_logs, index_of_no_number, broken_logs])
@pytest.mark.parametrize("demand", BOTH)
async def test_bad_receipts_of_one_upstream_are_asked_for_at_another(
    build: Build, change: Change, demand: Demand
) -> None:
    bad, good = LyingNode("bad", CHAIN, eth_getBlockReceipts=change), asked_second(StreamNode("good", CHAIN))
    for node in (bad, good):
        # So the logs must be taken out of receipts.
        node.lacks = {"eth_getLogs"}
    world = build(bad, good, reading=QUICK)
    for made in RICH[:4]:
        assert same(await read(world, made, demand), made)
    assert bad.count("eth_getBlockReceipts"), "the test must meet the bad one"


@pytest.mark.parametrize("demand", BOTH)
async def test_bad_single_receipts_of_one_upstream_are_asked_for_at_another(build: Build, demand: Demand) -> None:
    bad = LyingNode("bad", CHAIN, eth_getTransactionReceipt=without_own_logs)
    good = asked_second(StreamNode("good", CHAIN))
    for node in (bad, good):
        node.lacks = {"eth_getLogs", "eth_getBlockReceipts"}
    world = build(bad, good, reading=QUICK)
    for made in RICH[:4]:
        assert same(await read(world, made, demand), made)
    assert bad.count("eth_getTransactionReceipt"), "the test must meet the bad one"


async def test_transactions_that_are_no_objects_are_asked_for_at_another_upstream(build: Build) -> None:
    bad = LyingNode("bad", CHAIN, eth_getBlockByHash=lambda block: {**block, "transactions": [1]})
    world = build(bad, asked_second(StreamNode("good", CHAIN)), reading=QUICK)
    for made in RICH[:4]:
        for demand in BOTH:
            assert same(await read(world, made, demand), made)


@pytest.mark.parametrize("demand", BOTH)
@pytest.mark.parametrize("absent", [False, True])
async def test_a_block_whose_bloom_filter_names_logs_is_not_without_them_for_want_of_transactions(
    build: Build, demand: Demand, absent: bool
) -> None:
    def no_transactions(block: Any) -> Any:
        rest = {name: value for name, value in block.items() if name != "transactions"}
        return rest if absent else {**rest, "transactions": []}

    bad, good = LyingNode("bad", CHAIN, eth_getBlockByHash=no_transactions), asked_second(StreamNode("good", CHAIN))
    world = build(bad, good, reading=QUICK)
    for made in RICH[:4]:
        block = await read(world, made, demand)
        assert same(block, made)
        if demand is Demand.FULL:
            assert len(block.transactions or ()) == len(block.receipts or ()) == len(made.transactions)


async def test_a_lone_upstream_without_the_transactions_still_gives_the_logs_or_nothing(build: Build) -> None:
    node = LyingNode("one", CHAIN, eth_getBlockByHash=lambda block: {**block, "transactions": []})
    world = build(node, reading=QUICK)
    assert same(await read(world, RICH[0], Demand.LOGS), RICH[0])
    with pytest.raises(ContentUnavailable, match="not listed"):
        await read(world, RICH[0], Demand.FULL)
    node.changes["eth_getLogs"] = nothing
    with pytest.raises(ContentUnavailable):
        await read(world, RICH[1], Demand.LOGS)


@pytest.mark.parametrize("written", [b'{"removed": false,%b', b'{"removed":true,%b', b"{%b"])
def test_a_log_can_be_told_as_removed_however_the_node_writes_it(written: bytes) -> None:
    made = RICH[0]
    log = {name: value for name, value in made.logs[0].items() if name != "removed"}
    receipt = {**made.receipt(0), "logs": [msgspec.Raw(written % msgspec.json.encode(log)[1:])]}
    (found,) = logs_of([msgspec.Raw(msgspec.json.encode(receipt))], made.hash)
    assert msgspec.json.decode(found.raw) == {**log, "removed": False}
    assert msgspec.json.decode(removed(found.raw)) == {**log, "removed": True}
