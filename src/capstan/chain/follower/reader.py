"""Fetches blocks with as much of their content as is demanded, from whichever upstream has it, and only if it is whole.

Used by the walks of one network, which share it: a block that two of them need is fetched once. Everything is asked by
the block's hash, so an answer can never belong to another block of the same number. Which way to the logs and receipts
a network has is learned from its upstreams' errors and remembered for a while. Questions, repetitions and the blocks
kept are bounded; what cannot be had is `ContentUnavailable`, and the walk tries again later.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec import Raw

from capstan.chain.follower.asking import Asker, ContentUnavailable, ReaderOptions
from capstan.chain.follower.content import ContentReader
from capstan.chain.follower.decoding import RawBlock, Unusable, block_from
from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.follower.models import Block, Demand
from capstan.chain.heads.headers import Header
from capstan.chain.pool import UpstreamPool
from capstan.core.clock import Clock
from capstan.core.hexes import to_quantity

# Two of these are made in `asking`; whoever has a reader needs them.
__all__ = ["BlockReader", "ContentUnavailable", "Reader", "ReaderOptions"]


class Reader(Protocol):
    """What a walk needs of a reader."""

    async def block(self, number: int, block_hash: str, demand: Demand) -> Block:
        """The block with this content. Raises `ContentUnavailable`."""
        ...

    def prefetch(self, number: int, block_hash: str, demand: Demand) -> None:
        """The block will be asked for soon."""
        ...

    async def link_at(self, number: int) -> Header:
        """The header with this number on the chain of some upstream. Raises `ContentUnavailable`."""
        ...


class Sharing(Protocol):
    """Blocks that are fetched once for several processes."""

    async def block(self, number: int, block_hash: str, demand: Demand, fetch: Callable[[], Awaitable[Block]]) -> Block:
        """The block with at least this content, from another process or by `fetch`. Raises what `fetch` raises."""
        ...


class BlockReader:
    """The reader of one network."""

    def __init__(
        self,
        network: str,
        pool: Callable[[], UpstreamPool],
        clock: Clock,
        metrics: StreamMetrics,
        options: ReaderOptions | None = None,
        *,
        sharing: Callable[[], Sharing | None] = lambda: None,
    ) -> None:
        self._network = network
        self._sharing = sharing
        self._clock = clock
        self._metrics = metrics
        self._options = options or ReaderOptions()
        self._kept: OrderedDict[str, tuple[Demand, Block]] = OrderedDict()
        self._fetching: dict[tuple[str, Demand], asyncio.Task[Block]] = {}
        self._slots = asyncio.Semaphore(self._options.width)
        self._asker = Asker(network, pool, clock, metrics, self._options)
        self._content = ContentReader(self._asker)

    async def block(self, number: int, block_hash: str, demand: Demand) -> Block:
        kept = self._kept.get(block_hash)
        if kept is not None and kept[0] >= demand:
            self._kept.move_to_end(block_hash)
            return kept[1]
        # Shielded: another walk may wait for the same block.
        return await asyncio.shield(self._task(number, block_hash, demand))

    def prefetch(self, number: int, block_hash: str, demand: Demand) -> None:
        kept = self._kept.get(block_hash)
        if (kept is None or kept[0] < demand) and len(self._fetching) < 2 * self._options.width:
            self._task(number, block_hash, demand)

    async def link_at(self, number: int) -> Header:
        params = msgspec.json.encode((to_quantity(number), False))
        found = await self._asker.ask(
            "eth_getBlockByNumber", params, number, lambda raw: block_from(raw, number=number)
        )
        return found.link

    async def close(self) -> None:
        """Stop fetching."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task(self, number: int, block_hash: str, demand: Demand) -> asyncio.Task[Block]:
        for wanted in Demand:
            # A richer one under way will do.
            task = self._fetching.get((block_hash, wanted)) if wanted >= demand else None
            if task is not None:
                return task
        key = (block_hash, demand)
        task = asyncio.create_task(self._fetch(number, block_hash, demand), name=f"block {number} of {self._network}")
        self._fetching[key] = task

        def done(finished: asyncio.Task[Block]) -> None:
            self._fetching.pop(key, None)
            if not finished.cancelled():
                # Whoever waits sees it; for a prefetch nobody may.
                finished.exception()

        task.add_done_callback(done)
        return task

    async def _fetch(self, number: int, block_hash: str, demand: Demand) -> Block:
        sharing = self._sharing()
        if sharing is None:
            block = await self._fetch_alone(number, block_hash, demand)
        else:
            fetch = partial(self._fetch_alone, number, block_hash, demand)
            block = await sharing.block(number, block_hash, demand, fetch)
        self._keep(block, demand)
        return block

    async def _fetch_alone(self, number: int, block_hash: str, demand: Demand) -> Block:
        async with self._slots:
            started = self._clock.monotonic()
            full = demand is Demand.FULL
            raw = await self._block(number, block_hash, demand)
            if demand is Demand.HEADERS:
                block = raw.block()
            else:
                content = await self._content.read(raw, full)
                block = raw.block(logs=content.logs)
                if full:
                    receipts = content.receipts or ()
                    block = raw.block(transactions=raw.transactions, receipts=receipts, logs=content.logs)
            self._metrics.fetched(self._network, demand, self._clock.monotonic() - started)
        return block

    def _keep(self, block: Block, demand: Demand) -> None:
        self._kept[block.hash] = (demand, block)
        while len(self._kept) > self._options.kept:
            self._kept.popitem(last=False)

    async def _block(self, number: int, block_hash: str, demand: Demand) -> RawBlock:
        full = demand is Demand.FULL
        params = msgspec.json.encode((block_hash, full))

        def accept(answer: Raw) -> RawBlock:
            return block_from(answer, block_hash, number, full=full)

        def accept_listing(answer: Raw) -> RawBlock:
            block = accept(answer)
            if not block.transactions:
                raise Unusable("the bloom filter of the block names logs, but no transactions are listed")
            return block

        raw = await self._asker.ask("eth_getBlockByHash", params, number, accept)
        if demand is Demand.HEADERS or raw.transactions or not raw.bloom:
            return raw
        try:
            return await self._asker.ask("eth_getBlockByHash", params, number, accept_listing, rounds=1)
        except ContentUnavailable:
            # All say so. Some chains have logs that belong to no transaction; whether they are whole is seen later.
            return raw
