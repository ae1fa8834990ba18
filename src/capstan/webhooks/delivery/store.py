"""The queries of delivery: claiming lanes, reading what is due, writing what came of it.

Called by the deliverer. A lane is all events of one webhook; whoever claims it has it until `claimed_until`, so that
the events of a webhook are tried by one worker at a time and in their order. On PostgreSQL several processes claim side
by side with SKIP LOCKED. Many lanes and many results go into one transaction each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Integer,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.core.ids import new_id
from capstan.storage.database import Database
from capstan.storage.schema import accounts, users
from capstan.storage.webhook_schema import mails, webhook_attempts, webhook_events, webhook_lanes, webhooks
from capstan.webhooks.delivery.models import DueEvent, Lane, Release, Result, Target
from capstan.webhooks.delivery.quota import Quota
from capstan.webhooks.kinds import EVENT_TYPES
from capstan.webhooks.store import NEVER, next_revision, rest_retries

_DUE_STATES = ("pending", "quota_held")
_PER_LANE = 100
_events = webhook_events.c
_SUSPENDED = select(accounts.c.id).where(accounts.c.status == "suspended")

_DUE = (
    _events.seq,
    _events.webhook_id,
    _events.id,
    _events.body,
    _events.needs,
    _events.retries,
    _events.attempts,
)

_UPDATE_EVENT = (
    update(webhook_events)
    .where(_events.seq == bindparam("event_seq"))
    .values(
        state=bindparam("new_state"),
        due_at=bindparam("new_due"),
        retries=bindparam("new_retries"),
        attempts=bindparam("new_attempts"),
    )
)
_FILL = (
    update(webhook_events).where(_events.seq == bindparam("event_seq")).values(body=bindparam("new_body"), needs=None)
)


def _release() -> Any:
    """Give a lane back, due when the next of its events is, and not before `hold_until`."""
    # Written out, because a list of values cannot be part of a statement that is run for many rows.
    waits = or_(*(_events.state == state for state in _DUE_STATES))
    mine = (_events.webhook_id == webhook_lanes.c.webhook_id, waits, _events.retries == 0)
    due = func.coalesce(select(func.min(_events.due_at)).where(*mine).scalar_subquery(), NEVER)
    held = bindparam("hold_until", type_=BigInteger)
    return (
        update(webhook_lanes)
        .where(webhook_lanes.c.webhook_id == bindparam("lane"), webhook_lanes.c.token == bindparam("claim"))
        .values(claimed_until=0, due_at=case((due > held, due), else_=held))
    )


_RELEASE = _release()


class DeliveryStore:
    """Lanes, events and attempts."""

    def __init__(self, database: Database, quota: Quota) -> None:
        self._database = database
        self._quota = quota
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert
        moment: Any = bindparam("now")
        self._due_lane = database.glance(select(webhook_lanes.c.webhook_id).where(*_claimable(moment)).limit(1))
        self._due_retry = database.glance(select(_events.seq).where(*_retry(moment)).limit(1))

    async def any_due(self, now: int) -> bool:
        """Whether a lane can be claimed."""
        return bool(await self._due_lane.ask(now=now))

    async def claim(self, now: int, until: int, *, lanes: int) -> list[Lane]:
        """Claim lanes that are due, with what is due of them; those of webhooks at rest are sent to sleep."""
        async with self._database.write() as connection:
            query = (
                select(webhook_lanes.c.webhook_id)
                .where(*_claimable(now))
                .order_by(webhook_lanes.c.due_at)
                .limit(lanes)
                .with_for_update(skip_locked=True)
            )
            ids = sorted(await connection.scalars(query))
            if not ids:
                return []
            targets = await self._targets(connection, ids)
            resting = [each for each in ids if each not in targets]
            if resting:
                await connection.execute(
                    update(webhook_lanes).where(webhook_lanes.c.webhook_id.in_(resting)).values(due_at=NEVER)
                )
            if not targets:
                return []
            claimed = webhook_lanes.c.webhook_id.in_(list(targets))
            await connection.execute(
                update(webhook_lanes).where(claimed).values(claimed_until=until, token=webhook_lanes.c.token + 1)
            )
            tokens = await connection.execute(select(webhook_lanes.c.webhook_id, webhook_lanes.c.token).where(claimed))
            due = await self._due(connection, list(targets), now)
            kept = await self._quota.admit(connection, targets, due)
            return [Lane(targets[row.webhook_id], row.token, tuple(kept.get(row.webhook_id, ()))) for row in tokens]

    async def claim_retries(self, now: int, until: int, *, most: int) -> list[tuple[Target, DueEvent]]:
        """Claim retries that are due, each on its own: they come back at `until` unless a result is written."""
        if not await self._due_retry.ask(now=now):
            return []
        retry = _retry(now)
        async with self._database.write() as connection:
            query = select(*_DUE).where(*retry).order_by(_events.due_at).limit(most)
            rows = (await connection.execute(query.with_for_update(skip_locked=True))).all()
            targets = await self._targets(connection, sorted({row.webhook_id for row in rows}))
            taken = [row.seq for row in rows if row.webhook_id in targets]
            asleep = [row.seq for row in rows if row.webhook_id not in targets]
            for seqs, due_at in ((taken, until), (asleep, NEVER)):
                if seqs:
                    await connection.execute(update(webhook_events).where(_events.seq.in_(seqs)).values(due_at=due_at))
            return [(targets[row.webhook_id], _due_event(row)) for row in rows if row.webhook_id in targets]

    async def renew(self, held: Mapping[str, int], until: int) -> set[str]:
        """Keep lanes that are still being worked on. Returns those that are; another process has the others."""
        if not held:
            return set()
        statement = (
            update(webhook_lanes)
            .where(webhook_lanes.c.webhook_id == bindparam("lane"), webhook_lanes.c.token == bindparam("claim"))
            .values(claimed_until=until)
        )
        query = select(webhook_lanes.c.webhook_id, webhook_lanes.c.token).where(
            webhook_lanes.c.webhook_id.in_(list(held))
        )
        async with self._database.write() as connection:
            await connection.execute(
                statement, [{"lane": lane, "claim": token} for lane, token in sorted(held.items())]
            )
            return {row.webhook_id for row in await connection.execute(query) if held[row.webhook_id] == row.token}

    async def fill(self, bodies: Sequence[tuple[int, bytes]]) -> None:
        """Write bodies that were completed before they were first sent: every attempt sends the same bytes."""
        async with self._database.write() as connection:
            await connection.execute(_FILL, [{"event_seq": seq, "new_body": body} for seq, body in bodies])

    async def write(self, results: Sequence[Result], releases: Sequence[Release], now: int) -> None:
        """Write what came of attempts, and give lanes back."""
        async with self._database.write() as connection:
            if results:
                await connection.execute(_UPDATE_EVENT, [_event_values(result) for result in results])
                statement = self._insert(webhook_attempts).on_conflict_do_nothing()
                await connection.execute(statement, [_attempt_values(result) for result in results])
            for result in results:
                if result.webhook_status is not None:
                    await self._stop(connection, result, now)
            if releases:
                await connection.execute(
                    _RELEASE,
                    [
                        {"lane": each.webhook_id, "claim": each.token, "hold_until": each.hold_until}
                        for each in sorted(releases, key=lambda each: each.webhook_id)
                    ],
                )

    async def purge(self, before: int) -> None:
        """Delete events and attempts that are older, and webhooks that were deleted before."""
        async with self._database.write() as connection:
            await connection.execute(delete(webhook_attempts).where(webhook_attempts.c.at < before))
            await connection.execute(delete(webhook_events).where(_events.created_at < before))
            await connection.execute(delete(webhooks).where(webhooks.c.deleted_at < before))

    async def follow_accounts(self, now: int) -> None:
        """Disable the webhooks of suspended accounts, and enable them again when the account is."""
        async with self._database.read() as connection:
            columns = (webhooks.c.id, webhooks.c.network, webhooks.c.status)
            suspended = webhooks.c.account_id.in_(_SUSPENDED)
            rows = (
                await connection.execute(
                    union_all(
                        select(*columns, literal(1, Integer).label("stop")).where(
                            suspended, webhooks.c.status != "disabled", webhooks.c.deleted_at.is_(None)
                        ),
                        select(*columns, literal(0, Integer).label("stop")).where(
                            ~suspended, webhooks.c.reason == "suspended", webhooks.c.deleted_at.is_(None)
                        ),
                    )
                )
            ).all()
        for row in rows:
            async with self._database.write() as connection:
                stop = bool(row.stop)
                await self._set_status(
                    connection,
                    row.id,
                    row.network,
                    "disabled" if stop else "active",
                    "suspended" if stop else None,
                    now,
                )
                if not stop:
                    await connection.execute(
                        update(webhook_lanes).where(webhook_lanes.c.webhook_id == row.id).values(due_at=now)
                    )

    # --- inside a transaction

    async def _targets(self, connection: AsyncConnection, ids: Sequence[str]) -> dict[str, Target]:
        columns = (
            webhooks.c.id,
            webhooks.c.account_id,
            webhooks.c.network,
            webhooks.c.event_type,
            webhooks.c.url,
            webhooks.c.secret,
            webhooks.c.previous_secret,
            webhooks.c.previous_until,
        )
        rows = await connection.execute(select(*columns).where(webhooks.c.id.in_(ids), webhooks.c.status == "active"))
        return {
            row.id: Target(
                row.id,
                row.account_id,
                row.network,
                EVENT_TYPES[row.event_type],
                row.url,
                row.secret,
                row.previous_secret,
                row.previous_until,
            )
            for row in rows
        }

    async def _due(self, connection: AsyncConnection, ids: Sequence[str], now: int) -> dict[str, list[DueEvent]]:
        """The first events of each lane that are due. Only keys are ranked; bodies are read for those taken."""
        rank = func.row_number().over(partition_by=_events.webhook_id, order_by=_events.seq).label("rank")
        ranked = (
            select(_events.seq, rank)
            .where(
                _events.webhook_id.in_(ids),
                _events.state.in_(_DUE_STATES),
                _events.due_at <= now,
                _events.retries == 0,
            )
            .subquery()
        )
        query = (
            select(*_DUE)
            .join(ranked, ranked.c.seq == _events.seq)
            .where(ranked.c.rank <= _PER_LANE)
            .order_by(_events.seq)
        )
        found: dict[str, list[DueEvent]] = {}
        for row in await connection.execute(query):
            found.setdefault(row.webhook_id, []).append(_due_event(row))
        return found

    async def _stop(self, connection: AsyncConnection, result: Result, now: int) -> None:
        """Pause or disable a webhook, and let its owner know. Only the first of several failures does it."""
        target, paused = result.target, result.webhook_status == "paused"
        reason = "failures" if paused else "gone"
        if not await self._set_status(
            connection, target.webhook_id, target.network, result.webhook_status or "", reason, now
        ):
            return
        await rest_retries(connection, target.webhook_id)
        recipients = await connection.scalars(select(users.c.email).where(users.c.account_id == target.account_id))
        rows = [
            {
                "id": new_id("mail"),
                "recipient": recipient,
                "subject": f"Webhook {target.webhook_id} is {result.webhook_status}",
                "body": _message(result),
                "created_at": now,
                "due_at": now,
                "attempts": 0,
            }
            for recipient in recipients
        ]
        if rows:
            await connection.execute(insert(mails), rows)

    async def _set_status(
        self, connection: AsyncConnection, webhook_id: str, network: str, status: str, reason: str | None, now: int
    ) -> bool:
        revision = await next_revision(connection, network, is_sqlite=self._database.is_sqlite)
        allowed = webhooks.c.status == "active" if reason in ("failures", "gone") else webhooks.c.deleted_at.is_(None)
        changed = await connection.execute(
            update(webhooks)
            .where(webhooks.c.id == webhook_id, allowed)
            .values(status=status, reason=reason, revision=revision, updated_at=now)
        )
        return changed.rowcount == 1


def _claimable(now: int) -> tuple[Any, ...]:
    return webhook_lanes.c.due_at <= now, webhook_lanes.c.claimed_until <= now


def _retry(now: int) -> tuple[Any, ...]:
    return _events.retries > 0, _events.state == "pending", _events.due_at <= now


def _due_event(row: Any) -> DueEvent:
    return DueEvent(row.seq, row.id, row.body, row.needs, row.retries, row.attempts)


def _event_values(result: Result) -> dict[str, Any]:
    return {
        "event_seq": result.event.seq,
        "new_state": result.state,
        "new_due": result.due_at,
        "new_retries": result.retries,
        "new_attempts": result.event.attempts + 1,
    }


def _attempt_values(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "event_seq": result.event.seq,
        "number": result.event.attempts + 1,
        "webhook_id": result.target.webhook_id,
        "at": outcome.at,
        "status": outcome.status,
        "latency_ms": outcome.latency_ms,
        "error": outcome.error,
        "response": outcome.response,
    }


def _message(result: Result) -> str:
    target, outcome = result.target, result.outcome
    said = outcome.error if outcome.status is None else f"it answered {outcome.status}"
    if result.webhook_status == "paused":
        return (
            f"The webhook {target.webhook_id} ({target.kind.name} on {target.network}) is paused: every attempt to"
            f" deliver the event {result.event.id} has failed; the last time, {said}.\n\nIts events are kept for some"
            " days. Resume it in the dashboard or with PATCH /v1/webhooks/"
            f'{target.webhook_id} and {{"status": "active"}}; what was kept is delivered then.\n'
        )
    return (
        f"The webhook {target.webhook_id} ({target.kind.name} on {target.network}) is disabled: its receiver answered"
        " 410 Gone. Enable it in the dashboard if that was not meant.\n"
    )
