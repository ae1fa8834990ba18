"""Counts every request in memory; the writer brings the counts to the database twice a second.

The server calls `UsageRecorder.record` once for each JSON-RPC call and each REST request, on the event loop and on the
hot path: it looks at the clock, finds one small object and adds to it. It must never wait, raise or touch the database.

Memory is bounded. Method names come from callers, so a name that is not known is counted as "other". While more series
are held than `max_series`, which takes an outage of the database or tens of thousands of busy keys, detail is given up
before counts are: first new methods are counted as "other", then minutes of one day are counted as one. Only beyond
twice the bound are counts of new series dropped, and that is logged and exported.
"""

from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry

from capstan.core.clock import Clock
from capstan.usage.ledger import UsageLedger
from capstan.usage.models import BUCKET_OF_BITS, MINUTES_PER_DAY, OTHER, SECONDS_PER_MINUTE, Delta, Tally
from capstan.usage.writer import Retention, UsageWriter

_LONGEST_NAME = 100

_log = structlog.get_logger(__name__)

# Key, network and method.
_Series = tuple[str, str, str]


class UsageRecorder:
    """The counts of this process that are not in the database yet."""

    def __init__(
        self,
        ledger: UsageLedger,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        known: Callable[[str], bool],
        max_series: int = 50_000,
        flush_seconds: float = 0.5,
        timeout_seconds: float = 10.0,
        close_seconds: float = 5.0,
        retention: Retention | None = None,
    ) -> None:
        """`known` says whether a name is one of ours; it is asked only when a series is seen for the first time."""
        self._now = clock.now
        self._known = known
        self._max_series = max_series
        self._minutes: dict[int, dict[_Series, Tally]] = {}
        self._minute = 0
        self._begins = self._ends = 0.0
        self._current: dict[_Series, Tally] = {}
        self._held = 0
        self._overflow = Tally("")
        self._overflowing = False
        self._writer = UsageWriter(
            ledger,
            clock,
            registry,
            cut=self._cut,
            flush_seconds=flush_seconds,
            timeout_seconds=timeout_seconds,
            close_seconds=close_seconds,
            retention=retention or Retention(),
        )

    @property
    def held(self) -> int:
        """How many series are in memory and not yet handed to the writer."""
        return self._held

    def record(
        self,
        account_id: str,
        key_id: str,
        network: str,
        method: str,
        units: int,
        failed: bool,
        microseconds: int,
        cached: bool = False,
    ) -> None:
        """Count one request. `network` is empty for requests that concern none; `units` are those not refunded."""
        if not self._begins <= self._now() < self._ends:
            self._turn()
        tally = self._current.get((key_id, network, method))
        if tally is None:
            tally = self._open(account_id, key_id, network, method)
        tally.units += units
        tally.microseconds += microseconds
        tally.buckets[BUCKET_OF_BITS[microseconds.bit_length()]] += 1
        if failed:
            tally.errors += 1
        if cached:
            tally.cached += 1

    def record_pushes(self, *, account_id: str, key_id: str, network: str, method: str, count: int, units: int) -> None:
        """Count messages that were sent unasked; `units` are those of all of them. They take no time of a request."""
        if not self._begins <= self._now() < self._ends:
            self._turn()
        tally = self._current.get((key_id, network, method)) or self._open(account_id, key_id, network, method)
        tally.units += units
        tally.buckets[0] += count

    async def start(self) -> None:
        """Begin to write to the database."""
        await self._writer.start()

    async def flush(self) -> bool:
        """Write everything recorded so far; false when the database is away."""
        return await self._writer.flush()

    async def close(self) -> None:
        """Stop, having written everything. Call it after the last request and before the database is closed."""
        await self._writer.close()

    def _turn(self) -> None:
        """Begin the minute that the clock shows."""
        minute = int(self._now() // SECONDS_PER_MINUTE)
        self._begins = float(minute * SECONDS_PER_MINUTE)
        self._ends = self._begins + SECONDS_PER_MINUTE
        # With too much in memory the last minute goes on: the days stay exact, and nothing new has to be held.
        same_day = minute // MINUTES_PER_DAY == self._minute // MINUTES_PER_DAY
        if self._held >= self._max_series and same_day:
            return
        self._minute = minute
        self._current = self._minutes.setdefault(minute, {})

    def _open(self, account_id: str, key_id: str, network: str, method: str) -> Tally:
        """The tally of a series that has none yet in this minute."""
        if self._held >= self._max_series or not _is_plain(method) or not self._known(method):
            method = OTHER
        if not _is_plain(network):
            network = OTHER
        tally = self._current.get((key_id, network, method))
        if tally is not None:
            return tally
        if self._held >= 2 * self._max_series:
            return self._overflow
        self._held += 1
        tally = self._current[key_id, network, method] = Tally(account_id)
        return tally

    def _cut(self) -> tuple[list[Delta], int]:
        """Everything recorded since the last cut, and how many requests had to be dropped."""
        minutes, self._minutes = self._minutes, {}
        # The next record turns to a minute of its own.
        self._current = {}
        self._begins = self._ends = 0.0
        self._held = 0
        overflow, self._overflow = self._overflow, Tally("")
        deltas = [
            Delta(tally.account_id, key_id, network, method, minute, tally)
            for minute, tallies in minutes.items()
            for (key_id, network, method), tally in tallies.items()
        ]
        dropped = overflow.requests
        if dropped and not self._overflowing:
            _log.error("usage.too_many_series", held=len(deltas), dropped_requests=dropped)
        self._overflowing = bool(dropped)
        return deltas, dropped


def _is_plain(name: str) -> bool:
    """Whether a name can be stored on every database: PostgreSQL, for one, refuses NUL characters."""
    return len(name) <= _LONGEST_NAME and name.isascii() and name.isprintable()
