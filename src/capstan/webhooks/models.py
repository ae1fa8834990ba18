"""Webhooks as the service holds them, and as the API takes and shows them. Plain values.

The signing secret appears in `CreatedWebhook` alone, which is made once, at creation.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from capstan.outbound.urls import LONGEST_URL, URL_PATTERN

Status = Literal["active", "paused", "disabled"]
# Why it is not active: the owner asked for it, retries were exhausted, the operator decided, the receiver answered 410,
# or the account is suspended.
Reason = Literal["owner", "failures", "operator", "gone", "suspended"]

EventName = Literal[
    "address_activity",
    "token_transfer",
    "nft_transfer",
    "mined_transaction",
    "log",
    "ADDRESS_ACTIVITY",
    "MINED_TRANSACTION",
    "NFT_ACTIVITY",
    "TOKEN_TRANSFER",
    "INTERNAL_TRANSFER",
    "NEW_BLOCK",
    "PENDING_TRANSACTION",
]
# The form is checked by the service, which can say what is wrong with it.
_Url = Annotated[
    str,
    Meta(
        description="Where events are sent: an https address on the public internet, with the name of a host.",
        examples=["https://example.com/hook"],
        max_length=LONGEST_URL,
        extra_json_schema={"pattern": URL_PATTERN},
    ),
]
_Config = Annotated[dict[str, Any], Meta(description="The filter. Which keys it has depends on the event type.")]


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription."""

    id: str
    account_id: str
    chain: str
    # `chain/network`.
    network: str
    url: str
    event_type: str
    # JSON, as the request had it.
    config: bytes
    status: Status
    reason: Reason | None
    created_at: datetime
    updated_at: datetime


class CreateWebhook(msgspec.Struct, frozen=True):
    """The body of `POST /v1/webhooks`."""

    url: _Url
    chain: Annotated[str, Meta(description="The chain to watch.", examples=["ethereum"])]
    event_type: Annotated[EventName, Meta(description="Lower case is delivered in Format A, upper case in Format B.")]
    config: _Config | msgspec.UnsetType = msgspec.UNSET
    network: Annotated[
        str | None, Meta(description="Another network of the chain than the one the key stands for.")
    ] = None


class ChangeWebhook(msgspec.Struct, frozen=True):
    """The body of `PATCH /v1/webhooks/{id}`. What is absent stays."""

    url: _Url | msgspec.UnsetType = msgspec.UNSET
    status: Annotated[Literal["active", "paused"] | msgspec.UnsetType, Meta(description="Resume or pause it.")] = (
        msgspec.UNSET
    )
    config: _Config | msgspec.UnsetType = msgspec.UNSET


class CreatedWebhook(msgspec.Struct, frozen=True):
    """A webhook, as creating it tells it."""

    id: str
    url: str
    chain: str
    network: str
    event_type: EventName
    config: dict[str, Any]
    signing_secret: Annotated[str, Meta(description="Shown this once. Receivers check signatures with it.")]
    status: Status
    created_at: str


class WebhookItem(msgspec.Struct, frozen=True):
    """A webhook in a list."""

    id: str
    url: str
    chain: str
    network: str
    event_type: EventName
    status: Status
    created_at: str


class ChangedWebhook(msgspec.Struct, frozen=True):
    """A webhook, as changing it tells it."""

    id: str
    url: str
    chain: str
    network: str
    event_type: EventName
    status: Status
    updated_at: str


class WebhookList(msgspec.Struct, frozen=True):
    """One page of the account's webhooks, the newest first."""

    webhooks: list[WebhookItem]
    page: int
    total: Annotated[int, Meta(description="How many there are on all pages.")]


class DeletedWebhook(msgspec.Struct, frozen=True):
    """What deleting a webhook tells."""

    id: str
    deleted: bool
