"""The latest block of a network, as it is remembered."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from capstan.chain.heads import LatestHeads
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock
from tests.support.faulty_node import FaultyNode, network_spec, results, stalls, text


@pytest.fixture
async def registry() -> AsyncIterator[ChainRegistry]:
    opened = ChainRegistry(open_session(), ManualClock())
    yield opened
    await opened.close()


def renewals() -> list[asyncio.Task[None]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("head of")]


async def settled() -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*renewals())


async def test_a_head_is_unknown_first_then_kept_and_renewed_when_old(registry: ChainRegistry) -> None:
    clock = ManualClock()
    heads = LatestHeads(clock)
    async with FaultyNode(results("0x10")) as node:
        registry.replace([network_spec(node.spec(), block_time_ms=2000)])
        network = registry.get("ethereum", "devnet")
        assert heads.head(network) is None
        assert heads.head(network) is None
        await settled()
        assert heads.head(network) == 16
        node.answer = results("0x11")
        clock.advance(1.9)
        assert heads.head(network) == 16
        await settled()
        assert node.methods == ["eth_blockNumber"]
        clock.advance(0.2)
        assert heads.head(network) == 16
        await settled()
        assert heads.head(network) == 17


async def test_on_solana_the_head_is_the_slot(registry: ChainRegistry) -> None:
    heads = LatestHeads(ManualClock())
    async with FaultyNode(results(5)) as node:
        registry.replace([network_spec(node.spec(), family="solana")])
        network = registry.get("ethereum", "devnet")
        await heads.renew(network)
        assert heads.head(network) == 5
        assert node.methods == ["getSlot"]


async def test_a_failure_keeps_what_was_known(registry: ChainRegistry) -> None:
    heads = LatestHeads(ManualClock())
    async with FaultyNode(results("0x10")) as node:
        registry.replace([network_spec(node.spec())])
        network = registry.get("ethereum", "devnet")
        await heads.renew(network)
        for answer in (text("<html>"), results("no number"), results(None)):
            node.answer = answer
            await heads.renew(network)
            assert heads.head(network) == 16


async def test_closing_stops_a_renewal_under_way(registry: ChainRegistry) -> None:
    heads = LatestHeads(ManualClock())
    async with FaultyNode(stalls) as node, asyncio.timeout(10):
        registry.replace([network_spec(node.spec())])
        heads.head(registry.get("ethereum", "devnet"))
        await node.wait_for_calls(1)
        await heads.close()
        assert not renewals()
