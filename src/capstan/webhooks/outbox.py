"""Writes events, and what reorganisations do to them, in transactions that others own.

Called by the stream consumer in the transaction of a block, and by the watchers of traces and mempools in their own.
An event is written once under its id, however often it is tried.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Block
from capstan.core.clock import Clock
from capstan.storage.webhook_schema import webhook_events, webhook_lanes, webhook_traces
from capstan.webhooks.identity import event_id
from capstan.webhooks.matching import Draft
from capstan.webhooks.payloads import Place, body_of, retraction_of
from capstan.webhooks.subscriptions import Subscription, Subscriptions

_MICROSECONDS = 1_000_000
_POKE = (
    update(webhook_lanes)
    .where(webhook_lanes.c.webhook_id == bindparam("lane"), webhook_lanes.c.due_at > bindparam("now"))
    .values(due_at=bindparam("now"))
)


class Outbox:
    """The events of one network."""

    def __init__(self, place: Place, clock: Clock, *, is_sqlite: bool) -> None:
        self._place = place
        self._clock = clock
        insert = sqlite.insert if is_sqlite else postgresql.insert
        self._insert = insert(webhook_events).on_conflict_do_nothing(index_elements=["id"])

    async def add(self, connection: AsyncConnection, block: Block, drafts: Sequence[Draft]) -> None:
        """Write the events of a block that was applied."""
        if not drafts:
            return
        phase = next_phase(await self.last_phase(connection, block.hash))
        await self.write(connection, block.number, block.hash, drafts, phase)

    async def write(
        self, connection: AsyncConnection, number: int, block_hash: str, drafts: Sequence[Draft], phase: int
    ) -> None:
        """The same for a phase that is known."""
        rows = [self._row(draft, number, block_hash, phase) for draft in drafts]
        await connection.execute(self._insert, rows)
        ready = [draft.subscription for draft, row in zip(drafts, rows, strict=True) if row["state"] == "pending"]
        await self.poke(connection, ready)

    async def add_pending(self, connection: AsyncConnection, drafts: Sequence[Draft]) -> None:
        """Write events of the mempool, which belong to no block."""
        rows = []
        for draft in drafts:
            row = self._row(draft, 0, "", 0)
            rows.append({**row, "block_number": None, "block_hash": None, "state": "pending", "ready_block": None})
        if rows:
            await connection.execute(self._insert, rows)
            await self.poke(connection, [draft.subscription for draft in drafts])

    async def confirm(self, connection: AsyncConnection, number: int, subscriptions: Subscriptions) -> None:
        """Release the events for which a block of this number is the last confirmation."""
        waiting = (webhook_events.c.network == self._place.network, webhook_events.c.ready_block <= number)
        ids = list(await connection.scalars(select(webhook_events.c.webhook_id).where(*waiting).distinct()))
        if not ids:
            return
        now = self._now()
        await connection.execute(
            update(webhook_events).where(*waiting).values(state="pending", ready_block=None, due_at=now)
        )
        await self.poke(connection, [found for each in ids if (found := subscriptions.get(each)) is not None])

    async def retract(self, connection: AsyncConnection, block: Block, subscriptions: Subscriptions) -> None:
        """Take back the events of a block: those that nobody was told of vanish, the others are told again."""
        ours = (
            webhook_events.c.network == self._place.network,
            webhook_events.c.block_hash == bytes.fromhex(block.hash[2:]),
        )
        await connection.execute(delete(webhook_events).where(*ours, webhook_events.c.state == "waiting"))
        await connection.execute(
            delete(webhook_traces).where(
                webhook_traces.c.network == self._place.network,
                webhook_traces.c.block_number == block.number,
                webhook_traces.c.block_hash == bytes.fromhex(block.hash[2:]),
            )
        )
        phase = await self.last_phase(connection, block.hash)
        if phase is None or phase % 2:
            return
        events = webhook_events.c
        columns = (events.webhook_id, events.position, events.body, events.needs)
        told = await connection.execute(
            # The last one first: what is taken back is taken back in the reverse order.
            select(*columns).where(*ours, events.phase == phase).order_by(events.seq.desc())
        )
        rows, concerned = [], []
        for row in told:
            subscription = subscriptions.get(row.webhook_id)
            if subscription is None:
                continue
            made = event_id(row.webhook_id, self._place.network, block.hash, row.position, phase + 1)
            body = retraction_of(subscription.kind, row.body, made, self._clock.now())
            rows.append(
                {
                    **self._columns(row.webhook_id, made, row.position, phase + 1, body, row.needs),
                    "block_number": block.number,
                    "block_hash": bytes.fromhex(block.hash[2:]),
                }
            )
            concerned.append(subscription)
        if rows:
            await connection.execute(self._insert, rows)
            await self.poke(connection, concerned)

    async def forget(self, connection: AsyncConnection) -> None:
        """The chain was begun anew: what waits for confirmations never gets them."""
        await connection.execute(
            delete(webhook_events).where(
                webhook_events.c.network == self._place.network, webhook_events.c.state == "waiting"
            )
        )
        await connection.execute(delete(webhook_traces).where(webhook_traces.c.network == self._place.network))

    async def last_phase(self, connection: AsyncConnection, block_hash: str) -> int | None:
        """The last thing that events of a block told."""
        found = await connection.scalar(
            select(func.max(webhook_events.c.phase)).where(
                webhook_events.c.network == self._place.network,
                webhook_events.c.block_hash == bytes.fromhex(block_hash[2:]),
            )
        )
        return None if found is None else int(found)

    async def poke(self, connection: AsyncConnection, subscriptions: Iterable[Subscription]) -> None:
        """Let the lanes of these webhooks be looked at. A paused one stays where it is."""
        lanes = sorted({each.id for each in subscriptions if each.active})
        if lanes:
            now = self._now()
            await connection.execute(_POKE, [{"lane": lane, "now": now} for lane in lanes])

    def _row(self, draft: Draft, number: int, block_hash: str, phase: int) -> dict[str, Any]:
        subscription = draft.subscription
        made = event_id(subscription.id, self._place.network, block_hash, draft.position, phase)
        body = body_of(subscription.kind, subscription.id, made, self._place, draft.data, self._clock.now())
        ready = number + subscription.filters.confirmations - 1
        row = self._columns(subscription.id, made, draft.position, phase, msgspec.json.encode(body), draft.needs)
        waits = ready > number
        return {
            **row,
            "block_number": number,
            "block_hash": bytes.fromhex(block_hash[2:]),
            "state": "waiting" if waits else "pending",
            "ready_block": ready if waits else None,
        }

    def _columns(
        self, webhook_id: str, made: str, position: str, phase: int, body: bytes, needs: str | None
    ) -> dict[str, Any]:
        now = self._now()
        return {
            "id": made,
            "webhook_id": webhook_id,
            "network": self._place.network,
            "position": position,
            "phase": phase,
            "state": "pending",
            "ready_block": None,
            "body": body,
            "needs": needs,
            "due_at": now,
            "retries": 0,
            "attempts": 0,
            "counted": False,
            "created_at": now,
        }

    def _now(self) -> int:
        return int(self._clock.now() * _MICROSECONDS)


def next_phase(last: int | None) -> int:
    """The phase of events of a block that is applied, after what its events told last."""
    if last is None:
        return 0
    return last + 1 if last % 2 else last + 2
