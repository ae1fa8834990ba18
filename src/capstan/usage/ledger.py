"""Adds batches of counts to the usage ledger in the database, each exactly once, and deletes what is too old.

Only `writer` calls this. Every batch carries the random name of its process and a number that grows. The number is
written in the same transaction as the counts, and a batch whose number is there already is not added again. A batch may
thus be sent again whenever its fate is unknown, even while the transaction that carried it is still being committed
somewhere: the second one waits for the lock on the row of the process and then sees the number.

Several processes add to the same rows. All of them write in one order, minutes before days, so they never wait for one
another in turn.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Table, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.storage.database import Database
from capstan.storage.schema import LATENCY_BUCKETS, usage_day, usage_flushes, usage_minute
from capstan.usage.models import MINUTES_PER_DAY, Delta

COUNT_COLUMNS = ("requests", "units", "errors", "cached", "microseconds")
BUCKET_COLUMNS = tuple(f"latency_{number:02}" for number in range(LATENCY_BUCKETS))
# Rows handed to the driver at once. Preparing them keeps the event loop busy, so not too many.
_ROWS_AT_ONCE = 250
# Which process sent which batch is kept longer than any process can be cut off from the database and still hold one.
_FLUSHES_KEPT_SECONDS = 30 * 86_400

Row = tuple[str | int, ...]


class UsageLedger:
    """The writing side of the ledger's tables."""

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect: Any = sqlite if database.is_sqlite else postgresql
        driver = database.url.get_dialect()()
        self._add_minute = _adding(dialect, driver, usage_minute)
        self._add_day = _adding(dialect, driver, usage_day)
        claim = dialect.insert(usage_flushes)
        self._claim = claim.on_conflict_do_update(
            index_elements=["process"],
            set_={"sequence": claim.excluded.sequence, "flushed_at": claim.excluded.flushed_at},
            where=usage_flushes.c.sequence < claim.excluded.sequence,
        ).returning(usage_flushes.c.sequence)

    async def add(self, process: str, sequence: int, deltas: Sequence[Delta], *, now: float) -> bool:
        """Add a batch to both tables; false, having added nothing, when this batch was added before."""
        ordered = sorted(deltas)
        minutes, days = _minute_rows(ordered), _day_rows(ordered)
        async with self._database.write() as connection:
            claim = {"process": process, "sequence": sequence, "flushed_at": int(now * 1_000_000)}
            if (await connection.execute(self._claim, claim)).first() is None:
                return False
            await _execute(connection, self._add_minute, minutes)
            await _execute(connection, self._add_day, days)
        return True

    async def prune(self, *, first_minute: int, first_day: int, now: float, rows: int) -> bool:
        """Delete at most `rows` rows of each table from before the given times; false when there may be more."""
        done = True
        for table, column, first in (
            (usage_minute, usage_minute.c.minute, first_minute),
            (usage_day, usage_day.c.day, first_day),
            (usage_flushes, usage_flushes.c.flushed_at, int((now - _FLUSHES_KEPT_SECONDS) * 1_000_000)),
        ):
            key = tuple_(*table.primary_key.columns)
            # Several processes delete at once: each leaves alone what another is about to delete.
            old = select(*table.primary_key.columns).where(column < first).limit(rows).with_for_update(skip_locked=True)
            async with self._database.write() as connection:
                result = await connection.execute(delete(table).where(key.in_(old)))
            done = done and result.rowcount < rows
        return done


def _adding(dialect: Any, driver: Dialect, table: Table) -> str:
    """The statement that adds counts to a row, which it makes if there is none; parameters in the table's order.

    As text, because the driver is handed tuples: SQLAlchemy's own handling of thirty parameters for each of thousands
    of rows would take many times as long as the database does.
    """
    statement = dialect.insert(table)
    adding = statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={name: table.c[name] + statement.excluded[name] for name in (*COUNT_COLUMNS, *BUCKET_COLUMNS)},
    )
    compiled = adding.compile(dialect=driver)
    assert compiled.positiontup == [column.name for column in table.columns]
    return str(compiled)


async def _execute(connection: AsyncConnection, statement: str, rows: list[Row]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        await connection.exec_driver_sql(statement, rows[start : start + _ROWS_AT_ONCE])


def _minute_rows(ordered: Sequence[Delta]) -> list[Row]:
    return [
        (delta.account_id, delta.minute, delta.key_id, delta.network, delta.method, *delta.tally.numbers())
        for delta in ordered
    ]


def _day_rows(ordered: Sequence[Delta]) -> list[Row]:
    """The sums over the minutes of each day."""
    rows: list[Row] = []
    for (account_id, key_id, network, method, day), group in groupby(ordered, key=_day_key):
        first, *others = [delta.tally.numbers() for delta in group]
        sums = tuple(map(sum, zip(first, *others, strict=True))) if others else first
        rows.append((account_id, day, key_id, network, method, *sums))
    return rows


def _day_key(delta: Delta) -> tuple[str, str, str, str, int]:
    return (*delta[:4], delta.minute // MINUTES_PER_DAY)
