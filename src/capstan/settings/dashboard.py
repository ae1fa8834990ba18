"""The settings of the dashboard.

A part of `model`, in a file of its own. The comments are in `defaults.toml`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from capstan.settings.section import Section


class Dashboard(Section, frozen=True):
    """The dashboard."""

    enabled: bool
    idle_hours: Annotated[int, Meta(ge=1, le=24 * 366)]
    session_days: Annotated[int, Meta(ge=1, le=366)]
