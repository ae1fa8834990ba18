"""The figures of the overview: what an account used over a range of time, as points for charts and as sums.

Called by the overview. Reads the usage ledger through its store and adds up; the store says what is remembered.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from capstan.core.clock import Clock, utc
from capstan.dashboard.charts import Point
from capstan.usage.models import Counts, Usage
from capstan.usage.store import UsageStore

Range = Literal["1h", "24h", "30d"]
RANGES: dict[Range, str] = {"1h": "1 hour", "24h": "24 hours", "30d": "30 days"}
_MINUTES: dict[Range, int] = {"1h": 60, "24h": 1_440}
_STEP: dict[Range, int] = {"1h": 1, "24h": 15}
_DAYS = 30


class Figures(msgspec.Struct, frozen=True):
    """What was used over a range."""

    total: Counts
    requests: list[Point]
    # In microseconds, at 95 percent.
    latency: list[Point]
    by_method: list[Usage]
    by_key: list[Usage]


class UsageFigures:
    """Adds up what the ledger holds."""

    def __init__(self, store: UsageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def over(self, account_id: str, wanted: Range) -> Figures:
        """The figures of a range that ends now."""
        if wanted == "30d":
            days = await self._store.report("day", account_id, _DAYS)
            methods = await self._store.by_method(account_id, _DAYS)
            keys = await self._store.by_key(account_id, _DAYS)
            return _figures(days.total, self._days(days.entries), methods, keys)
        minutes = await self._store.by_minute(account_id, _MINUTES[wanted])
        total = sum((entry.counts for entry in minutes), Counts())
        methods = await self._store.recent("method", account_id, _MINUTES[wanted])
        keys = await self._store.recent("key", account_id, _MINUTES[wanted])
        return _figures(total, self._steps(minutes, _MINUTES[wanted], _STEP[wanted]), methods, keys)

    async def today(self, account_id: str) -> Counts:
        """What was used since midnight UTC."""
        return (await self._store.report("day", account_id, 1)).total

    def _days(self, entries: Sequence[Usage]) -> list[tuple[str, Counts]]:
        """Every day of the range, also those without use."""
        known = {entry.name: entry.counts for entry in entries}
        last = utc(self._clock)
        days = [last - timedelta(days=back) for back in reversed(range(_DAYS))]
        return [(each.strftime("%-d %b"), known.get(each.strftime("%Y-%m-%d"), Counts())) for each in days]

    def _steps(self, entries: Sequence[Usage], minutes: int, step: int) -> list[tuple[str, Counts]]:
        """Every step of the range, oldest first, also those without use."""
        present = int(self._clock.now()) // 60
        first = present - minutes + 1
        sums = [Counts()] * (minutes // step)
        for entry in entries:
            moment = datetime.strptime(entry.name, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            place = (int(moment.timestamp()) // 60 - first) // step
            if 0 <= place < len(sums):
                sums[place] += entry.counts
        names = [datetime.fromtimestamp((first + place * step) * 60, UTC) for place in range(len(sums))]
        return [(name.strftime("%H:%M"), counts) for name, counts in zip(names, sums, strict=True)]


def _figures(
    total: Counts, steps: Sequence[tuple[str, Counts]], by_method: list[Usage], by_key: list[Usage]
) -> Figures:
    return Figures(
        total=total,
        requests=[Point(name, counts.requests, counts.errors) for name, counts in steps],
        latency=[Point(name, counts.quantile_microseconds(95)) for name, counts in steps],
        by_method=by_method,
        by_key=by_key,
    )
