"""Time, as a value that can be handed in.

Whatever reads a clock takes a `Clock`, so that a test can move time instead of waiting for it. Durations and windows
use `monotonic`, which never jumps; anything shown to a user or stored uses `now`.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes backwards."""
        ...


class SystemClock:
    """The machine's clock. Its methods are those of the time module themselves: every request reads them often."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that moves only when told to. For tests."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._monotonic = 1_000.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now += seconds
        self._monotonic += seconds


def utc(clock: Clock) -> datetime:
    """The present moment with a time zone, to the microsecond."""
    return datetime.fromtimestamp(clock.now(), UTC)


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC with whole seconds, the form of every timestamp in the API: `2026-01-31T12:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_day(clock: Clock) -> str:
    """The UTC calendar day, `2026-01-31`: the unit of daily limits."""
    return datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m-%d")


def seconds_to_midnight(clock: Clock) -> int:
    """Whole seconds until the next UTC midnight, at least one."""
    return max(1, 86_400 - int(clock.now()) % 86_400)
