"""Fetches the history of one subject, from its first block to the seam, until all of it is in the index.

Run by `backfill`. Final blocks are fetched by ranges, several at a time; the blocks between them and the seam one by
one, by the hashes that lead down from the seam, so that they are exactly the ancestors of what the stream brought. Each
part is written together with its coverage in one transaction: killed at any instant, the next run goes on behind the
last part. What the stream took back meanwhile is left out, because the seam is read again under the lock.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from capstan.chain.heads.headers import Header
from capstan.core.clock import Clock
from capstan.index.history import HistoryReader, HistoryUnavailable, RangeRefused
from capstan.index.metrics import IndexMetrics
from capstan.index.models import Position, SubjectKind, Transfer
from capstan.index.ranges import RangeLimit, RangePlan, Span
from capstan.index.subjects import Subjects, SubjectState
from capstan.index.writer import TransferWriter
from capstan.storage.database import Database

log = structlog.get_logger(__name__)

_PROGRESS_SECONDS = 10.0
# How many blocks to begin with: a block of a busy chain has hundreds of transfers, but few of one subject.
_FIRST_BLOCKS = {SubjectKind.ALL: 64, SubjectKind.HOLDER: 1_000, SubjectKind.CONTRACT: 1_000}
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of fetching history. The defaults suit every network."""

    # Ranges, or recent blocks, fetched at the same time.
    width: int = 4
    # For how long a process has a subject to itself; every part that is written begins this anew.
    claim_seconds: float = 20.0
    # Failures in a row after which the job is given up, to be tried again later.
    most_failures: int = 6
    # Blocks below the seam that are not final, where nobody knows.
    recent_blocks: int = 128
    # A contract with so many transfers and no NFT among them is not worth the rest of its history.
    most_without_nfts: int = 20_000


class _NotNfts(Exception):
    """The contract has many transfers, but none of an NFT: it is an ERC-20 token."""


class _Part:
    """A range of blocks that was fetched, and waits to be written."""

    def __init__(self, span: Span, rows: list[Transfer], seam: Position) -> None:
        self.span = span
        self.rows = rows
        self.seam = seam
        self.fetched = span[1] - span[0] + 1
        self.written = False

    def is_below(self, seam: Position) -> bool:
        """Cut it at the seam as it is now. False when nothing is left, or the stream has jumped.

        After a jump, what was fetched may be of another chain; it is fetched again.
        """
        if self.seam != seam and seam.number >= self.seam.number:
            return False
        first, last = self.span[0], min(self.span[1], seam.number)
        self.span = first, last
        self.rows = [row for row in self.rows if row.block_number <= last]
        return first <= last


class Source(msgspec.Struct, frozen=True):
    """One network to fetch from."""

    reader: HistoryReader
    limit: RangeLimit
    # The highest block that is final; None while that is not known.
    settled: Callable[[], int | None]

    @property
    def network(self) -> str:
        """`chain/network`."""
        return self.reader.network


class JobTools(msgspec.Struct, frozen=True):
    """What all jobs of a process share."""

    database: Database
    subjects: Subjects
    writer: TransferWriter
    metrics: IndexMetrics
    clock: Clock
    # The name under which this process claims subjects.
    process: str
    options: JobOptions


class HistoryJob:
    """The history of one subject."""

    def __init__(self, tools: JobTools, source: Source, state: SubjectState) -> None:
        self._tools = tools
        self._source = source
        self._subject = state.subject
        self._id = state.id
        self._failures = 0
        self._events = 0
        self._seen = 0
        self._told_at = tools.clock.monotonic()
        self._waiting: list[_Part] = []
        self._writing = asyncio.Lock()
        # Blocks that are still to be fetched, for the progress.
        self.left = 0

    async def run(self) -> bool:
        """Fetch until all is there. False when another process is at it, or the upstreams do not answer.

        A contract that turns out not to have NFTs is not followed any more; that is false too.
        """
        tools = self._tools
        async with tools.database.write() as connection:
            if not await tools.subjects.claim(connection, self._id, tools.process, tools.options.claim_seconds):
                return False
        started = tools.clock.monotonic()
        try:
            while (work := await self._work()) is not None:
                await self._round(*work)
        except HistoryUnavailable as error:
            log.warning("index.backfill_postponed", **self._words(), reason=str(error))
            return False
        except _NotNfts:
            log.info("index.not_nfts", **self._words(), transfers=self._seen)
            async with tools.database.write() as connection:
                await tools.subjects.forget(connection, self._id)
            return False
        finally:
            self.left = 0
            async with tools.database.write() as connection:
                await tools.subjects.release(connection, self._id, tools.process)
        seconds = round(tools.clock.monotonic() - started, 3)
        log.info("index.backfill_done", **self._words(), transfers=self._events, seconds=seconds)
        return True

    async def _work(self) -> tuple[SubjectState, list[Span]] | None:
        """The subject and what is missing of it; None when nothing is."""
        tools = self._tools
        async with tools.database.write() as connection:
            await tools.subjects.lock(connection, self._source.network)
            state = await tools.subjects.get(connection, self._id)
            if state is None or state.complete or await tools.subjects.settle(connection, state):
                return None
            gaps = await tools.subjects.missing(connection, state)
        self.left = sum(last - first + 1 for first, last in gaps)
        return (state, gaps) if gaps else None

    async def _round(self, state: SubjectState, gaps: list[Span]) -> None:
        assert state.seam is not None
        settled = self._source.settled()
        if settled is None:
            settled = state.seam.number - self._tools.options.recent_blocks
        final = [(first, min(last, settled)) for first, last in gaps if first <= settled]
        recent = [(max(first, settled + 1), last) for first, last in gaps if last > settled]
        if final:
            plan = RangePlan(final, self._source.limit, _FIRST_BLOCKS[self._subject.kind])
            seam = state.seam
            await _together(lambda: self._fetch_ranges(plan, seam), self._tools.options.width)
        if recent:
            await self._fetch_recent(state, recent)

    async def _fetch_ranges(self, plan: RangePlan, seam: Position) -> None:
        while (span := plan.take()) is not None:
            try:
                found = await self._source.reader.in_range(self._subject, *span)
            except RangeRefused as refusal:
                if not plan.refused(span, limit=refusal.limit, lasting=refusal.lasting):
                    raise HistoryUnavailable(f"block {span[0]} alone is too much: {refusal}") from None
                log.info("index.range_refused", **self._words(), blocks=span[1] - span[0] + 1, next=plan.blocks)
                continue
            except HistoryUnavailable as error:
                await self._pause(error)
                plan.failed(span)
                continue
            self._failures = 0
            await self._write(span, found, seam)
            plan.succeeded(span, len(found))

    async def _fetch_recent(self, state: SubjectState, gaps: list[Span]) -> None:
        assert state.seam is not None
        block_hash, wanted = "0x" + state.seam.hash.hex(), []
        for number in range(state.seam.number, gaps[0][0] - 1, -1):
            header = await self._source.reader.header(block_hash)
            if header.number != number:
                raise HistoryUnavailable(f"block {number} has another number at an upstream")
            if any(first <= number <= last for first, last in gaps):
                wanted.append(header)
            block_hash = header.parent_hash
        found: list[Transfer] = []

        async def fetch(pending: list[Header]) -> None:
            while pending:
                found.extend(await self._source.reader.in_block(self._subject, pending.pop()))

        await _together(lambda: fetch(wanted), self._tools.options.width)
        for first, last in gaps:
            await self._write((first, last), [item for item in found if first <= item.block_number <= last], state.seam)

    async def _write(self, span: Span, found: list[Transfer], seam: Position) -> None:
        """Write a part of the history and that it is there. `seam` is the one under which it was fetched.

        Parts that arrive while others are being written go into one transaction: the rows of each fall all over the
        indexes, and a page that several parts touch is then written once.
        """
        part = _Part(span, self._wanted(found), seam)
        self._waiting.append(part)
        async with self._writing:
            if part.written:
                return
            parts, self._waiting = self._waiting, []
            try:
                await self._write_parts(parts)
            except BaseException:
                # Whoever waits behind us for its part tries again.
                self._waiting = parts + self._waiting
                raise
            for one in parts:
                one.written = True
        self._tell(parts)

    async def _write_parts(self, parts: list["_Part"]) -> None:
        tools = self._tools
        async with tools.database.write() as connection:
            network = await tools.subjects.lock(connection, self._source.network)
            state = await tools.subjects.get(connection, self._id)
            if state is None or state.seam is None:
                return
            fitting = [part for part in parts if part.is_below(state.seam)]
            added = 0
            for part in fitting:
                added += await tools.writer.add(connection, network.id, part.rows)
                await tools.subjects.cover(connection, state, *part.span)
            await tools.subjects.claim(connection, self._id, tools.process, tools.options.claim_seconds)
        self._events += added
        tools.metrics.transfers.labels(self._source.network, "backfill").inc(added)

    def _tell(self, parts: list["_Part"]) -> None:
        tools = self._tools
        blocks = sum(part.fetched for part in parts)
        self.left = max(0, self.left - blocks)
        tools.metrics.blocks.labels(self._source.network).inc(blocks)
        if tools.clock.monotonic() - self._told_at > _PROGRESS_SECONDS:
            self._told_at = tools.clock.monotonic()
            log.info("index.backfill", **self._words(), blocks_left=self.left, transfers=self._events)

    def _wanted(self, found: list[Transfer]) -> list[Transfer]:
        """Those that belong to the subject: of a contract only the NFTs."""
        if self._subject.kind is not SubjectKind.CONTRACT:
            return found
        self._seen += len(found)
        nfts = [item for item in found if item.is_nft]
        if not nfts and not self._events and self._seen >= self._tools.options.most_without_nfts:
            raise _NotNfts
        return nfts

    async def _pause(self, error: HistoryUnavailable) -> None:
        self._failures += 1
        if self._failures > self._tools.options.most_failures:
            raise error
        await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS))

    def _words(self) -> dict[str, str]:
        return {"network": self._source.network, "subject": str(self._subject)}


async def _together(work: Callable[[], Coroutine[Any, Any, None]], width: int) -> None:
    """Run the same work several times at once; the first failure ends the rest and is raised."""
    tasks = [asyncio.create_task(work()) for _ in range(width)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
