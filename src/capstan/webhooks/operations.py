"""What the operator and the owner do with webhooks besides the API: look, test, replay, resume, disable, rotate.

Called by the command line, and made for the dashboard. Works beside a running service: everything goes through the
database, and whoever delivers takes it up from there. A replay sends the very same bytes under the very same ids.
"""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, func, insert, select, update

from capstan.access.store import from_micros, to_micros
from capstan.core.clock import Clock, iso, utc
from capstan.core.errors import Conflict, InvalidRequest, NotFound
from capstan.core.ids import new_id
from capstan.core.redact import quoted
from capstan.storage.database import Database
from capstan.storage.webhook_schema import webhook_attempts, webhook_events, webhook_lanes, webhooks
from capstan.webhooks.delivery.models import Outcome, Target
from capstan.webhooks.delivery.sender import Sender
from capstan.webhooks.kinds import EVENT_TYPES
from capstan.webhooks.models import Webhook
from capstan.webhooks.payloads import milliseconds, whole_seconds
from capstan.webhooks.sealing import Seal, new_signing_secret
from capstan.webhooks.store import WebhookStore

ROTATION_SECONDS = 86_400
_MICROSECONDS = 1_000_000
_events = webhook_events.c


class Attempt(msgspec.Struct, frozen=True):
    """One line of the log of attempts."""

    event_id: str
    number: int
    at: str
    status: int | None
    latency_ms: int
    error: str | None
    # The beginning of what the receiver said.
    response: str | None
    # What has become of the event.
    state: str


class WebhookOperations:
    """Operations on webhooks of all accounts."""

    def __init__(self, database: Database, seal: Seal, sender: Sender, clock: Clock) -> None:
        self._database = database
        self._store = WebhookStore(database)
        self._seal = seal
        self._sender = sender
        self._clock = clock

    async def page(
        self, account_id: str | None = None, *, status: str | None = None, offset: int = 0, limit: int = 100
    ) -> tuple[list[Webhook], int]:
        """Webhooks, the newest first, and how many there are."""
        return await self._store.page(account_id, None, status=status, offset=offset, limit=limit)

    async def attempts(self, webhook_id: str, *, event_id: str | None = None, limit: int = 100) -> list[Attempt]:
        """The log of attempts, the newest first."""
        await self.get(webhook_id)
        attempts = webhook_attempts.c
        query = (
            select(webhook_attempts, _events.id.label("event_id"), _events.state)
            .join(webhook_events, _events.seq == attempts.event_seq)
            .where(attempts.webhook_id == webhook_id)
            .order_by(attempts.at.desc(), attempts.number.desc())
            .limit(limit)
        )
        if event_id is not None:
            query = query.where(_events.id == event_id)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        return [
            Attempt(
                row.event_id,
                row.number,
                iso(from_micros(row.at)),
                row.status,
                row.latency_ms,
                row.error,
                None if row.response is None else row.response.decode("utf-8", "replace"),
                row.state,
            )
            for row in rows
        ]

    async def test(self, webhook_id: str) -> Outcome:
        """Send a test event now, once, whatever the status, and note it in the log."""
        webhook = await self.get(webhook_id)
        kind, event_id, now = EVENT_TYPES[webhook.event_type], new_id("evt"), self._clock.now()
        body: dict[str, Any] = {"id": event_id}
        if kind.format == "A":
            body |= {"event_type": kind.name, "webhook_id": webhook.id, "created_at": whole_seconds(now)}
            body["data"] = {"chain": webhook.chain, "test": True}
        else:
            body |= {"type": kind.name, "createdAt": milliseconds(now), "chain": webhook.chain, "data": {"test": True}}
        content = msgspec.json.encode(body)
        target = await self._target(webhook)
        outcome = await self._sender.send(target, event_id, content)
        await self._note_test(webhook, event_id, content, outcome)
        return outcome

    async def replay(
        self,
        webhook_id: str,
        *,
        event_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        from_block: int | None = None,
        to_block: int | None = None,
    ) -> int:
        """Deliver kept events again: one, those of a time, or those of a range of blocks. Returns how many."""
        webhook = await self.get(webhook_id)
        if webhook.status != "active":
            raise Conflict(f"the webhook {webhook.id} is {webhook.status}; resume it first")
        conditions: list[ColumnElement[bool]] = []
        if event_id is not None:
            conditions.append(_events.id == event_id)
        if since is not None:
            conditions.append(_events.created_at >= to_micros(since))
        if until is not None:
            conditions.append(_events.created_at <= to_micros(until))
        if from_block is not None:
            conditions.append(_events.block_number >= from_block)
        if to_block is not None:
            conditions.append(_events.block_number <= to_block)
        if not conditions:
            raise InvalidRequest("say what to replay: an event, a time, or a range of blocks")
        now = self._now()
        async with self._database.write() as connection:
            found = await connection.execute(
                update(webhook_events)
                .where(_events.webhook_id == webhook.id, _events.state != "waiting", *conditions)
                .values(state="pending", retries=0, due_at=now)
            )
            await connection.execute(
                update(webhook_lanes).where(webhook_lanes.c.webhook_id == webhook.id).values(due_at=now)
            )
        if event_id is not None and not found.rowcount:
            raise NotFound(f'there is no event "{quoted(event_id)}" of the webhook {webhook.id}')
        return int(found.rowcount)

    async def resume(self, webhook_id: str) -> Webhook:
        """Make a webhook active again, also a disabled one; what was kept is delivered."""
        return await self._set_status(webhook_id, "active", None)

    async def disable(self, webhook_id: str) -> Webhook:
        """Stop a webhook until the operator resumes it."""
        return await self._set_status(webhook_id, "disabled", "operator")

    async def rotate(self, webhook_id: str) -> str:
        """A new signing secret. The old one signs too for another day."""
        webhook = await self.get(webhook_id)
        secret = new_signing_secret()
        async with self._database.write() as connection:
            mine = and_(webhooks.c.id == webhook.id, webhooks.c.deleted_at.is_(None))
            await connection.execute(
                update(webhooks)
                .where(mine)
                .values(
                    previous_secret=webhooks.c.secret,
                    previous_until=self._now() + ROTATION_SECONDS * _MICROSECONDS,
                    secret=self._seal.seal(secret, webhook.id),
                )
            )
        return secret

    async def _set_status(self, webhook_id: str, status: str, reason: str | None) -> Webhook:
        webhook = await self.get(webhook_id)
        changed = msgspec.structs.replace(webhook, updated_at=utc(self._clock))
        await self._store.force(changed, status=status, reason=reason)
        return await self.get(webhook_id)

    async def get(self, webhook_id: str) -> Webhook:
        """One webhook, of any account."""
        found = await self._store.find(webhook_id)
        if found is None:
            raise NotFound(f'there is no webhook "{quoted(webhook_id)}"')
        return found

    async def _target(self, webhook: Webhook) -> Target:
        secrets = await self._store.secrets(webhook.id)
        if secrets is None:
            raise NotFound(f"there is no webhook {webhook.id}")
        return Target(
            webhook.id,
            webhook.account_id,
            webhook.network,
            EVENT_TYPES[webhook.event_type],
            webhook.url,
            secrets.current,
            secrets.previous,
            secrets.previous_until,
        )

    async def _note_test(self, webhook: Webhook, event_id: str, body: bytes, outcome: Outcome) -> None:
        now = self._now()
        async with self._database.write() as connection:
            await connection.execute(
                insert(webhook_events).values(
                    id=event_id,
                    webhook_id=webhook.id,
                    network=webhook.network,
                    position="test",
                    phase=0,
                    state="delivered" if outcome.accepted else "failed",
                    body=body,
                    due_at=now,
                    retries=0,
                    attempts=1,
                    counted=True,
                    created_at=now,
                )
            )
            seq = await connection.scalar(select(func.max(_events.seq)).where(_events.id == event_id))
            await connection.execute(
                insert(webhook_attempts).values(
                    event_seq=seq,
                    number=1,
                    webhook_id=webhook.id,
                    at=outcome.at,
                    status=outcome.status,
                    latency_ms=outcome.latency_ms,
                    error=outcome.error,
                    response=outcome.response,
                )
            )

    def _now(self) -> int:
        return int(self._clock.now() * _MICROSECONDS)
