"""How calls get their answers: from the followed head, from memory, from nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.filters import FilterRouter
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock, SystemClock
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.forwarding import Asking, Forwarder
from capstan.rpc.logs import LogReader
from capstan.rpc.methods import look_up
from tests.support.faulty_node import FaultyNode, network_spec, results


class MovingHeads:
    """A head that the test moves."""

    def __init__(self) -> None:
        self.latest_number: int | None = None
        self.latest_hash: str | None = None
        self.finalized_number: int | None = None
        self.is_fresh = True
        self.nudges = 0

    def hash_at(self, number: int) -> str | None:
        return None

    def nudge(self) -> None:
        self.nudges += 1


class Setting:
    """A forwarder to one node, with a head that the test moves."""

    def __init__(self, forwarder: Forwarder, network: Network, heads: MovingHeads, node: FaultyNode) -> None:
        self.forwarder = forwarder
        self.network = network
        self.heads = heads
        self.node = node

    def now(self, method: str, params: bytes = b"[]") -> Any:
        return self.forwarder.now(self.network, method, params)

    async def ask(self, method: str, params: bytes = b"[]") -> tuple[bytes, str]:
        clock = SystemClock()
        kind = look_up(self.network.spec, method)
        asking = Asking(self.network, "acc_1", method, params, kind, clock.monotonic() + 10, archive=False)
        answer = await self.forwarder.ask(asking)
        return bytes(answer.result), answer.source


@asynccontextmanager
async def setting(answer: Any = "0x1", **changes: Any) -> AsyncIterator[Setting]:
    clock, heads = SystemClock(), MovingHeads()
    async with FaultyNode(results(answer)) as node:
        registry = ChainRegistry(open_session(), clock)
        spec: UpstreamSpec = node.spec("node")
        registry.replace([network_spec(spec, **changes)])
        cache = RpcCache(clock)
        forwarder = Forwarder(cache, LogReader(cache, clock), FilterRouter(clock), clock, heads=lambda _: heads)
        try:
            yield Setting(forwarder, registry.networks()[0], heads, node)
        finally:
            await cache.close()
            await registry.close()


async def test_the_block_number_comes_from_the_followed_head() -> None:
    async with setting() as tested:
        tested.heads.latest_number = 255
        assert tested.now("eth_blockNumber") == b'"0xff"'
        assert await tested.ask("eth_blockNumber") == (b'"0xff"', "hit")
        assert tested.node.calls == []


async def test_the_block_number_is_asked_for_when_the_head_is_not_fresh() -> None:
    async with setting("0x7") as tested:
        tested.heads.latest_number = 5
        tested.heads.is_fresh = False
        assert await tested.ask("eth_blockNumber") == (b'"0x7"', "miss")


async def test_a_node_that_is_behind_does_not_take_the_block_number_back() -> None:
    async with setting("0x7") as tested:
        tested.heads.latest_number = 9
        assert tested.now("eth_blockNumber") == b'"0x9"'
        tested.heads.is_fresh = False
        assert (await tested.ask("eth_blockNumber"))[0] == b'"0x9"', "told before, from the followed head"
        tested.node.answer = results("0xb")
        assert (await tested.ask("eth_blockNumber"))[0] == b'"0xb"'
        tested.node.answer = results("0xa")
        tested.heads.is_fresh = True
        assert tested.now("eth_blockNumber") == b'"0xb"', "told before, from a node"
        tested.heads.is_fresh = False
        assert (await tested.ask("eth_blockNumber"))[0] == b'"0xb"'


async def test_a_block_number_that_is_none_is_passed_on() -> None:
    async with setting({"no": "number"}) as tested:
        tested.heads.is_fresh = False
        assert (await tested.ask("eth_blockNumber"))[0] == b'{"no": "number"}'


async def test_the_block_number_does_not_go_back_in_a_reorganisation() -> None:
    async with setting() as tested:
        told = []
        for number in (100, 98, 99, 100, 101):
            tested.heads.latest_number = number
            told.append(int(tested.now("eth_blockNumber").strip(b'"'), 16))
        assert told == [100, 100, 100, 100, 101]


async def test_a_chain_that_begins_anew_is_believed() -> None:
    async with setting() as tested:
        tested.heads.latest_number = 1000
        assert tested.now("eth_blockNumber") == b'"0x3e8"'
        tested.heads.latest_number = 3
        assert tested.now("eth_blockNumber") == b'"0x3"'


async def test_a_development_chain_may_be_shortened() -> None:
    async with setting(dev_methods=True) as tested:
        for number in (100, 98):
            tested.heads.latest_number = number
            assert int(tested.now("eth_blockNumber").strip(b'"'), 16) == number


@pytest.mark.parametrize(("number", "nudged"), [("0x6", 1), ("0x5", 0), (None, 0)])
async def test_an_answer_from_beyond_the_head_is_news(number: str | None, nudged: int) -> None:
    receipt = None if number is None else {"blockNumber": number, "blockHash": "0x" + "1" * 64}
    async with setting(receipt) as tested:
        tested.heads.latest_number = 5
        await tested.ask("eth_getTransactionReceipt", b'["0x' + b"2" * 64 + b'"]')
        assert tested.heads.nudges == nudged


async def test_a_command_to_a_development_chain_drops_what_was_kept() -> None:
    async with setting(dev_methods=True) as tested:
        assert (await tested.ask("eth_chainId"))[1] == "miss"
        assert (await tested.ask("eth_chainId"))[1] == "hit"
        await tested.ask("evm_mine")
        assert tested.heads.nudges == 1
        assert (await tested.ask("eth_chainId"))[1] == "miss"


async def test_what_is_sent_is_never_kept() -> None:
    async with setting("0x" + "3" * 64) as tested:
        for _ in range(2):
            assert (await tested.ask("eth_sendRawTransaction", b'["0x00"]'))[1] == "miss"


def block_hash(number: int) -> str:
    return f"0x{number:064x}"


class Known(MovingHeads):
    """A head that knows its blocks."""

    def hash_at(self, number: int) -> str | None:
        return block_hash(number) if self.latest_number is not None and number <= self.latest_number else None


def block(number: int) -> bytes:
    return b'["0x%x",false]' % number


async def answer_by_name(_request: web.Request, called: dict[str, Any]) -> web.Response:
    """A block that is asked for by number, or the receipt of a transaction in the block that its hash names."""
    number = int(called["params"][0], 16)
    names = ("number", "hash") if called["method"] == "eth_getBlockByNumber" else ("blockNumber", "blockHash")
    result = dict(zip(names, (hex(number), block_hash(number)), strict=True))
    return web.json_response({"jsonrpc": "2.0", "id": called["id"], "result": result})


@asynccontextmanager
async def in_doubt() -> AsyncIterator[tuple[Setting, ManualClock]]:
    """The followed chain ends at block 5, which is kept; and a receipt came from a block that nothing links to it."""
    clock, heads = ManualClock(), Known()
    heads.latest_number, heads.latest_hash = 5, block_hash(5)
    async with FaultyNode(answer_by_name) as node:
        registry = ChainRegistry(open_session(), clock)
        registry.replace([network_spec(node.spec("node"))])
        cache = RpcCache(clock)
        forwarder = Forwarder(cache, LogReader(cache, clock), FilterRouter(clock), clock, heads=lambda _: heads)
        tested = Setting(forwarder, registry.networks()[0], heads, node)
        try:
            assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "miss"
            assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "hit"
            await tested.ask("eth_getTransactionReceipt", b'["%b"]' % block_hash(7).encode())
            yield tested, clock
        finally:
            await cache.close()
            await registry.close()


async def test_after_a_jump_no_block_is_told_from_memory_until_our_chain_is_as_long() -> None:
    async with in_doubt() as (tested, _):
        assert tested.heads.nudges == 1
        assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "miss"
        tested.heads.latest_number = 6
        assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "miss"
        tested.heads.latest_number = 7
        assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "hit"


async def test_a_block_that_never_comes_does_not_keep_us_in_doubt() -> None:
    async with in_doubt() as (tested, clock):
        assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "miss"
        clock.advance(11)
        assert (await tested.ask("eth_getBlockByNumber", block(5)))[1] == "hit"


async def test_what_is_final_is_beyond_doubt() -> None:
    async with in_doubt() as (tested, _):
        tested.heads.finalized_number = 4
        assert (await tested.ask("eth_getBlockByNumber", block(3)))[1] == "miss"
        assert (await tested.ask("eth_getBlockByNumber", block(3)))[1] == "hit"
