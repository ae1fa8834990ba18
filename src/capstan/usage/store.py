"""Reads the usage ledger: what one account used, by day, minute, method, key or network.

The routes and the dashboard call this. Every query names the account, so that nobody sees another's use. What was
recorded in the last second may still be missing; it is on its way.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Select, Table, func, select

from capstan.core.clock import Clock, iso
from capstan.storage.database import Database
from capstan.storage.schema import usage_day, usage_minute
from capstan.usage.ledger import BUCKET_COLUMNS, COUNT_COLUMNS
from capstan.usage.models import MINUTES_PER_DAY, SECONDS_PER_MINUTE, Counts, Usage

Group = Literal["method", "key", "network", "day"]
RecentGroup = Literal["method", "key", "network"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: dict[Group, ColumnElement[Any]] = {
    "method": usage_day.c.method,
    "key": usage_day.c.key_id,
    "network": usage_day.c.network,
    "day": usage_day.c.day,
}
_RECENT: dict[RecentGroup, ColumnElement[Any]] = {
    "method": usage_minute.c.method,
    "key": usage_minute.c.key_id,
    "network": usage_minute.c.network,
}


class UsageReport(msgspec.Struct, frozen=True):
    """What an account used from one UTC day to another, both included, in all and by group."""

    first_day: str
    last_day: str
    total: Counts
    entries: list[Usage]


class UsageStore:
    """The reading side of the ledger's tables. `days` and `minutes` count back from now and include the present one."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def by_day(self, account_id: str, days: int) -> list[Usage]:
        """One entry for each UTC day with use, oldest first."""
        return (await self.report("day", account_id, days)).entries

    async def by_method(self, account_id: str, days: int) -> list[Usage]:
        """One entry for each method, the most used first."""
        return (await self.report("method", account_id, days)).entries

    async def by_key(self, account_id: str, days: int) -> list[Usage]:
        """One entry for each key id, the most used first."""
        return (await self.report("key", account_id, days)).entries

    async def by_network(self, account_id: str, days: int) -> list[Usage]:
        """One entry for each network, the most used first. The name is empty for requests that concern none."""
        return (await self.report("network", account_id, days)).entries

    async def by_minute(self, account_id: str, minutes: int) -> list[Usage]:
        """One entry for each minute with use, oldest first. Minutes are kept for two days by default."""
        column = usage_minute.c.minute
        first = int(self._clock.now() // SECONDS_PER_MINUTE) - minutes + 1
        query = (
            _sums(column, usage_minute)
            .where(usage_minute.c.account_id == account_id, column >= first)
            .group_by(column)
            .order_by(column)
        )
        return [Usage(_minute_text(name), counts) for name, counts in await self._read(query)]

    async def recent(self, group: RecentGroup, account_id: str, minutes: int) -> list[Usage]:
        """One entry for each name in the latest minutes, the most used first."""
        column = _RECENT[group]
        first = int(self._clock.now() // SECONDS_PER_MINUTE) - minutes + 1
        query = (
            _sums(column, usage_minute)
            .where(usage_minute.c.account_id == account_id, usage_minute.c.minute >= first)
            .group_by(column)
            .order_by(func.sum(usage_minute.c.requests).desc(), column)
        )
        return [Usage(name, counts) for name, counts in await self._read(query)]

    async def any_use(self, account_id: str) -> bool:
        """Whether the account has ever used anything, as far as is remembered."""
        query = select(usage_day.c.day).where(usage_day.c.account_id == account_id).limit(1)
        async with self._database.read() as connection:
            return (await connection.scalar(query)) is not None

    async def report(self, group: Group, account_id: str, days: int) -> UsageReport:
        """The entries of one group, from one statement, so that the total is exactly their sum."""
        last = int(self._clock.now() // SECONDS_PER_MINUTE) // MINUTES_PER_DAY
        first = last - days + 1
        column = _COLUMNS[group]
        query = (
            _sums(column, usage_day)
            .where(usage_day.c.account_id == account_id, usage_day.c.day >= first)
            .group_by(column)
            .order_by(*((column,) if group == "day" else (func.sum(usage_day.c.requests).desc(), column)))
        )
        entries = [
            Usage(_day_text(name) if group == "day" else name, counts) for name, counts in await self._read(query)
        ]
        total = sum((entry.counts for entry in entries), Counts())
        return UsageReport(_day_text(first), _day_text(last), total, entries)

    async def _read(self, query: Select[Any]) -> list[tuple[Any, Counts]]:
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        return [(row[0], _counts(row[1:])) for row in rows]


def _sums(column: ColumnElement[Any], table: Table) -> Select[Any]:
    return select(column, *(func.sum(table.c[name]) for name in (*COUNT_COLUMNS, *BUCKET_COLUMNS)))


def _counts(row: Iterable[Any]) -> Counts:
    # PostgreSQL adds up 64-bit integers as decimals.
    requests, units, errors, cached, microseconds, *buckets = (int(value) for value in row)
    return Counts(requests, units, errors, cached, microseconds, tuple(buckets))


def _day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")


def _minute_text(minute: int) -> str:
    return iso(_EPOCH + timedelta(minutes=minute))
