"""Statements over many rows of one table at once, in both dialects.

Used by the writers of the index alone, which handle thousands of rows in a transaction: there the cost of building
statements counts. SQLite gets prepared statements run for many rows, PostgreSQL arrays that it unnests. Rows and keys
are tuples in the order of the table's columns. It does not know what the tables mean.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.ext.asyncio import AsyncConnection

Row: TypeAlias = tuple[Any, ...]

_SQLITE_ROWS = 500
# SQLite takes at most 32,766 parameters in a statement.
_SQLITE_KEYS = 400
_POSTGRESQL_ROWS = 5_000

# The order matters: SmallInteger and BigInteger are Integers too.
_ARRAY_TYPES: tuple[tuple[type[Any], str], ...] = (
    (SmallInteger, "smallint"),
    (BigInteger, "bigint"),
    (Integer, "integer"),
    (Boolean, "boolean"),
    (LargeBinary, "bytea"),
    (Text, "text"),
)


class BulkTable:
    """One table of the index. Its primary key must be its first columns."""

    def __init__(self, table: Table, *, sqlite: bool) -> None:
        self._name = table.name
        self._sqlite = sqlite
        self._columns = [column.name for column in table.columns]
        self._keys = [column.name for column in table.primary_key.columns]
        self._values = self._columns[len(self._keys) :]
        self._types = [_array_type(column.type) for column in table.columns]
        assert self._columns[: len(self._keys)] == self._keys
        into = f"INSERT INTO {self._name} ({', '.join(self._columns)}) "
        if sqlite:
            into += f"VALUES ({', '.join('?' * len(self._columns))})"
        else:
            into += f"SELECT * FROM {self._unnest(len(self._columns))}"  # noqa: S608 - names of our own tables
        conflict = f" ON CONFLICT ({', '.join(self._keys)}) DO UPDATE SET "
        self._insert = into
        self._replace = into + conflict + ", ".join(f"{name} = excluded.{name}" for name in self._values)
        self._add = into + conflict + ", ".join(f"{n} = {self._name}.{n} + excluded.{n}" for n in self._values)
        self._delete = self._delete_statement()

    async def insert(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        """Add rows that are not there."""
        await self._run(connection, self._insert, rows)

    async def replace(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        """Write rows, in place of those with the same key."""
        await self._run(connection, self._replace, sorted(rows))

    async def add(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        """Add the numbers beside each key to those that are there. No key may come twice."""
        # In the order of the tree on disk, each page of it is read and written once.
        await self._run(connection, self._add, sorted(rows))

    async def delete(self, connection: AsyncConnection, keys: Sequence[Row]) -> None:
        """Delete the rows with these keys."""
        await self._run(connection, self._delete, keys)

    async def load(self, connection: AsyncConnection, keys: Iterable[Row]) -> dict[Row, Row]:
        """The rest of the rows with these keys, by key. Keys that are not there are left out."""
        found: dict[Row, Row] = {}
        count = len(self._keys)
        wanted = sorted(keys)
        for some in _chunks(wanted, _SQLITE_KEYS if self._sqlite else _POSTGRESQL_ROWS):
            if self._sqlite:
                statement = _sqlite_load(self._name, tuple(self._columns), count, len(some))
                parameters: Row = tuple(value for key in some for value in key)
            else:
                statement = self._postgresql_load()
                parameters = tuple(map(list, zip(*some, strict=True)))
            for row in await connection.exec_driver_sql(statement, parameters):
                found[tuple(row[:count])] = tuple(row[count:])
        return found

    async def _run(self, connection: AsyncConnection, statement: str, rows: Sequence[Row]) -> None:
        if self._sqlite:
            for some in _chunks(rows, _SQLITE_ROWS):
                await connection.exec_driver_sql(statement, some)
            return
        for some in _chunks(rows, _POSTGRESQL_ROWS):
            await connection.exec_driver_sql(statement, tuple(map(list, zip(*some, strict=True))))

    def _delete_statement(self) -> str:
        if self._sqlite:
            matches = " AND ".join(f"{name} = ?" for name in self._keys)
            return f"DELETE FROM {self._name} WHERE {matches}"  # noqa: S608 - names of our own tables
        matches = " AND ".join(f"t.{name} = k.{name}" for name in self._keys)
        return f"DELETE FROM {self._name} t USING {self._unnest(len(self._keys))} WHERE {matches}"  # noqa: S608 - names of our own tables

    def _postgresql_load(self) -> str:
        columns = ", ".join(f"t.{name}" for name in self._columns)
        matches = " AND ".join(f"t.{name} = k.{name}" for name in self._keys)
        keys = self._unnest(len(self._keys))
        return f"SELECT {columns} FROM {keys} JOIN {self._name} t ON {matches}"  # noqa: S608 - names of our own tables

    def _unnest(self, count: int) -> str:
        arrays = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(self._types[:count], start=1))
        return f"unnest({arrays}) AS k({', '.join(self._columns[:count])})"


@lru_cache(maxsize=2_000)
def _sqlite_load(table: str, columns: tuple[str, ...], keys: int, count: int) -> str:
    """CROSS JOIN makes SQLite look every key up, instead of going through the table."""
    names = columns[:keys]
    values = ", ".join([f"({', '.join('?' * keys)})"] * count)
    matches = " AND ".join(f"t.{name} = k.{name}" for name in names)
    chosen = ", ".join(f"t.{name}" for name in columns)
    return (
        f"WITH k({', '.join(names)}) AS (VALUES {values}) "  # noqa: S608 - names of our own tables
        f"SELECT {chosen} FROM k CROSS JOIN {table} t ON {matches}"
    )


def _array_type(column_type: Any) -> str:
    return next(name for kind, name in _ARRAY_TYPES if isinstance(column_type, kind))


def _chunks(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
