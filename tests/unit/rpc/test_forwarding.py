"""How calls get their answers: from the followed head, from memory, from nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from capstan.chain.filters import FilterRouter
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
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
