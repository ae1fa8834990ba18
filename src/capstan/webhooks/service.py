"""The rules of subscriptions: creating, listing, changing, deleting.

Called by the routes. It decides who may watch what and where events may be sent; matching and delivery are others'
work. The signing secret leaves it once, with the answer that creates the webhook.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from capstan.access.models import Caller
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.core.clock import Clock, iso, utc
from capstan.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from capstan.core.ids import new_id
from capstan.core.redact import quoted
from capstan.outbound.client import GuardedClient
from capstan.outbound.errors import OutboundError, OutboundRefused
from capstan.outbound.urls import is_well_formed
from capstan.webhooks.filters import check_change, parse_filters
from capstan.webhooks.kinds import EVENT_TYPES, EventType, Family
from capstan.webhooks.models import (
    ChangedWebhook,
    ChangeWebhook,
    CreatedWebhook,
    CreateWebhook,
    DeletedWebhook,
    Webhook,
    WebhookItem,
    WebhookList,
)
from capstan.webhooks.sealing import Seal, new_signing_secret
from capstan.webhooks.store import TooManyWebhooks, WebhookStore

_LOOKUP_SECONDS = 3.0


class Reach(msgspec.Struct, frozen=True):
    """What the service asks of the networks; the composition root provides it."""

    # The network that a chain and an optional network name mean for a caller. Raises the errors of unknown, unserved
    # and forbidden networks.
    resolve: Callable[[Caller, str, str | None], NetworkFacts]
    # The names of all networks that the caller may know of.
    names: Callable[[Caller], Sequence[str]]
    # Why internal transfers cannot be told of on a network; None when they can.
    why_no_traces: Callable[[str], Awaitable[str | None]]


class WebhookService:
    """Subscriptions of all accounts."""

    def __init__(
        self,
        store: WebhookStore,
        client: GuardedClient,
        seal: Seal,
        clock: Clock,
        *,
        reach: Reach,
        limit: Callable[[Caller], int],
        needed: Callable[[str], int | None] = lambda _network: None,
        changed: Callable[[str], None] = lambda _webhook_id: None,
    ) -> None:
        """`needed` is told of every network that is to be followed, and says from which block on it is; `changed` is
        told of every webhook that changed."""
        self._store = store
        self._client = client
        self._seal = seal
        self._clock = clock
        self._reach = reach
        self._limit = limit
        self._needed = needed
        self._changed = changed

    async def create(self, caller: Caller, body: CreateWebhook) -> CreatedWebhook:
        """A new webhook with its secret."""
        kind = EVENT_TYPES[body.event_type]
        config = {} if body.config is msgspec.UNSET else body.config
        parse_filters(kind, config)
        facts = self._reach.resolve(caller, body.chain, body.network)
        await self._check_network(kind, facts)
        await self._check_url(body.url)
        now = utc(self._clock)
        webhook = Webhook(
            id=new_id("wh"),
            account_id=caller.account_id,
            chain=facts.chain,
            network=facts.name,
            url=body.url,
            event_type=kind.name,
            config=msgspec.json.encode(config),
            status="active",
            reason=None,
            created_at=now,
            updated_at=now,
        )
        secret, limit = new_signing_secret(), self._limit(caller)
        # Followed from before it is there, so that it misses nothing.
        first = self._needed(webhook.network)
        sealed = self._seal.seal(secret, webhook.id)
        try:
            await self._store.add(webhook, sealed, at_most=limit, first_block=first)
        except TooManyWebhooks:
            raise Forbidden(f"the plan {caller.plan} allows {limit} webhooks, and the account has as many") from None
        shown = {**_shown(webhook), "config": config, "signing_secret": secret, "created_at": iso(webhook.created_at)}
        return msgspec.convert(shown, CreatedWebhook)

    async def page(self, caller: Caller, *, page: int, limit: int, status: str | None) -> WebhookList:
        """One page of the account's webhooks."""
        found, total = await self._store.page(
            caller.account_id, self._reach.names(caller), status=status, offset=(page - 1) * limit, limit=limit
        )
        items = [msgspec.convert({**_shown(each), "created_at": iso(each.created_at)}, WebhookItem) for each in found]
        return WebhookList(items, page, total)

    async def change(self, caller: Caller, webhook_id: str, body: ChangeWebhook) -> ChangedWebhook:
        """Change what the request names. A disabled webhook keeps its status."""
        webhook = await self._own(caller, webhook_id)
        values: dict[str, Any] = {}
        if body.config is not msgspec.UNSET:
            check_change(EVENT_TYPES[webhook.event_type], body.config)
            values["config"] = msgspec.json.encode(body.config).decode()
        if body.url is not msgspec.UNSET:
            await self._check_url(body.url)
            values["url"] = body.url
        if body.status is not msgspec.UNSET:
            if webhook.status == "disabled":
                raise _disabled(webhook)
            if body.status != webhook.status:
                values |= {"status": body.status, "reason": "owner" if body.status == "paused" else None}
        webhook = msgspec.structs.replace(webhook, updated_at=utc(self._clock))
        write = self._store.change if "status" in values else self._store.force
        if not await write(webhook, **values):
            webhook = await self._own(caller, webhook_id)
            raise _disabled(webhook)
        self._changed(webhook.id)
        now = await self._own(caller, webhook_id)
        return msgspec.convert({**_shown(now), "updated_at": iso(now.updated_at)}, ChangedWebhook)

    async def delete(self, caller: Caller, webhook_id: str) -> DeletedWebhook:
        """Remove a webhook for good, with its events."""
        webhook = await self._own(caller, webhook_id)
        if not await self._store.delete(msgspec.structs.replace(webhook, updated_at=utc(self._clock))):
            raise _unknown(webhook_id)
        self._changed(webhook.id)
        return DeletedWebhook(webhook.id, deleted=True)

    async def _own(self, caller: Caller, webhook_id: str) -> Webhook:
        found = await self._store.find(webhook_id, caller.account_id)
        if found is None or found.network not in self._reach.names(caller):
            raise _unknown(webhook_id)
        return found

    async def _check_network(self, kind: EventType, facts: NetworkFacts) -> None:
        if facts.family != "evm":
            raise NotFound(f"Network {facts.name} has no webhooks: only EVM chains do.")
        if kind.family is Family.INTERNAL:
            why_not = await self._reach.why_no_traces(facts.name)
            if why_not is not None:
                raise InvalidRequest(f"event_type: INTERNAL_TRANSFER is not possible on {facts.name}: {why_not}")

    async def _check_url(self, url: str) -> None:
        """Refuse at once what would never be dialled. A name that cannot be looked up now is looked up again later."""
        try:
            self._client.check(url)
            if not is_well_formed(url):
                raise InvalidRequest("url: expected https://, the name of a host, and a path in printable ASCII")
            async with asyncio.timeout(_LOOKUP_SECONDS):
                await self._client.vet(url)
        except OutboundRefused as error:
            raise InvalidRequest(f"url: {error}") from None
        except (TimeoutError, OutboundError):
            return


def _shown(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "url": webhook.url,
        "chain": webhook.chain,
        "network": webhook.network.partition("/")[2],
        "event_type": webhook.event_type,
        "status": webhook.status,
    }


def _unknown(webhook_id: str) -> NotFound:
    return NotFound(f'there is no webhook "{quoted(webhook_id)}" of this account')


def _disabled(webhook: Webhook) -> Conflict:
    reason = {
        "gone": "its receiver answered 410 Gone; its owner can enable it in the dashboard",
        "suspended": "the account is suspended",
    }.get(webhook.reason or "", "only the operator can enable it")
    return Conflict(f"status: the webhook {webhook.id} is disabled: {reason}")
