"""Sponsorships as the ledger holds them, and as the API takes and shows them."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from capstan.gas.policies.rules import ADDRESS_PATTERN

State = Literal["reserved", "settled", "released"]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A sponsorship that is to be reserved."""

    id: str
    policy_id: str
    network: str
    entry_point: bytes
    paymaster: bytes
    sender: bytes
    nonce: int
    hash: bytes | None
    price: Decimal
    # The most it can cost, in billionths of a US dollar.
    cost: int
    valid_until: int
    created_at: datetime


class SponsorRequest(msgspec.Struct, frozen=True):
    """The body of `POST /v1/gas/sponsor`."""

    chain: Annotated[str, Meta(description="The chain, such as `ethereum`.", examples=["ethereum"])]
    policy_id: Annotated[str, Meta(description="The policy that pays.", examples=["gp_3sKf9QmX2LrT7vB1cN8dYz"])]
    user_operation: Annotated[
        dict[str, Any],
        Meta(description="The operation, with the fields of its entry point's version. Missing limits are estimated."),
    ]
    entry_point: Annotated[
        Annotated[str, Meta(pattern=ADDRESS_PATTERN)] | UnsetType,
        Meta(
            description="The entry point; without it, that of version 0.6 for operations with `initCode` or"
            " `paymasterAndData`, and the newest with a paymaster for others."
        ),
    ] = UNSET
    network: Annotated[str | UnsetType, Meta(description="The network; without it, the policy's.")] = UNSET


class Sponsored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What goes into the operation so that the paymaster pays for it."""

    paymaster: str
    paymaster_data: Annotated[str, Meta(description="Times and signature.")] = msgspec.field(name="paymasterData")
    paymaster_verification_gas_limit: str = msgspec.field(name="paymasterVerificationGasLimit")
    paymaster_post_op_gas_limit: str = msgspec.field(name="paymasterPostOpGasLimit")
    paymaster_and_data: Annotated[
        str | UnsetType, Meta(description="The same for version 0.6, ready to be put in; absent for later ones.")
    ] = msgspec.field(name="paymasterAndData", default=UNSET)
    call_gas_limit: Annotated[str | UnsetType, Meta(description="Present where it was estimated.")] = msgspec.field(
        name="callGasLimit", default=UNSET
    )
    verification_gas_limit: Annotated[str | UnsetType, Meta(description="Present where it was estimated.")] = (
        msgspec.field(name="verificationGasLimit", default=UNSET)
    )
    pre_verification_gas: Annotated[str | UnsetType, Meta(description="Present where it was estimated.")] = (
        msgspec.field(name="preVerificationGas", default=UNSET)
    )
    sponsored_gas_usd: Annotated[str, Meta(description="The most that it can cost, in US dollars: what is reserved.")]
    sponsorship_id: str
    valid_until: Annotated[str, Meta(description="Until when it can be in a block.")]


class SponsorshipView(msgspec.Struct, frozen=True, kw_only=True):
    """One sponsorship in the ledger of a policy."""

    id: str
    state: Annotated[
        State, Meta(description="`reserved`, then `settled` when it was in a block, or `released` when it cannot be.")
    ]
    sender: str
    nonce: str
    user_operation_hash: str | None
    entry_point: str
    reserved_usd: Annotated[str, Meta(description="The most it could cost.")]
    spent_usd: Annotated[str, Meta(description="What it did cost; 0 until it is settled.")]
    price_usd: Annotated[str, Meta(description="The price of the native coin by which both were counted.")]
    actual_gas_cost: Annotated[str | None, Meta(description="In wei, as the entry point says.")]
    success: bool | None
    transaction_hash: str | None
    block_number: int | None
    valid_until: str
    created_at: str


class SponsorshipList(msgspec.Struct, frozen=True):
    """One page of a policy's sponsorships, the newest first."""

    sponsorships: list[SponsorshipView]
    page: int
    total: int
