"""Blocks that one process fetches and all have, on a real Valkey and on a cluster of two."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from capstan.chain.follower.models import Block, Demand, Log
from capstan.chain.follower.reader import ContentUnavailable
from capstan.chain.shared.blocks import SharedBlocks
from capstan.chain.shared.metrics import ShareMetrics
from tests.support.shared_streams import CLOCK, HEADER, QUICK, Listener, Valkey
from tests.support.stream_nodes import until


def block_of(demand: Demand) -> Block:
    log = Log("0x" + "aa" * 20, ("0x" + "01" * 32,), 0, "0x" + "ee" * 32, b'{"removed":false}')
    logs = (log,) if demand >= Demand.LOGS else None
    return Block(HEADER.number, HEADER.hash, HEADER.parent_hash, HEADER.timestamp, b"{}", None, None, logs)


class Process:
    """The blocks of one process, and a fetcher that the test lets go on."""

    def __init__(self, valkey: Valkey, name: str, *, up: bool = True, head: int = 10) -> None:
        self.registry = CollectorRegistry()
        self.fetches = 0
        self.fails = False
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.blocks = SharedBlocks(
            "ethereum/devnet",
            valkey.store(name),
            CLOCK,
            QUICK,
            ShareMetrics(self.registry),
            head=lambda: head,
            is_up=lambda: up,
        )
        self._listener = Listener(valkey.store(name))
        self._listener.topic._on_entry = self._on_entry

    def _on_entry(self, entry: Any, _earlier: bool) -> None:
        if hasattr(entry, "hash"):
            self.blocks.stored(entry.hash)

    async def get(self, demand: Demand = Demand.LOGS) -> Block:
        async def fetch() -> Block:
            self.fetches += 1
            await self.may_go.wait()
            if self.fails:
                raise ContentUnavailable("not now")
            return block_of(demand)

        return await self.blocks.block(HEADER.number, HEADER.hash, demand, fetch)

    async def close(self) -> None:
        await self.blocks.close()
        await self._listener.close()


async def test_a_block_that_several_need_is_fetched_by_one(valkey: Valkey) -> None:
    processes = [Process(valkey, f"process-{number}") for number in range(4)]
    found = await asyncio.gather(*(process.get() for process in processes))
    assert found == [block_of(Demand.LOGS)] * 4
    assert sum(process.fetches for process in processes) == 1
    late = Process(valkey, "late")
    assert await late.get(Demand.HEADERS) == block_of(Demand.LOGS), "more than was asked for will do"
    assert late.fetches == 0
    assert await late.get(Demand.FULL) == block_of(Demand.FULL), "less will not"
    for process in (*processes, late):
        await process.close()


async def test_two_that_wait_in_one_process_are_both_told(valkey: Valkey) -> None:
    one, two = Process(valkey, "one"), Process(valkey, "two")
    one.may_go.clear()
    first = asyncio.create_task(one.get(Demand.LOGS))
    await until(lambda: one.fetches, seconds=30)
    waiting = [asyncio.create_task(two.get(demand)) for demand in (Demand.HEADERS, Demand.LOGS)]
    await until(lambda: len(two.blocks._waiting.get(HEADER.hash, ())) == 2, seconds=30)
    one.may_go.set()
    assert await asyncio.wait_for(asyncio.gather(first, *waiting), 15) == [block_of(Demand.LOGS)] * 3
    assert two.fetches == 0
    for process in (one, two):
        await process.close()


async def test_when_the_one_that_fetches_fails_another_does(valkey: Valkey) -> None:
    one, two = Process(valkey, "one"), Process(valkey, "two")
    one.fails = True
    one.may_go.clear()
    first = asyncio.create_task(one.get())
    await until(lambda: one.fetches, seconds=30)
    second = asyncio.create_task(two.get())
    await asyncio.sleep(0.05)
    assert two.fetches == 0
    one.may_go.set()
    assert await asyncio.wait_for(second, 30) == block_of(Demand.LOGS)
    with pytest.raises(ContentUnavailable):
        await first
    for process in (one, two):
        await process.close()


async def test_blocks_that_are_old_or_cannot_be_shared_are_fetched_at_once(valkey: Valkey) -> None:
    one = Process(valkey, "one")
    assert await one.get() == block_of(Demand.LOGS)
    away, far = Process(valkey, "away", up=False), Process(valkey, "far", head=1_000)
    for process in (away, far):
        assert await process.get() == block_of(Demand.LOGS)
        assert process.fetches == 1
    for process in (one, away, far):
        await process.close()
