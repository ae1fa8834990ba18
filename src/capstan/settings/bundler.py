"""The settings of the bundler.

A part of `model`, in a file of its own. The comments are in `defaults.toml`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from capstan.settings.redaction import SECRET, SECRET_ITEMS
from capstan.settings.section import Count, PositiveCount, Seconds, SecondsOrNone, Section, Text


class Bundler(Section, frozen=True):
    """The ERC-4337 bundler."""

    signers: Annotated[tuple[Text, ...], SECRET_ITEMS]
    keystore_password: Annotated[str, SECRET]
    beneficiary: str
    validation_processes: Annotated[int, Meta(ge=1, le=1000)]
    validation_seconds: Seconds
    mode: Literal["auto", "manual"]
    gather_seconds: SecondsOrNone
    bundle_gas: Annotated[int, Meta(ge=500_000, le=2**53 - 1)]
    bundle_bytes: PositiveCount
    bundle_operations: Annotated[int, Meta(ge=1, le=10_000)]
    operation_bytes: PositiveCount
    context_bytes: Count
    pool_operations: PositiveCount
    replacement_percent: Annotated[int, Meta(ge=1, le=1000)]
    least_tip_gwei: Count
    least_seconds: Annotated[int, Meta(ge=0, le=86_400)]
    least_balance_gwei: Count
    low_balance_gwei: Count
    stuck_blocks: Annotated[int, Meta(ge=1, le=10_000)]
    bump_percent: Annotated[int, Meta(ge=10, le=1000)]
    least_stake_gwei: Count
    least_unstake_seconds: Count
    never_limited: tuple[Text, ...]
    always_banned: tuple[Text, ...]
    lookup_blocks: Count
    keep_days: Annotated[int, Meta(ge=1, le=36_600)]
