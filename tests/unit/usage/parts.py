"""What the tests of the usage ledger share: recorders ready to use, a look at the tables, and faults at the commit."""

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from sqlalchemy import func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.storage.errors import StorageUnavailable
from capstan.storage.schema import usage_day, usage_minute
from capstan.usage.ledger import COUNT_COLUMNS, UsageLedger
from capstan.usage.recorder import UsageRecorder

METHODS = ("eth_call", "eth_getBalance", "getSlot", "GET /v1/account")
DAY = 19_675
# Ten in the morning of that day.
MORNING = DAY * 86_400.0 + 36_000.0
FIRST_MINUTE = DAY * 1_440 + 600

# Account, minute or day, key, network, method.
Slot = tuple[str, int, str, str, str]
# Requests, units, errors, cached, microseconds.
Numbers = tuple[int, ...]


class FaultyDatabase(Database):
    """A real database whose next transactions fail, before their commit or after it, as when a connection is lost."""

    faults: deque[Literal["before", "after"]]

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        fault = self.faults.popleft() if self.faults else None
        async with super().write() as connection:
            yield connection
            if fault == "before":
                raise StorageUnavailable("the connection was lost before the commit")
        if fault == "after":
            raise StorageUnavailable("the connection was lost after the commit")


def new_recorder(
    database: Database, clock: Clock, registry: CollectorRegistry | None = None, **options: Any
) -> UsageRecorder:
    """A recorder that knows the methods above."""
    return UsageRecorder(
        UsageLedger(database), clock, registry or CollectorRegistry(), known=lambda name: name in METHODS, **options
    )


def record(recorder: UsageRecorder, **changes: Any) -> None:
    """Count one request, ordinary but for the changes."""
    request: dict[str, Any] = {
        "account_id": "acc_1",
        "key_id": "key_1",
        "network": "ethereum/mainnet",
        "method": "eth_call",
        "units": 3,
        "failed": False,
        "microseconds": 1_500,
        **changes,
    }
    recorder.record(**request)


async def minutes(database: Database) -> dict[Slot, Numbers]:
    """All rows of the minutes."""
    return await _contents(database, usage_minute)


async def days(database: Database) -> dict[Slot, Numbers]:
    """All rows of the days."""
    return await _contents(database, usage_day)


async def total(database: Database) -> Numbers:
    """The sum over all days, having checked that the minutes add up to the same.

    One statement for both tables, because a recorder may be writing: two would see two states.
    """
    sums = [
        select(*(func.coalesce(func.sum(table.c[name]), 0) for name in COUNT_COLUMNS))
        for table in (usage_minute, usage_day)
    ]
    async with database.read() as connection:
        rows = (await connection.execute(union_all(*sums))).all()
    by_minute, by_day = (tuple(int(value) for value in row) for row in rows)
    assert by_minute == by_day
    return by_day


def as_days(by_minute: dict[Slot, Numbers]) -> dict[Slot, Numbers]:
    """What the days must hold when the minutes hold this."""
    sums: dict[Slot, list[Numbers]] = {}
    for (account, minute, *rest), numbers in by_minute.items():
        key, network, method = rest
        sums.setdefault((account, minute // 1_440, key, network, method), []).append(numbers)
    return {slot: _sum(group) for slot, group in sums.items()}


async def _contents(database: Database, table: Any) -> dict[Slot, Numbers]:
    found: dict[Slot, Numbers] = {}
    async with database.read() as connection:
        for row in await connection.execute(select(table)):
            slot, numbers, buckets = row[:5], row[5:10], row[10:]
            assert sum(buckets) == numbers[0], "the histogram holds every request once"
            found[slot] = tuple(numbers)
    return found


def _sum(rows: Any) -> Numbers:
    sums: Counter[int] = Counter()
    for numbers in rows:
        sums.update(dict(enumerate(numbers)))
    return tuple(sums[place] for place in range(5))
