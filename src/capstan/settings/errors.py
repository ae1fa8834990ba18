"""What is wrong with the settings, told so that it can be put right.

    SettingsError        one or more problems; its text has one line each
    ReloadFailed         a subscriber refused new settings that were valid

A problem names where the value came from (a file, an environment variable, the command line), which setting it is, and
why it is refused. Raised by this package only; the command line prints it and stops.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    source: str
    """Where the value came from: a file path, `environment variable NAME`, `command line`."""
    key: str
    """The dotted name of the setting; empty when the source as a whole is at fault."""
    reason: str
    """What is wrong with it, never with a secret in it."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.reason) if part)


class SettingsError(Exception):
    """The settings cannot be used. `problems` holds every fault that was found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ReloadFailed(Exception):
    """A subscriber refused the new settings. The old ones are in force again, unless the message says otherwise."""


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean "…"?` with the closest known name, or nothing when none is close."""
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def dotted(path: Iterable[str]) -> str:
    """A path as TOML writes it: `networks."ethereum/mainnet".chain_id`."""
    bare = "abcdefghijklmnopqrstuvwxyz0123456789_-"
    return ".".join(part if part and set(part) <= set(bare) else f'"{part}"' for part in path)
