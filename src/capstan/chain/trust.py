"""Whether an upstream is believed. One that was caught with a wrong answer is passed over for a while.

Held by `PooledUpstream` and told by the checks of the RPC gateway. Unlike the circuit breaker it is not ended by a call
that succeeds: a node that lies about one thing answers everything else. Each lie soon after the last one lengthens the
time; an upstream that then behaves for long enough starts anew. Nothing here starts a timer.
"""

from capstan.core.clock import Clock

FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 600.0
# Without a further lie for so long after a pause, the next one is a first one again.
_FORGOTTEN_SECONDS = 600.0


class Trust:
    """The trust in one upstream."""

    __slots__ = ("_clock", "_forget_at", "_pauses", "lies", "until")

    def __init__(self, clock: Clock) -> None:
        # Wrong answers, ever.
        self.lies = 0
        # When it will be believed again; 0 while it is.
        self.until = 0.0
        self._clock = clock
        self._pauses = 0
        self._forget_at = 0.0

    def lose(self) -> float:
        """It was caught with a wrong answer. For how many seconds it is not believed."""
        now = self._clock.monotonic()
        self.lies += 1
        if now < self.until:
            # Answers that were under way when it was caught are no further lie.
            return self.until - now
        if now >= self._forget_at:
            self._pauses = 0
        # The exponent is bounded so that a year of lies does not overflow.
        pause = min(FIRST_PAUSE_SECONDS * (1 << min(self._pauses, 10)), LONGEST_PAUSE_SECONDS)
        self._pauses += 1
        self.until = now + pause
        self._forget_at = self.until + _FORGOTTEN_SECONDS
        return pause

    def lost(self) -> bool:
        """Whether it is not believed now."""
        if self.until and self._clock.monotonic() >= self.until:
            self.until = 0.0
        return self.until > 0.0
