"""The trackers of all networks, over real HTTP: started on demand or by the configuration, and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.source import HeadOptions
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from tests.support.faulty_node import Answer, FaultyNode, network_spec, results, stalls, text

QUICK = HeadOptions(fastest_interval=0.01, slowest_interval=0.02, idle_interval=0.05)


@pytest.fixture
async def registry() -> AsyncIterator[ChainRegistry]:
    opened = ChainRegistry(open_session(), SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
async def heads() -> AsyncIterator[LatestHeads]:
    opened = LatestHeads(SystemClock(), options=QUICK)
    yield opened
    await opened.close()
    assert not followers()


def followers() -> list[asyncio.Task[None]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("head of")]


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def growing(first: int) -> tuple[list[int], Answer]:
    """A chain whose height is the last number of the list."""
    heights = [first]

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        which = call["params"][0]
        if call["method"] == "eth_getBlockByHash":
            number = int(which, 16) - 1
        else:
            number = heights[-1] if which == "latest" else max(0, heights[-1] - 5)
            number = number if which in ("latest", "safe", "finalized") else int(which, 16)
        block = {
            "number": hex(number),
            "hash": f"0x{number + 1:064x}",
            "parentHash": f"0x{number:064x}",
            "timestamp": "0x65000000",
            "transactions": [],
        }
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": block})

    return heights, answer


async def test_a_head_is_unknown_first_then_followed(registry: ChainRegistry, heads: LatestHeads) -> None:
    heights, answer = growing(16)
    async with FaultyNode(answer) as node:
        registry.replace([network_spec(node.spec())])
        network = registry.get("ethereum", "devnet")
        assert heads.head(network) is None
        await until(lambda: heads.head(network) == 16, "the first head")
        heights.append(18)
        await until(lambda: heads.head(network) == 18, "the next head")
        tracker = heads.tracker("ethereum/devnet")
        await until(lambda: tracker.finalized_number == 13, "finality")
        assert tracker.chain is not None
        assert tracker.chain.hash_at(17) == f"0x{18:064x}"
        assert network.pool.members[0].head == 18


async def test_a_head_can_be_asked_for_ahead_of_need(registry: ChainRegistry, heads: LatestHeads) -> None:
    _, answer = growing(16)
    async with FaultyNode(answer) as node:
        registry.replace([network_spec(node.spec())])
        network = registry.get("ethereum", "devnet")
        await heads.renew(network)
        assert heads.head(network) == 16


async def test_on_solana_the_head_is_the_slot(registry: ChainRegistry, heads: LatestHeads) -> None:
    async with FaultyNode(results(5)) as node:
        registry.replace([network_spec(node.spec(), family="solana")])
        network = registry.get("ethereum", "devnet")
        await heads.renew(network)
        assert heads.head(network) == 5


async def test_a_failure_keeps_what_was_known(registry: ChainRegistry, heads: LatestHeads) -> None:
    _, answer = growing(16)
    async with FaultyNode(answer) as node:
        registry.replace([network_spec(node.spec())])
        network = registry.get("ethereum", "devnet")
        await heads.renew(network)
        broken = {"number": "0x11", "hash": "0x1", "parentHash": "0x2", "timestamp": "0x0"}
        for wrong in (text("<html>"), results("no block"), results(None), results({}), results(broken)):
            node.answer = wrong
            await heads.renew(network)
            assert heads.head(network) == 16


async def test_closing_stops_questions_under_way_and_starts_no_new_ones(registry: ChainRegistry) -> None:
    heads = LatestHeads(SystemClock(), options=QUICK)
    async with FaultyNode(stalls) as node, asyncio.timeout(10):
        registry.replace([network_spec(node.spec())])
        network = registry.get("ethereum", "devnet")
        heads.head(network)
        await node.wait_for_calls(1)
        await heads.close()
        assert not followers()
        assert heads.head(network) is None
        heads.sync([network])
        assert not followers()


async def test_the_configuration_decides_which_networks_are_followed(
    registry: ChainRegistry, heads: LatestHeads
) -> None:
    _, first_answer = growing(16)
    _, second_answer = growing(20)
    async with FaultyNode(first_answer) as first, FaultyNode(second_answer) as second:
        both = [network_spec(first.spec()), network_spec(second.spec(), network="other")]
        registry.replace(both)
        old = registry.get("ethereum", "devnet")
        heads.sync(registry.networks())
        await until(lambda: heads.tracker("ethereum/devnet").number == 16, "the first network")
        await until(lambda: heads.tracker("ethereum/other").number == 20, "the second network")
        kept = heads.tracker("ethereum/other")
        registry.replace(both[1:])
        heads.sync(registry.networks())
        assert heads.head(old) is None, "a call that began before the reload does not bring it back"
        with pytest.raises(KeyError):
            heads.tracker("ethereum/devnet")
        assert heads.tracker("ethereum/other") is kept
        assert kept.number == 20
        await until(lambda: len(followers()) == 1, "the first network to be left")


async def test_a_network_that_is_configured_anew_keeps_its_head(registry: ChainRegistry, heads: LatestHeads) -> None:
    _, first_answer = growing(16)
    heights, second_answer = growing(14)
    async with FaultyNode(first_answer) as first, FaultyNode(second_answer) as second:
        registry.replace([network_spec(first.spec())])
        await heads.renew(registry.get("ethereum", "devnet"))
        registry.replace([network_spec(second.spec("second"))])
        network = registry.get("ethereum", "devnet")
        assert heads.head(network) == 16
        await heads.renew(network)
        assert heads.head(network) == 16
        heights.append(17)
        await until(lambda: heads.head(network) == 17, "a head of the new upstream")
