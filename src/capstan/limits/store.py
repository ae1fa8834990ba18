"""The queries of the day ledger on the table `day_usage`.

A row holds how many requests of a subject's day are reserved: used, or set aside by some process. `settle` changes
many rows in one transaction that locks them, so the sum over all processes never passes the limit. Only
`day.DayLedger` calls this. Decisions about single requests are made there, from what was reserved here.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import groupby

import msgspec
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.schema import day_usage

# Towards the end of a day a process takes only this part of what is left, so that the last requests are found by
# whoever asks for them, not held by a process that does not need them.
_TAIL = 4

_EPOCH = date(1970, 1, 1)

# What settling may raise that is no defect of this code. Wider than StorageUnavailable on purpose: a statement that
# timed out on a lock, a deadlock or a server that is starting up all mean the same to a counter, which must answer
# anyway.
FAILURES = (StorageError, SQLAlchemyError, OSError)


class Claim(msgspec.Struct, frozen=True):
    """What one process wants of one subject's day.

    `day` counts from 1970-01-01. `add` is applied whatever the limit: requests already served without a reservation,
    less reservations given back. `need` requests are waiting; `want` is how many to reserve if there is plenty.
    """

    subject: str
    day: int
    limit: int
    add: int
    need: int
    want: int


class Grant(msgspec.Struct, frozen=True):
    """What was reserved for a claim, and how much of the day is reserved in all."""

    granted: int
    reserved: int


def day_text(day: int) -> str:
    """The day as it is stored, `2026-01-31`."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def grant(claim: Claim, reserved: int) -> Grant:
    """Decide one claim against what is reserved so far."""
    reserved = max(0, reserved + claim.add)
    room = max(0, claim.limit - reserved)
    granted = min(room, max(claim.need, min(claim.want, room // _TAIL)))
    return Grant(granted, reserved + granted)


class DayStore:
    """Reservations in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect = sqlite if database.is_sqlite else postgresql
        self._insert = dialect.insert(day_usage).values(reserved=0).on_conflict_do_nothing()
        self._update = (
            update(day_usage)
            .where(day_usage.c.subject == bindparam("key_subject"), day_usage.c.day == bindparam("key_day"))
            .values(reserved=bindparam("new_reserved"))
        )

    async def settle(self, claims: Sequence[Claim]) -> list[Grant]:
        """Apply every claim in one transaction; the grants come in the order of the claims."""
        keys = sorted({(day_text(claim.day), claim.subject) for claim in claims})
        if not keys:
            return []
        grants: list[Grant] = []
        async with self._database.write() as connection:
            before = await self._lock(connection, keys)
            after = dict(before)
            for claim in claims:
                key = (day_text(claim.day), claim.subject)
                decided = grant(claim, after[key])
                after[key] = decided.reserved
                grants.append(decided)
            changed = [
                {"key_day": day, "key_subject": subject, "new_reserved": after[day, subject]}
                for day, subject in keys
                if after[day, subject] != before[day, subject]
            ]
            if changed:
                await connection.execute(self._update, changed)
        return grants

    async def prune(self, first_kept: int) -> int:
        """Delete the rows of days before `first_kept`; returns how many there were."""
        async with self._database.write() as connection:
            result = await connection.execute(delete(day_usage).where(day_usage.c.day < day_text(first_kept)))
        return result.rowcount

    async def _lock(self, connection: AsyncConnection, keys: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Make sure the rows exist, lock them, and return what they hold.

        All processes insert first and lock afterwards, both in one order, so they never wait for one another in turn.
        """
        await connection.execute(self._insert, [{"day": day, "subject": subject} for day, subject in keys])
        held: dict[tuple[str, str], int] = {}
        for day, group in groupby(keys, key=lambda key: key[0]):
            query = (
                select(day_usage.c.subject, day_usage.c.reserved)
                .where(day_usage.c.day == day, day_usage.c.subject.in_([subject for _, subject in group]))
                .order_by(day_usage.c.subject)
                .with_for_update()
            )
            for subject, reserved in await connection.execute(query):
                held[day, subject] = reserved
        return held
