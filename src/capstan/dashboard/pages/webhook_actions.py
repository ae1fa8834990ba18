"""What the dashboard does to webhooks: the forms of the pages in `webhooks`."""

from typing import Any

import msgspec
from litestar import post
from litestar.handlers import HTTPRouteHandler

from capstan.core.errors import ApiError, Conflict, InvalidRequest
from capstan.dashboard.desk import OPERATOR, Asked, Form, Page
from capstan.dashboard.pages.webhooks import ENTRY, WebhookViews
from capstan.webhooks.models import ChangeWebhook, CreateWebhook
from capstan.webhooks.operations import WebhookOperations
from capstan.webhooks.service import WebhookService

_ONE = "/webhooks/{webhook_id:str}"


def webhook_actions(
    views: WebhookViews, service: WebhookService, operations: WebhookOperations
) -> list[HTTPRouteHandler]:
    """The handlers of the forms."""
    desk = views.desk

    @post("/webhooks")
    async def create(request: Asked) -> Page:
        """Make a webhook; this answer alone shows its secret."""
        form = desk.form(request)
        try:
            made = await service.create(desk.visitor(request).caller, _new(form))
        except ApiError as error:
            values = {name: form.get(name) for name in ("url", "network", "event_type", "config")}
            return views.form(request, values, error)
        desk.note(request, "webhook_created", webhook=made.id)
        return await views.one(request, await views.own(request, made.id), secret=made.signing_secret)

    @post(_ONE)
    async def change(request: Asked, webhook_id: str) -> Page:
        """Change the address and the filter."""
        webhook, form = await views.own(request, webhook_id), desk.form(request)
        try:
            body = ChangeWebhook(url=_url(form), config=_config(form))
            await service.change(desk.visitor(request).caller, webhook_id, body)
        except ApiError as error:
            edited = {"url": form.get("url"), "config": form.get("config")}
            return await views.one(request, webhook, error=error, edited=edited)
        desk.note(request, "webhook_changed", webhook=webhook_id)
        return desk.go(f"{ENTRY.path}/{webhook_id}", done="webhook-changed")

    @post(_ONE + "/pause")
    async def pause(request: Asked, webhook_id: str) -> Page:
        """Stop deliveries; events are kept."""
        await views.own(request, webhook_id)
        await service.change(desk.visitor(request).caller, webhook_id, ChangeWebhook(status="paused"))
        desk.note(request, "webhook_paused", webhook=webhook_id)
        return desk.go(f"{ENTRY.path}/{webhook_id}", done="webhook-paused")

    @post(_ONE + "/resume")
    async def resume(request: Asked, webhook_id: str) -> Page:
        """Deliver again. What the operator disabled, only the operator enables."""
        webhook, visitor = await views.own(request, webhook_id, also_operator=True), desk.visitor(request)
        if webhook.status == "disabled":
            if webhook.reason != "gone" and not visitor.user.is_operator:
                raise Conflict("only the operator can enable this webhook")
            await operations.resume(webhook_id)
        elif webhook.account_id == visitor.account.id:
            await service.change(visitor.caller, webhook_id, ChangeWebhook(status="active"))
        else:
            await operations.resume(webhook_id)
        desk.note(request, "webhook_resumed", webhook=webhook_id)
        return desk.go(f"{ENTRY.path}/{webhook_id}", done="webhook-resumed")

    @post(_ONE + "/disable", opt=OPERATOR)
    async def disable(request: Asked, webhook_id: str) -> Page:
        """Stop a webhook of any account, until the operator enables it."""
        await operations.disable(webhook_id)
        desk.note(request, "webhook_disabled", webhook=webhook_id)
        return desk.go(f"{ENTRY.path}/{webhook_id}", done="webhook-disabled")

    @post(_ONE + "/test")
    async def send_test(request: Asked, webhook_id: str) -> Page:
        """Send a test event now, and show what the receiver said."""
        webhook = await views.own(request, webhook_id)
        outcome = await operations.test(webhook_id)
        desk.note(request, "webhook_tested", webhook=webhook_id)
        return await views.one(request, webhook, outcome=outcome)

    @post(_ONE + "/rotate")
    async def rotate(request: Asked, webhook_id: str) -> Page:
        """A new secret, shown in this answer alone."""
        webhook = await views.own(request, webhook_id)
        secret = await operations.rotate(webhook_id)
        desk.note(request, "webhook_secret_rotated", webhook=webhook_id)
        return await views.one(request, webhook, secret=secret)

    @post(_ONE + "/delete")
    async def delete(request: Asked, webhook_id: str) -> Page:
        """Remove it for good."""
        await views.own(request, webhook_id)
        await service.delete(desk.visitor(request).caller, webhook_id)
        desk.note(request, "webhook_deleted", webhook=webhook_id)
        return desk.go(ENTRY.path, done="webhook-deleted")

    @post(_ONE + "/events/{event_id:str}/replay")
    async def replay(request: Asked, webhook_id: str, event_id: str) -> Page:
        """Deliver one event again, under the same id."""
        await views.own(request, webhook_id)
        await operations.replay(webhook_id, event_id=event_id)
        desk.note(request, "event_replayed", webhook=webhook_id, event_id=event_id)
        return desk.go(f"{ENTRY.path}/{webhook_id}/events/{event_id}", done="replayed")

    return [create, change, pause, resume, disable, send_test, rotate, delete, replay]


def _new(form: Form) -> CreateWebhook:
    chain, _, network = form.get("network").partition("/")
    body = {
        "url": _url(form),
        "chain": chain,
        "network": network,
        "event_type": form.get("event_type"),
        "config": _config(form),
    }
    try:
        return msgspec.convert(body, CreateWebhook)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def _url(form: Form) -> str:
    url = form.get("url")
    if not url or len(url) > 2048:
        raise InvalidRequest("url: give the address of your receiver, of at most 2048 characters")
    return url


def _config(form: Form) -> dict[str, Any]:
    try:
        return msgspec.json.decode(form.get("config") or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"config: this is not a JSON object ({error})") from None
