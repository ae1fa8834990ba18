"""Questions for the head count like calls: in the statistics, for the circuit breaker and in the budget."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.errors import ChainError
from capstan.chain.heads import reading
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.source import HeadOptions
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from tests.support.faulty_node import FaultyNode, by_method, errors, network_spec, pool_of, resets, stalls, text

BLOCK = {"number": "0xa", "hash": "0x" + "0a" * 32, "parentHash": "0x" + "09" * 32, "timestamp": "0x1"}
HEAD = by_method({"eth_getBlockByNumber": BLOCK})


async def test_a_poll_is_counted_like_a_call() -> None:
    async with pool_of(HEAD, upstream={"requests_per_second": 2}) as setting:
        member = setting.pool.members[0]
        for _ in range(2):
            header = await reading.block_by_tag(member, "latest", 2.0)
            assert header is not None
            assert header.number == 10
        assert member.outcomes == {"ok": 2}
        assert member.latencies.overall.size == 2
        assert member.budget_wait(setting.clock.monotonic()) > 0


@pytest.mark.parametrize("fault", [resets, text("<html>"), errors(-32005, "too many requests", status=429)])
async def test_polls_that_fail_take_an_upstream_out_of_rotation(fault: Any) -> None:
    async with pool_of(fault) as setting:
        member = setting.pool.members[0]
        for _ in range(3):
            assert member.in_rotation
            with pytest.raises(ChainError):
                await reading.block_by_tag(member, "latest", 2.0)
        assert not member.in_rotation


async def test_an_upstream_that_stalls_when_asked_for_its_head_has_failed() -> None:
    async with pool_of(stalls, real_time=True) as setting:
        member = setting.pool.members[0]
        with pytest.raises(ChainError):
            await reading.block_by_tag(member, "latest", 0.1)
        assert member.outcomes == {"timeout": 1}


async def test_a_poll_does_not_end_the_pause_of_the_breaker_but_tries_the_upstream_afterwards() -> None:
    async with pool_of(resets) as setting:
        member = setting.pool.members[0]
        for _ in range(3):
            with pytest.raises(ChainError):
                await member.call("eth_call", b"[]", timeout=2.0)
        assert not member.in_rotation
        setting.nodes[0].answer = HEAD
        assert await reading.block_by_tag(member, "latest", 2.0) is not None
        assert not member.in_rotation
        setting.clock.advance(1.5)
        assert await reading.block_by_tag(member, "latest", 2.0) is not None
        assert member.in_rotation


async def test_a_dead_upstream_is_found_and_found_again_without_any_call() -> None:
    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": BLOCK})

    registry = ChainRegistry(open_session(), SystemClock())
    heads = LatestHeads(SystemClock(), options=HeadOptions(fastest_interval=0.02, slowest_interval=0.05, backfill=0))
    try:
        async with FaultyNode(answer) as node:
            registry.replace([network_spec(node.spec())])
            network = registry.networks()[0]
            heads.sync([network])
            member = network.pool.members[0]
            await until(lambda: member.head == 10)
            await node.stop()
            await until(lambda: not member.in_rotation)
            await node.start_again()
            await until(lambda: member.in_rotation)
    finally:
        await heads.close()
        await registry.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
