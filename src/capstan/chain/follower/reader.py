"""Fetches blocks with as much of their content as is demanded, from whichever upstream has it, and only if it is whole.

Used by the walks of one network, which share it: a block that two of them need is fetched once. Everything is asked by
the block's hash, so an answer can never belong to another block of the same number. Which way to the logs and receipts
a network has is learned from its upstreams' errors and remembered for a while. Questions, repetitions and the blocks
kept are bounded; what cannot be had is `ContentUnavailable`, and the walk tries again later.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import ChainError, NodeError, is_method_missing
from capstan.chain.follower.decoding import (
    RawBlock,
    Unusable,
    block_from,
    logs_from,
    logs_of,
    missing_from,
    receipt_from,
    receipts_from,
    transaction_hashes,
)
from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.follower.models import Block, Demand, Log
from capstan.chain.heads.headers import Header
from capstan.chain.models import Attempt
from capstan.chain.pool import UpstreamPool
from capstan.core.clock import Clock
from capstan.core.errors import UpstreamError, UpstreamTimeout
from capstan.core.hexes import to_quantity

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A method that no upstream has is asked for again only after so long: one may have been upgraded.
_MISSING_SECONDS = 600.0
# Methods for which there is another way.
_OPTIONAL = frozenset({"eth_getBlockReceipts", "eth_getTransactionReceipt", "eth_getLogs"})


class ContentUnavailable(Exception):
    """No upstream has given the block as it must be. Trying later may work."""


class _MethodMissing(Exception):
    """No upstream of the network has the method."""


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of fetching. The defaults suit every network."""

    # One question, all upstreams that are tried included.
    call_timeout: float = 10.0
    # Times every upstream is asked before a block counts as unavailable, and the pause that grows between them.
    rounds: int = 4
    pause: float = 0.1
    # Blocks fetched at the same time, and receipts of one block where they must be fetched one by one.
    width: int = 8
    receipts_width: int = 16
    # Blocks that are kept for walks that need them a little later.
    kept: int = 32


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


class BlockReader:
    """The reader of one network."""

    def __init__(
        self,
        network: str,
        pool: Callable[[], UpstreamPool],
        clock: Clock,
        metrics: StreamMetrics,
        options: ReaderOptions | None = None,
    ) -> None:
        self._network = network
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._options = options or ReaderOptions()
        self._kept: OrderedDict[str, tuple[Demand, Block]] = OrderedDict()
        self._fetching: dict[tuple[str, Demand], asyncio.Task[Block]] = {}
        self._slots = asyncio.Semaphore(self._options.width)
        self._missing: dict[str, float] = {}
        # The chain's bloom filter does not cover its logs, as two ways of asking agree.
        self._odd_bloom = False

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
        found = await self._ask("eth_getBlockByNumber", params, number, lambda raw: block_from(raw, number=number))
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
        async with self._slots:
            started = self._clock.monotonic()
            full = demand is Demand.FULL
            params = msgspec.json.encode((block_hash, full))
            raw = await self._ask("eth_getBlockByHash", params, number, lambda raw: block_from(raw, block_hash, number))
            if demand is Demand.HEADERS:
                block = raw.block()
            elif full:
                receipts = await self._receipts(raw, _hashes_of_objects(raw))
                logs = logs_of(receipts, block_hash)
                await self._check(raw, logs)
                block = raw.block(transactions=raw.transactions, receipts=receipts, logs=logs)
            else:
                block = raw.block(logs=await self._logs(raw))
            self._metrics.fetched(self._network, demand, self._clock.monotonic() - started)
        self._keep(block, demand)
        return block

    def _keep(self, block: Block, demand: Demand) -> None:
        self._kept[block.hash] = (demand, block)
        while len(self._kept) > self._options.kept:
            self._kept.popitem(last=False)

    # --- logs and receipts, by the ways the network has

    async def _logs(self, raw: RawBlock) -> tuple[Log, ...]:
        if not raw.transactions:
            return ()
        link = raw.link
        params = msgspec.json.encode(({"blockHash": link.hash},))

        def accept(answer: Raw) -> tuple[Log, ...]:
            logs = logs_from(answer, link.hash)
            problem = None if self._odd_bloom else missing_from(logs, raw.bloom)
            if problem is not None:
                raise Unusable(problem)
            return logs

        try:
            return await self._ask("eth_getLogs", params, link.number, accept)
        except (_MethodMissing, ContentUnavailable) as error:
            log.info("stream.logs_by_receipts", network=self._network, number=link.number, reason=str(error))
        logs = logs_of(await self._receipts(raw, transaction_hashes(raw)), link.hash)
        await self._check(raw, logs)
        return logs

    async def _check(self, raw: RawBlock, logs: Sequence[Log]) -> None:
        """Logs out of receipts: is there one for each that the bloom filter names?"""
        problem = None if self._odd_bloom else missing_from(logs, raw.bloom)
        if problem is None:
            return
        link = raw.link
        params = msgspec.json.encode(({"blockHash": link.hash},))
        try:
            others = await self._ask("eth_getLogs", params, link.number, lambda answer: logs_from(answer, link.hash))
        except _MethodMissing:
            raise ContentUnavailable(f"block {link.number}: {problem}") from None
        if [item.raw for item in others] != [item.raw for item in logs] and len(others) != len(logs):
            raise ContentUnavailable(f"block {link.number}: {problem}, and receipts and logs differ")
        # Two ways of asking agree: this chain fills its bloom filter, or numbers its logs, in a way of its own.
        log.warning("stream.bloom_not_usable", network=self._network, number=link.number, reason=problem)
        self._odd_bloom = True

    async def _receipts(self, raw: RawBlock, hashes: tuple[str, ...]) -> tuple[Raw, ...]:
        if not hashes:
            return ()
        link = raw.link

        def accept(answer: Raw) -> tuple[Raw, ...]:
            return receipts_from(answer, link.hash, len(hashes))

        try:
            return await self._ask("eth_getBlockReceipts", msgspec.json.encode((link.hash,)), link.number, accept)
        except _MethodMissing:
            return await self._single_receipts(link, hashes)

    async def _single_receipts(self, link: Header, hashes: tuple[str, ...]) -> tuple[Raw, ...]:
        slots = asyncio.Semaphore(self._options.receipts_width)

        async def one(transaction_hash: str) -> Raw:
            params = msgspec.json.encode((transaction_hash,))
            async with slots:
                return await self._ask(
                    "eth_getTransactionReceipt",
                    params,
                    link.number,
                    lambda answer: receipt_from(answer, link.hash, transaction_hash),
                )

        try:
            return tuple(await _gather(one, hashes))
        except _MethodMissing:
            raise ContentUnavailable(f"no upstream of {self._network} tells receipts") from None

    # --- asking

    async def _ask(self, method: str, params: bytes, number: int, accept: Callable[[Raw], T]) -> T:
        """The first answer that is accepted: of the best upstream, then of each other one, for some rounds."""
        if self._clock.monotonic() < self._missing.get(method, 0.0):
            raise _MethodMissing(method)
        reason = "no upstream answered"
        for attempt in range(self._options.rounds):
            if attempt:
                await asyncio.sleep(self._options.pause * 2 ** (attempt - 1))
            for position, question in enumerate(self._questions(method, params, number)):
                try:
                    return accept(await question)
                except Unusable as problem:
                    self._metrics.incomplete(self._network)
                    reason = str(problem)
                except NodeError as error:
                    reason = str(error)
                    if position == 0 and is_method_missing(error) and self._lacks(method):
                        raise _MethodMissing(method) from None
                except (ChainError, UpstreamError, UpstreamTimeout) as error:
                    reason = str(error)
        raise ContentUnavailable(f"block {number} of {self._network}: {method}: {reason}")

    def _questions(self, method: str, params: bytes, number: int) -> Iterator[Awaitable[Raw]]:
        pool, timeout = self._pool(), self._options.call_timeout
        attempts: list[Attempt] = []
        yield pool.call(method, params, timeout=timeout, needs_block=number, attempts=attempts)
        answered = {attempt.upstream for attempt in attempts if attempt.outcome == "ok"}
        for member in pool.members:
            if member.name not in answered and member.in_rotation and member.allows(method):
                yield member.call(method, params, timeout=timeout)

    def _lacks(self, method: str) -> bool:
        """No upstream has the method: the pool has asked all of them before it says so."""
        if method not in _OPTIONAL:
            return False
        self._missing[method] = self._clock.monotonic() + _MISSING_SECONDS
        log.info("stream.method_missing", network=self._network, method=method)
        return True


class _Hash(msgspec.Struct):
    hash: str


_TRANSACTION = msgspec.json.Decoder(_Hash)


def _hashes_of_objects(raw: RawBlock) -> tuple[str, ...]:
    try:
        return tuple(_TRANSACTION.decode(item).hash for item in raw.transactions)
    except msgspec.MsgspecError as error:
        raise ContentUnavailable(f"block {raw.link.number}: not a transaction: {error}") from None


async def _gather(work: Callable[[str], Coroutine[Any, Any, Raw]], items: Sequence[str]) -> list[Raw]:
    """All results in order; the first failure ends the rest."""
    tasks = [asyncio.create_task(work(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
