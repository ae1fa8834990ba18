"""Brings the counts of this process to the database, and deletes old ones, in one background task.

`UsageRecorder` makes it and hands it a function that cuts off what was recorded so far. What was cut is divided into
batches, each with a number; a batch does not change any more and is sent until the ledger has it, so that nothing is
lost or counted twice whatever happens to the connection. While a batch is waiting nothing more is cut: the recorder
goes on adding to what it holds, within its bound.

The flush interval is half of the second that a crash may lose; the other half is for the transaction. The metrics are
counted here, at the cut, to keep them off the hot path. They name networks and methods, never keys.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.exc import SQLAlchemyError

from capstan.core.clock import Clock
from capstan.storage.errors import StorageError
from capstan.usage.ledger import UsageLedger
from capstan.usage.models import MINUTES_PER_DAY, OTHER, SECONDS_PER_MINUTE, Delta

# Series in one transaction: on SQLite nobody else can write meanwhile.
_BATCH = 500
_LABEL_SETS = 2_000
_PRUNE_SECONDS = 60.0
_PRUNE_ROWS = 1_000
# What a database that is away looks like. Anything else is logged with its trace, but handled the same.
_OUTAGES = (StorageError, SQLAlchemyError, OSError)

_log = structlog.get_logger(__name__)

Cut = Callable[[], tuple[list[Delta], int]]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long counts are kept."""

    minute_hours: int = 48
    days: int = 400


class _Batch(msgspec.Struct, frozen=True):
    sequence: int
    deltas: list[Delta]


class UsageWriter:
    """The batches under way, and the task that sends them."""

    def __init__(
        self,
        ledger: UsageLedger,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        cut: Cut,
        flush_seconds: float,
        timeout_seconds: float,
        close_seconds: float,
        retention: Retention,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._cut = cut
        self._flush_seconds = flush_seconds
        self._timeout_seconds = timeout_seconds
        self._close_seconds = close_seconds
        self._retention = retention
        self._process = secrets.token_hex(16)
        self._sequence = 0
        self._batches: deque[_Batch] = deque()
        self._sending = asyncio.Lock()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._away = False
        self._prune_at = 0.0
        self._metrics = _Metrics(registry)

    async def start(self) -> None:
        """Start the task."""
        if self._task is None:
            self._closing.clear()
            self._task = asyncio.create_task(self._run(), name="usage-writer")

    async def close(self) -> None:
        """Stop the task and write everything. Says how much is lost when the database is away."""
        task, self._task = self._task, None
        if task is not None:
            self._closing.set()
            # A transaction that is under way may finish; it is cut off only when it hangs.
            await asyncio.wait((task,), timeout=self._close_seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(self._close_seconds):
                # The first may only send what was cut before; the second sends the rest.
                if await self.flush():
                    await self.flush()
        except TimeoutError as error:
            self._went_away(error)
        self._collect()
        if self._batches:
            lost = sum(delta.tally.requests for batch in self._batches for delta in batch.deltas)
            _log.error("usage.counts_lost", batches=len(self._batches), requests=lost)
            self._batches.clear()

    async def flush(self) -> bool:
        """Send what is waiting, or else what was recorded so far; false when the database is away."""
        async with self._sending:
            if not self._batches:
                self._collect()
            while self._batches:
                if not await self._send(self._batches[0]):
                    return False
                self._batches.popleft()
            return True

    async def prune(self) -> None:
        """Delete a bounded number of old rows, if it is time to."""
        moment = self._clock.monotonic()
        if moment < self._prune_at:
            return
        now = self._clock.now()
        minute = int(now // SECONDS_PER_MINUTE)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                done = await self._ledger.prune(
                    first_minute=minute - self._retention.minute_hours * 60,
                    first_day=minute // MINUTES_PER_DAY - self._retention.days,
                    now=now,
                    rows=_PRUNE_ROWS,
                )
        except Exception as error:
            self._went_away(error)
            return
        self._came_back()
        # What is left over is deleted at the next turns, so that nobody waits long for the database.
        if done:
            self._prune_at = moment + _PRUNE_SECONDS

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            due = loop.time() + self._flush_seconds
            try:
                if await self.flush():
                    await self.prune()
            except Exception:
                # A defect, not an outage. The next turn must still come.
                _log.exception("usage.writer_failed")
            try:
                async with asyncio.timeout_at(max(due, loop.time())):
                    await self._closing.wait()
            except TimeoutError:
                continue

    def _collect(self) -> None:
        """Cut, and divide what was cut into batches. All processes sort alike; see `ledger` for why."""
        deltas, dropped = self._cut()
        deltas.sort()
        self._metrics.count(deltas, dropped)
        for start in range(0, len(deltas), _BATCH):
            self._sequence += 1
            self._batches.append(_Batch(self._sequence, deltas[start : start + _BATCH]))

    async def _send(self, batch: _Batch) -> bool:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                added = await self._ledger.add(self._process, batch.sequence, batch.deltas, now=self._clock.now())
        except Exception as error:
            # Whether it was added is not known, and need not be: the ledger will know when it is sent again.
            self._went_away(error)
            return False
        if not added:
            _log.info("usage.batch_was_there", sequence=batch.sequence)
        self._came_back()
        return True

    def _went_away(self, error: Exception) -> None:
        if self._away:
            return
        self._away = True
        self._metrics.up.set(0)
        # Only the class: the text of an engine's exception may quote data.
        _log.warning(
            "usage.database_away",
            why=type(error).__name__,
            consequence="usage is counted in memory until the database is back",
            exc_info=None if isinstance(error, _OUTAGES) else error,
        )

    def _came_back(self) -> None:
        if self._away:
            self._away = False
            self._metrics.up.set(1)
            _log.info("usage.database_back")


class _Metrics:
    """What the writer exports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("network", "method")

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._requests = counter("capstan_usage_requests", "Calls with a key, by network and method.")
        self._units = counter("capstan_usage_units", "Compute units of these calls.")
        self._errors = counter("capstan_usage_errors", "Those of them that failed.")
        self._cached = counter("capstan_usage_cached", "Those of them that were answered from the cache.")
        self._seconds = counter("capstan_usage_seconds", "The time they took together.")
        self._seen: set[tuple[str, str]] = set()
        self._dropped = Counter(
            "capstan_usage_dropped_requests",
            "Requests missing in the usage ledger for want of memory.",
            registry=registry,
        )
        self.up = Gauge("capstan_usage_database_up", "1 while usage is written to the database.", registry=registry)
        self.up.set(1)

    def count(self, deltas: Iterable[Delta], dropped: int) -> None:
        """Count what was cut."""
        self._dropped.inc(dropped)
        counters = (self._requests, self._units, self._errors, self._cached)
        sums: dict[tuple[str, str], list[int]] = {}
        for delta in deltas:
            tally = delta.tally
            held = sums.setdefault((delta.network, delta.method), [0, 0, 0, 0, 0])
            held[0] += tally.requests
            held[1] += tally.units
            held[2] += tally.errors
            held[3] += tally.cached
            held[4] += tally.microseconds
        for pair, (*counts, microseconds) in sums.items():
            labels = self._bounded(pair)
            for counter, count in zip(counters, counts, strict=True):
                counter.labels(*labels).inc(count)
            self._seconds.labels(*labels).inc(microseconds / 1_000_000)

    def _bounded(self, pair: tuple[str, str]) -> tuple[str, str]:
        if pair not in self._seen:
            if len(self._seen) >= _LABEL_SETS:
                return (OTHER, OTHER)
            self._seen.add(pair)
        return pair
