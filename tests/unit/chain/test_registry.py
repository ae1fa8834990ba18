"""The networks that are served, and their replacement while calls are under way."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock
from capstan.core.errors import NotFound
from tests.support.faulty_node import FaultyNode, network_spec, results, text

SOMEWHERE = UpstreamSpec(name="somewhere", url="http://127.0.0.1:9")


@pytest.fixture
async def registry() -> AsyncIterator[ChainRegistry]:
    opened = ChainRegistry(open_session(), ManualClock())
    yield opened
    await opened.close()


def test_a_missing_network_is_named(registry: ChainRegistry) -> None:
    known = {("ethereum", "mainnet"), ("ethereum", "devnet")}
    registry.replace([network_spec(SOMEWHERE)], known=known)
    assert registry.get("ethereum", "devnet").name == "ethereum/devnet"
    with pytest.raises(NotFound, match="ethereum/mainnet is known but not configured"):
        registry.get("ethereum", "mainnet")
    with pytest.raises(NotFound, match="Unknown network: ethereum/moon"):
        registry.get("ethereum", "moon")
    with pytest.raises(NotFound, match="Unknown chain: moon/mainnet"):
        registry.get("moon", "mainnet")
    assert registry.find("moon", "mainnet") is None


def test_a_replacement_that_is_wrong_changes_nothing(registry: ChainRegistry) -> None:
    registry.replace([network_spec(SOMEWHERE)])
    before = registry.networks()
    with pytest.raises(ValueError, match="ethereum/other has no upstream"):
        registry.replace([network_spec(network="other")])
    with pytest.raises(ValueError, match="ethereum/devnet is configured twice"):
        registry.replace([network_spec(SOMEWHERE), network_spec(SOMEWHERE)])
    assert registry.networks() == before


async def test_a_call_under_way_survives_a_replacement(registry: ChainRegistry) -> None:
    gate = asyncio.Event()

    async def waits(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        await asyncio.wait_for(gate.wait(), 10)
        return await results("old")(request, call)

    async with FaultyNode(waits) as old, FaultyNode(results("new")) as new, asyncio.timeout(20):
        registry.replace([network_spec(old.spec("old"))])
        call = asyncio.create_task(registry.get("ethereum", "devnet").pool.request("m", []))
        await old.wait_for_calls(1)
        registry.replace([network_spec(new.spec("new"))])
        assert await registry.get("ethereum", "devnet").pool.request("m", []) == "new"
        gate.set()
        assert await call == "old"


async def test_an_unchanged_upstream_keeps_its_health(registry: ChainRegistry) -> None:
    async with FaultyNode(text("<html>")) as broken, FaultyNode(results("0x1")) as good:
        registry.replace([network_spec(broken.spec("broken"), good.spec("good"))])
        for _ in range(5):
            await registry.get("ethereum", "devnet").pool.request("m", [])
        seen = len(broken.calls)
        registry.replace([network_spec(broken.spec("broken"), good.spec("good"), max_log_range=5)])
        await registry.get("ethereum", "devnet").pool.request("m", [])
        assert len(broken.calls) == seen
        registry.replace([network_spec(broken.spec("broken", timeout_seconds=1), good.spec("good"))])
        await registry.get("ethereum", "devnet").pool.request("m", [])
        assert len(broken.calls) == seen + 1


async def test_calls_after_closing_fail_cleanly() -> None:
    registry = ChainRegistry(open_session(), ManualClock())
    registry.replace([network_spec(SOMEWHERE)])
    network = registry.get("ethereum", "devnet")
    await registry.close()
    with pytest.raises(EveryUpstreamFailed):
        await network.pool.request("m", [])
