"""Gas policies as the service holds them, and as the API takes and shows them.

Made by the store and the service, encoded by the server.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from capstan.gas.policies.rules import Rules
from capstan.outbound.urls import LONGEST_URL, URL_PATTERN

# What is stored. `exhausted` follows from the budget and is never stored.
StoredStatus = Literal["active", "paused", "archived"]
Status = Literal["active", "paused", "exhausted", "archived"]
OnFailure = Literal["refuse", "sponsor"]


class Spending(msgspec.Struct, frozen=True):
    """Sums over sponsorships, in billionths of a US dollar."""

    reserved: int = 0
    spent: int = 0

    @property
    def total(self) -> int:
        """What is no longer free."""
        return self.reserved + self.spent


class DecisionHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Somebody who is asked before each sponsorship, once the rules allow it."""

    url: Annotated[
        str, Meta(pattern=URL_PATTERN, max_length=LONGEST_URL, description="An HTTPS address that is sent a POST.")
    ]
    timeout_seconds: Annotated[float, Meta(gt=0, le=10, description="How long it may take to answer.")] = 2.0
    on_failure: Annotated[OnFailure, Meta(description="What is done when it does not answer, or not as it should.")] = (
        "refuse"
    )


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of one account."""

    id: str
    account_id: str
    name: str
    chain: str
    # `chain/network`.
    network: str
    # The rules as they are stored.
    rules: str
    hook: DecisionHook | None
    status: StoredStatus
    all_time: Spending
    # The sums of the UTC day on which it was read.
    today: Spending
    from_block: int
    created_at: datetime
    updated_at: datetime


_Name = Annotated[str, Meta(min_length=1, max_length=200, description="For people.", examples=["Onboarding"])]


_Rules = Annotated[Rules, Meta(extra_json_schema={"minProperties": 1})]


class CreatePolicy(msgspec.Struct, frozen=True):
    """The body of `POST /v1/gas/policies`."""

    name: _Name
    chain: Annotated[str, Meta(description="The chain, such as `ethereum`.", examples=["ethereum"])]
    rules: _Rules
    network: Annotated[
        str | None,
        Meta(description="The network of the chain; without it the key decides: main or default test network."),
    ] = None
    decision_hook: DecisionHook | None = None


class ChangePolicy(msgspec.Struct, frozen=True):
    """The body of `PATCH /v1/gas/policies/{policy_id}`. What is left out stays."""

    name: _Name | msgspec.UnsetType = msgspec.UNSET
    rules: Annotated[_Rules | msgspec.UnsetType, Meta(description="Replaces all rules.")] = msgspec.UNSET
    status: Annotated[
        StoredStatus | msgspec.UnsetType, Meta(description="`archived` is for good; `exhausted` cannot be set.")
    ] = msgspec.UNSET
    decision_hook: Annotated[
        DecisionHook | msgspec.UnsetType | None, Meta(description="Replaces the hook; null removes it.")
    ] = msgspec.UNSET


class SpendingView(msgspec.Struct, frozen=True):
    """Money in US dollars. What is reserved was promised to operations that are not on the chain yet."""

    spent_usd: str
    reserved_usd: str
    remaining_usd: Annotated[str | None, Meta(description="Null where the rules set no budget.")]


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy."""

    id: str
    name: str
    chain: str
    network: str
    rules: Rules
    decision_hook: DecisionHook | None
    status: Annotated[
        Status, Meta(description="`exhausted`: active, but a budget is used up; it ends when one is raised or renewed.")
    ]
    total: Annotated[SpendingView, Meta(description="For all time; the budget is `max_total_usd`.")]
    today: Annotated[SpendingView, Meta(description="Sponsored on this UTC day; the budget is `max_usd_per_day`.")]
    created_at: str
    updated_at: str


class CreatedPolicy(PolicyView, frozen=True, kw_only=True):
    """A new policy, or one whose hook was replaced."""

    hook_secret: Annotated[
        str | None,
        Meta(description="What requests to the decision hook are signed with. Told only here; null without a hook."),
    ] = None


class PolicyList(msgspec.Struct, frozen=True):
    """One page of the account's policies, the newest first."""

    policies: list[PolicyView]
    page: int
    total: Annotated[int, Meta(description="How many there are on all pages.")]
