"""The settings of gas sponsorship.

A part of `model`, in a file of its own. The comments are in `defaults.toml`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from capstan.settings.redaction import SECRET
from capstan.settings.section import Count, SecondsOrNone, Section


class Gas(Section, frozen=True):
    """Gas sponsorship."""

    signer: Annotated[str, SECRET]
    owner: Annotated[str, SECRET]
    keystore_password: Annotated[str, SECRET]
    validity_seconds: Annotated[int, Meta(ge=30, le=86_400)]
    release_seconds: SecondsOrNone
    sponsor_name: str
    sponsor_icon: str
    least_deposit_gwei: Count
    keep_days: Annotated[int, Meta(ge=2, le=36_600)]
