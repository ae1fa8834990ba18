"""Webhooks: list, create, change, pause, resume, test, rotate, delete; the log of deliveries; replays.

Everything goes through the services of webhooks. An operator may also look at those of other accounts, and disable or
enable them; `webhook_actions` has what changes something.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler

from capstan.access.store import to_micros
from capstan.catalogue.networks import Networks
from capstan.core.errors import ApiError, NotFound
from capstan.core.redact import quoted
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.menu import Entry
from capstan.dashboard.paging import PAGE_ROWS, cursor_number, cursor_of, last_of, page_of
from capstan.webhooks.delivery.models import Outcome
from capstan.webhooks.kinds import EVENT_TYPES
from capstan.webhooks.log import MOST_COUNTED, WebhookLog
from capstan.webhooks.models import Webhook
from capstan.webhooks.operations import WebhookOperations

ENTRY = Entry("Webhooks", "/dashboard/webhooks", "hook")
STATUSES = ("active", "paused", "disabled")
_REASONS = {
    "owner": "It was paused by its owner.",
    "failures": "It was paused because every retry of a delivery failed. Its events are kept for seven days; resume it"
    " once the receiver works.",
    "operator": "The operator of this service disabled it.",
    "gone": "It was disabled because its receiver answered 410 Gone. Resume it if that was a mistake.",
    "suspended": "It is disabled because the account is suspended.",
}
_NEXT_EVENTS = 5


class WebhookViews:
    """The pages that show webhooks, also after something was done to one."""

    def __init__(
        self, desk: Desk, log: WebhookLog, operations: WebhookOperations, networks: Callable[[], Networks]
    ) -> None:
        self.desk = desk
        self._log = log
        self._operations = operations
        self._networks = networks

    async def own(self, request: Asked, webhook_id: str, *, also_operator: bool = False) -> Webhook:
        """A webhook of the visitor's account; with `also_operator`, of any account for an operator."""
        visitor = self.desk.visitor(request)
        webhook = await self._operations.get(webhook_id)
        mine = webhook.account_id == visitor.account.id
        if not mine and not (also_operator and visitor.user.is_operator):
            raise NotFound(f'there is no webhook "{quoted(webhook_id)}" of this account')
        return webhook

    async def listing(self, request: Asked) -> Page:
        """A page of the list."""
        query = self.desk.query(request)
        status = query.get("status") if query.get("status") in STATUSES else ""
        cursor = cursor_of(query.get("after"), 2)
        after = None if cursor is None else (cursor_number(cursor[0]), cursor[1])
        account_id = self.desk.visitor(request).account.id
        found = await self._log.listing(account_id, status=status or None, after=after, limit=PAGE_ROWS + 1)
        last = last_of(found)
        page = page_of(
            found,
            path=ENTRY.path,
            after=query.get("after"),
            cursor=() if last is None else (to_micros(last.created_at), last.id),
            filters={"status": status},
        )
        return self.desk.page(request, "webhooks.html", {"page": page, "status": status, "statuses": STATUSES})

    def form(self, request: Asked, values: dict[str, str], error: ApiError | None = None) -> Page:
        """The form for a new webhook."""
        shown = {
            "values": values,
            "networks": [entry.name for entry in self._networks().served if entry.family == "evm"],
            "types": [(name, ", ".join(sorted(kind.keys))) for name, kind in EVENT_TYPES.items()],
        }
        if error is not None:
            return self.desk.problem(request, "webhook_new.html", error, shown)
        return self.desk.page(request, "webhook_new.html", shown)

    async def one(
        self,
        request: Asked,
        webhook: Webhook,
        *,
        secret: str | None = None,
        outcome: Outcome | None = None,
        error: ApiError | None = None,
        edited: dict[str, str] | None = None,
    ) -> Page:
        """One webhook with its deliveries; perhaps with a secret that is shown this once, or what a test brought."""
        query = self.desk.query(request)
        cursor = cursor_of(query.get("after"), 3)
        after = None if cursor is None else tuple(map(cursor_number, cursor))
        found = await self._log.deliveries(webhook.id, after=after, limit=PAGE_ROWS + 1)  # type: ignore[arg-type]  # three
        last = last_of(found)
        path = f"{ENTRY.path}/{webhook.id}"
        cursor_now = () if last is None else (last.at, last.event_seq, last.number)
        values: dict[str, Any] = {
            "webhook": webhook,
            "mine": webhook.account_id == self.desk.visitor(request).account.id,
            "config": msgspec.json.format(webhook.config, indent=2).decode(),
            "reason": _REASONS.get(webhook.reason or ""),
            "page": page_of(found, path=path, after=query.get("after"), cursor=cursor_now, filters={}),
            "undelivered": await self._log.undelivered(webhook.id),
            "upcoming": await self._log.next_events(webhook.id, limit=_NEXT_EVENTS),
            "most_counted": MOST_COUNTED,
            "secret_text": secret,
            "outcome": outcome,
            "edited": edited,
        }
        if error is not None:
            return self.desk.problem(request, "webhook.html", error, values)
        return self.desk.page(request, "webhook.html", values)

    async def event(self, request: Asked, webhook: Webhook, event_id: str) -> Page:
        """One event with its payload and attempts."""
        found = await self._log.event(webhook.id, event_id)
        if found is None:
            raise NotFound("this event is not kept any more, or never was")
        event, attempts = found
        values = {
            "webhook": webhook,
            "event": event,
            "attempts": attempts,
            "body": msgspec.json.format(event.body, indent=2).decode(),
            "mine": webhook.account_id == self.desk.visitor(request).account.id,
        }
        return self.desk.page(request, "webhook_event.html", values)


def webhook_pages(views: WebhookViews) -> list[HTTPRouteHandler]:
    """The handlers of the pages that show something."""

    @get("/webhooks")
    async def listing(request: Asked) -> Page:
        """The webhooks of the account."""
        return await views.listing(request)

    @get("/webhooks/new")
    async def new(request: Asked) -> Page:
        """The form for a new one."""
        return views.form(request, {"url": "", "network": "", "event_type": "address_activity", "config": "{}"})

    @get("/webhooks/{webhook_id:str}")
    async def one(request: Asked, webhook_id: str) -> Page:
        """One webhook with its deliveries."""
        return await views.one(request, await views.own(request, webhook_id, also_operator=True))

    @get("/webhooks/{webhook_id:str}/events/{event_id:str}")
    async def event(request: Asked, webhook_id: str, event_id: str) -> Page:
        """One event."""
        return await views.event(request, await views.own(request, webhook_id, also_operator=True), event_id)

    return [listing, new, one, event]
