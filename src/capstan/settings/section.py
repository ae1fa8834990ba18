"""What the structs of the settings are made of: the base of every section, and kinds of values that several use.

Used by `model` and `data` alone.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from capstan.settings.redaction import hidden

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
PositiveCount = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=86_400)]
Share = Annotated[float, Meta(gt=0, le=1)]
ShareOrNone = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section."""

    def __repr__(self) -> str:
        parts = (f"{name}={value!r}" for name, value in hidden(self).items())
        return f"{type(self).__name__}({', '.join(parts)})"
