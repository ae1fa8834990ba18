"""The queries of subscriptions, and nothing else. Called by the service and, for what changed, by matching.

Every change takes the next revision of its network in the same transaction, so whoever matches events inside the
transaction of a block sees exactly the subscriptions that were committed before.
"""

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, RowMapping, Select, Update, and_, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.store import from_micros, to_micros
from capstan.storage.database import Database
from capstan.storage.schema import accounts, applied_blocks, cursors
from capstan.storage.webhook_schema import (
    webhook_attempts,
    webhook_events,
    webhook_lanes,
    webhook_lookbacks,
    webhook_revisions,
    webhooks,
)
from capstan.webhooks.kinds import EVENT_TYPES, Family
from capstan.webhooks.models import Webhook

# The lane of a webhook that is not active, or has nothing to do.
NEVER = 2**62
SHOWN = (
    webhooks.c.id,
    webhooks.c.account_id,
    webhooks.c.chain,
    webhooks.c.network,
    webhooks.c.url,
    webhooks.c.event_type,
    webhooks.c.config,
    webhooks.c.status,
    webhooks.c.reason,
    webhooks.c.created_at,
    webhooks.c.updated_at,
)
_PRESENT = webhooks.c.deleted_at.is_(None)


class TooManyWebhooks(Exception):
    """The account has as many webhooks as its plan allows."""


class Secrets(msgspec.Struct, frozen=True):
    """The sealed secrets of a webhook."""

    current: bytes
    previous: bytes | None
    previous_until: int | None


class WebhookStore:
    """Rows of webhooks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert

    async def add(self, webhook: Webhook, secret: bytes, *, at_most: int, first_block: int | None = None) -> None:
        """Write a new webhook. Raises `TooManyWebhooks` when the account has `at_most` already (0: no limit).

        The first webhook of a network counts from `first_block` on, also when nothing was written of it before a crash.
        """
        async with self._database.write() as connection:
            # The account's row is locked first, so that two processes cannot both see room for one more.
            await connection.execute(select(accounts.c.id).where(accounts.c.id == webhook.account_id).with_for_update())
            if at_most and await _count(connection, webhooks.c.account_id == webhook.account_id) >= at_most:
                raise TooManyWebhooks
            revision = await self._next_revision(connection, webhook.network)
            if not await _count(connection, webhooks.c.network == webhook.network):
                await connection.execute(
                    update(webhook_revisions)
                    .where(webhook_revisions.c.network == webhook.network)
                    .values(first_block=first_block)
                )
            await connection.execute(
                insert(webhooks).values(
                    id=webhook.id,
                    account_id=webhook.account_id,
                    chain=webhook.chain,
                    network=webhook.network,
                    url=webhook.url,
                    event_type=webhook.event_type,
                    config=webhook.config.decode(),
                    secret=secret,
                    status=webhook.status,
                    reason=webhook.reason,
                    revision=revision,
                    created_at=to_micros(webhook.created_at),
                    updated_at=to_micros(webhook.updated_at),
                )
            )
            await connection.execute(
                insert(webhook_lanes).values(webhook_id=webhook.id, due_at=NEVER, claimed_until=0, token=0)
            )
            await self._look_back(connection, webhook, revision)

    async def find(self, webhook_id: str, account_id: str | None = None) -> Webhook | None:
        """A webhook, of this account when one is named."""
        condition = webhooks.c.id == webhook_id
        if account_id is not None:
            condition = and_(condition, webhooks.c.account_id == account_id)
        async with self._database.read() as connection:
            row = (await connection.execute(select(*SHOWN).where(condition, _PRESENT))).mappings().first()
            return None if row is None else webhook_of(row)

    async def secrets(self, webhook_id: str) -> Secrets | None:
        """The sealed secrets of a webhook."""
        columns = (webhooks.c.secret, webhooks.c.previous_secret, webhooks.c.previous_until)
        async with self._database.read() as connection:
            row = (await connection.execute(select(*columns).where(webhooks.c.id == webhook_id, _PRESENT))).first()
            return None if row is None else Secrets(*row)

    async def page(
        self,
        account_id: str | None,
        networks: Collection[str] | None,
        *,
        status: str | None,
        offset: int,
        limit: int,
    ) -> tuple[list[Webhook], int]:
        """Some webhooks, the newest first, and how many there are. None: those of all accounts, of all networks."""
        condition: ColumnElement[bool] = _PRESENT
        if account_id is not None:
            condition = and_(condition, webhooks.c.account_id == account_id)
        if networks is not None:
            condition = and_(condition, webhooks.c.network.in_(networks))
        if status is not None:
            condition = and_(condition, webhooks.c.status == status)
        query: Select[Any] = (
            select(*SHOWN)
            .where(condition)
            .order_by(webhooks.c.created_at.desc(), webhooks.c.id.desc())
            .offset(offset)
            .limit(limit)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
            return [webhook_of(row) for row in rows], await _count(connection, condition)

    async def change(self, webhook: Webhook, **values: Any) -> bool:
        """Write changes, unless it was disabled or deleted meanwhile. A new status moves its events with it."""
        return await self._change(webhook, webhooks.c.status != "disabled", values)

    async def force(self, webhook: Webhook, **values: Any) -> bool:
        """The same for the operator, whatever the status is."""
        return await self._change(webhook, _PRESENT, values)

    async def delete(self, webhook: Webhook) -> bool:
        """Remove a webhook with everything of it. False when it was gone already."""
        async with self._database.write() as connection:
            revision = await self._next_revision(connection, webhook.network)
            gone = await connection.execute(
                update(webhooks)
                .where(webhooks.c.id == webhook.id, _PRESENT)
                .values(
                    revision=revision,
                    deleted_at=to_micros(webhook.updated_at),
                    url="",
                    config="{}",
                    secret=b"",
                    previous_secret=None,
                    status="disabled",
                )
            )
            for table in (webhook_lanes, webhook_lookbacks, webhook_events, webhook_attempts):
                await connection.execute(delete(table).where(table.c.webhook_id == webhook.id))
            return gone.rowcount == 1

    async def any_of(self, account_id: str) -> bool:
        """Whether the account has a webhook."""
        query = select(webhooks.c.id).where(webhooks.c.account_id == account_id, _PRESENT).limit(1)
        async with self._database.read() as connection:
            return (await connection.scalar(query)) is not None

    async def networks(self) -> dict[str, int | None]:
        """The networks on which there are webhooks of anybody, and from which block on they count."""
        present = select(webhooks.c.network).where(_PRESENT)
        query = select(webhook_revisions.c.network, webhook_revisions.c.first_block)
        async with self._database.read() as connection:
            rows = await connection.execute(query.where(webhook_revisions.c.network.in_(present)))
            return {row.network: row.first_block for row in rows}

    async def forget_idle(self, role: str) -> None:
        """Forget how far the stream of this role got on networks without webhooks: the next one counts from its own
        beginning, not from there."""
        present = select(webhooks.c.network).where(_PRESENT)
        async with self._database.write() as connection:
            for table in (applied_blocks, cursors):
                await connection.execute(delete(table).where(table.c.role == role, table.c.network.not_in(present)))

    async def _change(self, webhook: Webhook, allowed: ColumnElement[bool], values: dict[str, Any]) -> bool:
        async with self._database.write() as connection:
            revision = await self._next_revision(connection, webhook.network)
            changed = await connection.execute(
                update(webhooks)
                .where(webhooks.c.id == webhook.id, _PRESENT, allowed)
                .values(revision=revision, updated_at=to_micros(webhook.updated_at), **values)
            )
            if changed.rowcount == 1 and "config" in values:
                await self._look_back(connection, webhook, revision)
            if changed.rowcount == 1 and "status" in values:
                await move_lane(connection, webhook.id, values["status"], to_micros(webhook.updated_at))
            return changed.rowcount == 1

    async def _look_back(self, connection: AsyncConnection, webhook: Webhook, revision: int) -> None:
        """Leave a note that its transactions may be in blocks that the stream has passed."""
        if EVENT_TYPES[webhook.event_type].family is Family.MINED:
            values = {"network": webhook.network, "revision": revision}
            statement = self._insert(webhook_lookbacks).values(webhook_id=webhook.id, **values)
            await connection.execute(statement.on_conflict_do_update(index_elements=["webhook_id"], set_=values))

    async def _next_revision(self, connection: AsyncConnection, network: str) -> int:
        return await next_revision(connection, network, is_sqlite=self._database.is_sqlite)


async def next_revision(connection: AsyncConnection, network: str, *, is_sqlite: bool) -> int:
    """Take the next revision of a network; nobody else can until this transaction ends."""
    statement = (sqlite.insert if is_sqlite else postgresql.insert)(webhook_revisions).values(
        network=network, revision=1
    )
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["network"], set_={"revision": webhook_revisions.c.revision + 1})
    )
    found = await connection.scalar(select(webhook_revisions.c.revision).where(webhook_revisions.c.network == network))
    return int(found or 0)


async def move_lane(connection: AsyncConnection, webhook_id: str, status: str, now: int) -> None:
    """Let the lane of a webhook rest, or go on at once. What waited for a retry then begins anew."""
    active = status == "active"
    await connection.execute(
        update(webhook_lanes).where(webhook_lanes.c.webhook_id == webhook_id).values(due_at=now if active else NEVER)
    )
    if active:
        await connection.execute(_retrying(webhook_id).values(retries=0, due_at=now))
    else:
        await rest_retries(connection, webhook_id)


async def rest_retries(connection: AsyncConnection, webhook_id: str) -> None:
    """Make no retry for a webhook that is not active."""
    await connection.execute(_retrying(webhook_id).values(due_at=NEVER))


def _retrying(webhook_id: str) -> Update:
    events = webhook_events.c
    return update(webhook_events).where(events.webhook_id == webhook_id, events.state == "pending", events.retries > 0)


def webhook_of(row: RowMapping) -> Webhook:
    """The webhook of a row."""
    return Webhook(
        id=row["id"],
        account_id=row["account_id"],
        chain=row["chain"],
        network=row["network"],
        url=row["url"],
        event_type=row["event_type"],
        config=row["config"].encode(),
        status=row["status"],
        reason=row["reason"],
        created_at=from_micros(row["created_at"]),
        updated_at=from_micros(row["updated_at"]),
    )


async def _count(connection: AsyncConnection, condition: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(webhooks).where(condition, _PRESENT)
    return int(await connection.scalar(query) or 0)
