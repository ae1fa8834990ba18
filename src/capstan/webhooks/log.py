"""Reads webhooks and their deliveries for people: lists in pages, one event with its attempts, what waits.

Called by the dashboard. Every list goes on from the last row seen and is answered from an index, whatever its length.
It changes nothing; `operations` does.
"""

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, and_, func, select, tuple_

from capstan.access.store import from_micros
from capstan.storage.database import Database
from capstan.storage.webhook_schema import webhook_attempts, webhook_days, webhook_events, webhooks
from capstan.webhooks.models import Webhook
from capstan.webhooks.store import SHOWN, webhook_of

_hooks, _events, _attempts = webhooks.c, webhook_events.c, webhook_attempts.c
# Counting goes no further than this.
MOST_COUNTED = 1_000
_UNDELIVERED = ("pending", "quota_held", "waiting")


class Delivery(msgspec.Struct, frozen=True):
    """One attempt, with the event it was for. `at` are UTC microseconds."""

    at: int
    event_seq: int
    number: int
    event_id: str
    # What has become of the event.
    state: str
    status: int | None
    latency_ms: int
    error: str | None
    response: str | None

    @property
    def moment(self) -> Any:
        """When it was."""
        return from_micros(self.at)

    @property
    def accepted(self) -> bool:
        """Whether the receiver acknowledged it."""
        return self.status is not None and 200 <= self.status < 300


class Event(msgspec.Struct, frozen=True):
    """One event, as it is sent."""

    id: str
    state: str
    block_number: int | None
    body: bytes
    attempts: int
    created_at: Any
    due_at: Any


class WebhookLog:
    """The reading side of webhooks, for people."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def listing(
        self, account_id: str, *, status: str | None, after: tuple[int, str] | None, limit: int
    ) -> list[Webhook]:
        """Webhooks of an account, the newest first, from behind the one that was created then and has this id."""
        conditions: list[ColumnElement[bool]] = [_hooks.account_id == account_id, _hooks.deleted_at.is_(None)]
        if status is not None:
            conditions.append(_hooks.status == status)
        if after is not None:
            conditions.append(tuple_(_hooks.created_at, _hooks.id) < after)
        query = select(*SHOWN).where(*conditions).order_by(_hooks.created_at.desc(), _hooks.id.desc()).limit(limit)
        async with self._database.read() as connection:
            return [webhook_of(row) for row in (await connection.execute(query)).mappings()]

    async def deliveries(self, webhook_id: str, *, after: tuple[int, int, int] | None, limit: int) -> list[Delivery]:
        """Attempts of a webhook, the newest first."""
        query = self._attempts(_attempts.webhook_id == webhook_id)
        if after is not None:
            query = query.where(tuple_(_attempts.at, _attempts.event_seq, _attempts.number) < after)
        order = (_attempts.at.desc(), _attempts.event_seq.desc(), _attempts.number.desc())
        return await self._deliveries(query.order_by(*order).limit(limit))

    async def event(self, webhook_id: str, event_id: str) -> tuple[Event, list[Delivery]] | None:
        """One event of a webhook, and its attempts, the first one first."""
        query = select(webhook_events).where(_events.id == event_id, _events.webhook_id == webhook_id)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            return None
        found = Event(
            id=row.id,
            state=row.state,
            block_number=row.block_number,
            body=bytes(row.body),
            attempts=row.attempts,
            created_at=from_micros(row.created_at),
            due_at=from_micros(row.due_at) if row.state in _UNDELIVERED and row.due_at < 2**61 else None,
        )
        tried = self._attempts(_attempts.event_seq == row.seq).order_by(_attempts.number)
        return found, await self._deliveries(tried)

    async def undelivered(self, webhook_id: str) -> dict[str, int]:
        """How many events wait, by state; no more than `MOST_COUNTED` are counted of each."""
        counts = {}
        async with self._database.read() as connection:
            for state in _UNDELIVERED:
                some = (
                    select(_events.seq)
                    .where(and_(_events.webhook_id == webhook_id, _events.state == state))
                    .limit(MOST_COUNTED)
                    .subquery()
                )
                counts[state] = int(await connection.scalar(select(func.count()).select_from(some)) or 0)
        return {state: count for state, count in counts.items() if count}

    async def next_events(self, webhook_id: str, *, limit: int) -> list[Event]:
        """The events that are to be delivered next."""
        query = (
            select(webhook_events)
            .where(_events.webhook_id == webhook_id, _events.state == "pending")
            .order_by(_events.due_at)
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [
                Event(row.id, row.state, row.block_number, b"", row.attempts, from_micros(row.created_at), None)
                for row in await connection.execute(query)
            ]

    async def delivered_on(self, account_id: str, day: str) -> int:
        """First attempts of an account on a UTC day, where they are counted: accounts with a limit."""
        query = select(webhook_days.c.used).where(webhook_days.c.account_id == account_id, webhook_days.c.day == day)
        async with self._database.read() as connection:
            return int(await connection.scalar(query) or 0)

    def _attempts(self, condition: ColumnElement[bool]) -> Select[Any]:
        columns = (webhook_attempts, _events.id.label("event_id"), _events.state)
        return select(*columns).join(webhook_events, _events.seq == _attempts.event_seq).where(condition)

    async def _deliveries(self, query: Select[Any]) -> list[Delivery]:
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        return [
            Delivery(
                at=row.at,
                event_seq=row.event_seq,
                number=row.number,
                event_id=row.event_id,
                state=row.state,
                status=row.status,
                latency_ms=row.latency_ms,
                error=row.error,
                response=None if row.response is None else row.response.decode("utf-8", "replace"),
            )
            for row in rows
        ]
