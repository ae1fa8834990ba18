"""The settings of webhooks.

A part of `model`, in a file of its own. The comments are in `defaults.toml`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from capstan.settings.redaction import SECRET
from capstan.settings.section import Seconds, SecondsOrNone, Section

Delays = tuple[Annotated[float, Meta(ge=0, le=7 * 86_400)], ...]


class Webhooks(Section, frozen=True):
    """Webhooks."""

    secret_key: Annotated[str, SECRET]
    format_a_delays: Delays
    format_b_delays: Delays
    timeout_seconds: Seconds
    concurrency: Annotated[int, Meta(ge=1, le=10_000)]
    per_host: Annotated[int, Meta(ge=1, le=1_000)]
    poll_seconds: Seconds
    lookup_seconds: SecondsOrNone
    keep_days: Annotated[int, Meta(ge=1, le=3660)]
