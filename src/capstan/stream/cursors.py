"""Where all durable streams stand, for people. Read by the dashboard; it changes nothing."""

from datetime import UTC, datetime

import msgspec
from sqlalchemy import select

from capstan.storage.database import Database
from capstan.storage.schema import cursors

_MICROSECONDS = 1_000_000


class Cursor(msgspec.Struct, frozen=True):
    """The last block that the consumers of one role have written."""

    network: str
    role: str
    number: int
    updated_at: datetime


async def read_cursors(database: Database) -> list[Cursor]:
    """Every cursor, by network and role. There are a few for each network."""
    columns = cursors.c
    query = select(columns.network, columns.role, columns.number, columns.updated_at)
    async with database.read() as connection:
        rows = await connection.execute(query.order_by(columns.network, columns.role))
        return [
            Cursor(row.network, row.role, row.number, datetime.fromtimestamp(row.updated_at / _MICROSECONDS, UTC))
            for row in rows
        ]
