"""The health of one upstream, as the pool sees it: failures in a row, and the rest that follows.

Called by the pool for every attempt. An upstream that keeps failing is left alone for a while, twice as long each time.
When the rest is over a single call tries it again; the others pass it over until that call is decided.
"""

from capstan.core.clock import Clock

FAILURES_BEFORE_REST = 3
_FIRST_REST_SECONDS = 1.0
_LONGEST_REST_SECONDS = 30.0


class UpstreamHealth:
    """Failures in a row and the resting time of one upstream."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._resting_until = 0.0

    @property
    def resting(self) -> bool:
        """Whether the upstream should be passed over for now."""
        return self._failures >= FAILURES_BEFORE_REST and self._clock.monotonic() < self._resting_until

    def attempt(self) -> None:
        """A call is about to be made. After a rest, the first one keeps the others away until it is decided."""
        if self._failures >= FAILURES_BEFORE_REST:
            self._resting_until = self._clock.monotonic() + self._rest_seconds()

    def succeeded(self) -> bool:
        """An answer came, be it an error of the node's own. True when that ends a time of failure."""
        recovered = self._failures >= FAILURES_BEFORE_REST
        self._failures = 0
        return recovered

    def failed(self) -> bool:
        """The upstream did not answer properly. True when it goes to rest for the first time."""
        self._failures += 1
        if self._failures >= FAILURES_BEFORE_REST:
            self._resting_until = self._clock.monotonic() + self._rest_seconds()
        return self._failures == FAILURES_BEFORE_REST

    def _rest_seconds(self) -> float:
        # The exponent is bounded so that a day of failures does not overflow.
        rests = min(self._failures - FAILURES_BEFORE_REST, 10)
        return min(_FIRST_REST_SECONDS * (1 << rests), _LONGEST_REST_SECONDS)
