"""The paths of webhooks: `POST` and `GET /v1/webhooks`, `PATCH` and `DELETE /v1/webhooks/{id}`."""

from typing import Annotated, Any, Literal

from litestar import delete, get, patch, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller, Scope
from capstan.webhooks.models import (
    ChangedWebhook,
    ChangeWebhook,
    CreatedWebhook,
    CreateWebhook,
    DeletedWebhook,
    WebhookList,
)
from capstan.webhooks.schemas import change_schema, creation_schema
from capstan.webhooks.service import WebhookService

_OPTIONS: dict[str, Any] = {"units": "rest.control", "scopes": (Scope.WEBHOOKS_MANAGE,)}
_CREATE = {**_OPTIONS, "request_schema": creation_schema()}
_CHANGE = {**_OPTIONS, "errors": ("conflict",), "request_schema": change_schema()}
_ID = "/v1/webhooks/{webhook_id:str}"
_Id = Annotated[str, Parameter(description="The id of the webhook, `wh_…`.")]


def webhook_routes(webhooks: WebhookService) -> list[HTTPRouteHandler]:
    """The handlers of the webhook paths."""

    @post("/v1/webhooks", opt=_CREATE, tags=["webhooks"], summary="Create a webhook", status_code=201)
    async def create_webhook(data: CreateWebhook, caller: NamedDependency[SkipValidation[Caller]]) -> CreatedWebhook:
        """A subscription to events of a chain. Its signing secret is shown in this answer and never again."""
        return await webhooks.create(caller, data)

    @get("/v1/webhooks", opt=_OPTIONS, tags=["webhooks"], summary="List webhooks")
    async def list_webhooks(
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(description="Which page, from 1.", ge=1, le=2**31)] = 1,
        limit: Annotated[int, Parameter(description="How many on a page.", ge=1, le=100)] = 25,
        status: Annotated[
            Literal["active", "paused", "disabled"] | None, Parameter(description="Only those of this status.")
        ] = None,
    ) -> WebhookList:
        """The account's webhooks, the newest first."""
        return await webhooks.page(caller, page=page, limit=limit, status=status)

    @patch(_ID, opt=_CHANGE, tags=["webhooks"], summary="Change a webhook")
    async def change_webhook(
        webhook_id: _Id, data: ChangeWebhook, caller: NamedDependency[SkipValidation[Caller]]
    ) -> ChangedWebhook:
        """Change the address, pause or resume, or replace the whole filter. The signing secret stays."""
        return await webhooks.change(caller, webhook_id, data)

    @delete(_ID, opt=_OPTIONS, tags=["webhooks"], summary="Delete a webhook", status_code=200)
    async def delete_webhook(webhook_id: _Id, caller: NamedDependency[SkipValidation[Caller]]) -> DeletedWebhook:
        """Remove a webhook for good, with its events. This cannot be undone."""
        return await webhooks.delete(caller, webhook_id)

    return [create_webhook, list_webhooks, change_webhook, delete_webhook]
