"""The health of one upstream: its rate of failures, and the circuit breaker that takes it out of rotation.

Called by `PooledUpstream` for every attempt. A breaker is closed as long as calls succeed. It opens after a few
failures in a row, after one that says nobody is there, or when too large a share of the recent calls failed. After a
pause a single call tries the upstream again while the others pass it over; its outcome closes the breaker or opens it
for twice as long. Nothing here starts a timer: time is looked at when a call comes.
"""

from enum import IntEnum
from random import Random
from typing import Final

from capstan.core.clock import Clock

FAILURES_BEFORE_OPENING = 3
# Too many failures: at least this share of at least so many calls.
_BAD_SHARE = 0.5
_BAD_SHARE_CALLS = 20
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
# Pauses are shortened by up to this share, so that the upstreams of many processes are not tried all at once.
_JITTER = 0.25
# A breaker that opens again so soon after it closed goes on with longer pauses.
_SETTLED_SECONDS = 10.0
PERIOD_SECONDS = 5.0


class ErrorRate:
    """The share of failures among the calls of the last five to ten seconds."""

    __slots__ = ("_failures", "_past_calls", "_past_failures", "calls", "since")

    def __init__(self) -> None:
        # When the present period began, and the calls in it. Whoever counts a call that ended well by himself asks
        # `passed` when the period is over.
        self.since = 0.0
        self.calls = self._failures = self._past_calls = self._past_failures = 0

    def note(self, now: float, *, failed: bool) -> None:
        """One call ended now."""
        self.passed(now)
        self._failures += failed

    def passed(self, now: float) -> None:
        """One call ended well now."""
        if now - self.since >= PERIOD_SECONDS:
            self._roll(now)
        self.calls += 1

    def counts(self, now: float) -> tuple[int, int]:
        """Calls and failures of the period."""
        self._roll(now)
        return self.calls + self._past_calls, self._failures + self._past_failures

    def rate(self, now: float) -> float:
        """The share of failures, drawn towards zero when there were few calls."""
        calls, failures = self.counts(now)
        return failures / (calls + 4) if failures else 0.0

    def clear(self) -> None:
        """Forget everything."""
        self.calls = self._failures = self._past_calls = self._past_failures = 0

    def _roll(self, now: float) -> None:
        age = now - self.since
        if age < PERIOD_SECONDS:
            return
        recent = age < 2 * PERIOD_SECONDS
        self._past_calls, self._past_failures = (self.calls, self._failures) if recent else (0, 0)
        self.calls = self._failures = 0
        self.since = now


class BreakerState(IntEnum):
    """The numbers are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


# Bound once: in Python 3.11 to look up a member of an enum costs as much as a call.
_CLOSED: Final = BreakerState.CLOSED


class CircuitBreaker:
    """Whether one upstream is in rotation."""

    def __init__(self, clock: Clock, random: Random | None = None) -> None:
        self.state = BreakerState.CLOSED
        self.errors = ErrorRate()
        self._clock = clock
        self._random = random or Random()
        self.failures_in_a_row = 0
        self._pauses = 0
        self._retry_at = 0.0
        self._closed_at = float("-inf")

    @property
    def due(self) -> bool:
        """Whether it is open and its pause is over: one call should try the upstream."""
        return self.state is BreakerState.OPEN and self._clock.monotonic() >= self._retry_at

    def begin(self) -> bool:
        """A call is about to be made. True when it is made although the breaker is not closed: its outcome decides."""
        if self.state is _CLOSED:
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def succeeded(self, *, probe: bool) -> bool:
        """A proper answer came. True when that closes the breaker.

        A call that began before the breaker opened says nothing about now, so it changes nothing.
        """
        if self.state is _CLOSED:
            self.failures_in_a_row = 0
            self.errors.passed(self._clock.monotonic())
            return False
        if not probe:
            return False
        self.state = BreakerState.CLOSED
        self._closed_at = self._clock.monotonic()
        self.failures_in_a_row = 0
        self.errors.clear()
        return True

    def failed(self, *, probe: bool, fatal: bool = False) -> bool:
        """No proper answer. `fatal` says that one such failure is enough. True when the breaker opens because of it."""
        now = self._clock.monotonic()
        if self.state is _CLOSED:
            self.failures_in_a_row += 1
            self.errors.note(now, failed=True)
            if not fatal and not self._too_many(now):
                return False
            self._pauses = self._pauses + 1 if now - self._closed_at < _SETTLED_SECONDS else 0
            self._open(now)
            return True
        if probe and self.state is BreakerState.HALF_OPEN:
            self._pauses += 1
            self._open(now)
        return False

    def abandoned(self, *, probe: bool) -> None:
        """The call was given up by us, which says nothing about the upstream."""
        if probe and self.state is BreakerState.HALF_OPEN:
            self._open(self._clock.monotonic())

    def _too_many(self, now: float) -> bool:
        if self.failures_in_a_row >= FAILURES_BEFORE_OPENING:
            return True
        calls, failures = self.errors.counts(now)
        return calls >= _BAD_SHARE_CALLS and failures >= _BAD_SHARE * calls

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        # The exponent is bounded so that a day of failures does not overflow.
        pause = min(_FIRST_PAUSE_SECONDS * (1 << min(self._pauses, 10)), _LONGEST_PAUSE_SECONDS)
        self._retry_at = now + pause * (1.0 - _JITTER * self._random.random())
