"""The limiter of one process: windows in memory, days in the ledger.

The server asks it on every request of the embedded set-up, so `take_now` is plain arithmetic and waits for nothing.
Only when the ledger's reservation for the day is used up does it return None, and the caller awaits `take`. The Redis
limiter decides with it while Redis is away. It must not do input or output of its own.
"""

from math import ceil

from capstan.core.clock import Clock, seconds_to_midnight
from capstan.limits.day import DayLedger
from capstan.limits.models import (
    REQUESTS_PER_DAY,
    REQUESTS_PER_SECOND,
    UNITS_PER_SECOND,
    WINDOW,
    Decision,
    Limits,
    check_cost,
    never_fits,
)
from capstan.limits.windows import Window, Windows


class MemoryLimiter:
    """Exact limits for one process."""

    def __init__(self, clock: Clock, ledger: DayLedger) -> None:
        self._clock = clock
        self._ledger = ledger
        self._windows = Windows()
        # Bound once: a method looked up twice per request costs as much as the arithmetic.
        self._monotonic = clock.monotonic
        self._wall = clock.now

    def take_now(self, subject: str, limits: Limits, requests: int = 1, units: int = 1) -> Decision | None:
        """Decide without waiting, or return None when the day's reservation must be extended first."""
        if requests < 1 or units < 0:
            check_cost(requests, units)
            if not requests and not units:
                return self.describe(subject, limits)
        now = self._monotonic()
        wall = self._wall()
        # As `Windows.of` does, without a call.
        windows = self._windows
        window = windows.young.get(subject)
        if window is None or now >= windows.turn_at:
            window = windows.find(subject, now)
        events = window.events
        if events and now - events[0][0] >= WINDOW:
            window.expire(now)
        limit, limit_of_units = limits.requests_per_second, limits.units_per_second
        reason = ""
        if (limit and window.requests + requests > limit) or (limit_of_units and window.units + units > limit_of_units):
            reason = _refusal(window, limits, requests, units)
        if not reason and limits.requests_per_day and requests:
            day = self._ledger.take_now(subject, limits.requests_per_day, requests, now, wall)
            if day is None:
                return None
            if not day:
                reason = REQUESTS_PER_DAY
        if reason:
            return self.refuse(subject, limits, reason, requests, units, now)
        if not limit:
            if limit_of_units:
                window.add(now, requests, units)
            return Decision(True, 0, 0, ceil(wall), 0, "", False, now)
        window.add(now, requests, units)
        # Limits that were lowered since may leave more in the window than fits; what costs nothing still passes.
        remaining = limit - window.requests
        return Decision(True, limit, max(0, remaining), ceil(wall + WINDOW), 0, "", False, now)

    async def take(self, subject: str, limits: Limits, *, requests: int = 1, units: int = 1) -> Decision:
        """Decide, waiting for the ledger when the reservation is used up."""
        decision = self.take_now(subject, limits, requests=requests, units=units)
        if decision is not None:
            return decision
        day = await self._ledger.hold(subject, limits.requests_per_day, requests)
        if not day:
            return self.refuse(subject, limits, REQUESTS_PER_DAY, requests, units)
        return self.take_held(subject, limits, requests, units, day)

    async def peek(self, subject: str, limits: Limits) -> Decision:
        """The figures for a response that used nothing."""
        return self.describe(subject, limits)

    async def refund(self, subject: str, limits: Limits, *, units: int, stamp: float = 0.0) -> None:
        """Give back units of an answer that failed through our own fault."""
        check_cost(0, units)
        now = self._monotonic()
        self._windows.of(subject, now).take_back(now, units, stamp)

    async def start(self) -> None:
        """Begin the ledger's background work."""
        await self._ledger.start()

    async def close(self) -> None:
        """Give back unused day reservations."""
        await self._ledger.close()

    def take_held(self, subject: str, limits: Limits, requests: int, units: int, day: int) -> Decision:
        """Decide by the windows alone, with requests of `day` already held in the ledger, and end that hold."""
        now = self._monotonic()
        window = self._windows.of(subject, now)
        reason = _refusal(window, limits, requests, units)
        if day:
            self._ledger.settle(subject, day, requests, used=not reason)
        if reason:
            return self.refuse(subject, limits, reason, requests, units, now)
        if limits.requests_per_second or limits.units_per_second:
            window.add(now, requests, units)
        remaining, reset = _figures(window, limits.requests_per_second, now, self._wall())
        return Decision(True, limits.requests_per_second, remaining, reset, 0, "", False, now)

    def remember(self, subject: str, limits: Limits, requests: int, units: int) -> None:
        """Count an admission decided elsewhere, so that this limiter can take over at any moment."""
        if limits.requests_per_second or limits.units_per_second:
            now = self._monotonic()
            self._windows.of(subject, now).add(now, requests, units)

    def is_full(self, subject: str, limits: Limits) -> bool:
        """Whether this process alone has used all requests of the present window."""
        limit = limits.requests_per_second
        return limit > 0 and self._windows.of(subject, self._monotonic()).requests >= limit

    def describe(self, subject: str, limits: Limits) -> Decision:
        """The figures of the requests-per-second window, as an allowed decision."""
        now = self._monotonic()
        remaining, reset = _figures(self._windows.of(subject, now), limits.requests_per_second, now, self._wall())
        return Decision(True, limits.requests_per_second, remaining, reset, 0, "")

    def refuse(
        self, subject: str, limits: Limits, reason: str, requests: int, units: int, now: float | None = None
    ) -> Decision:
        """The refusal of a request, with the figures of this process and the wait that will help.

        `now` is the moment of the decision: a moment later there may be room, and the figures would contradict it.
        """
        if now is None:
            now = self._monotonic()
        remaining, reset = _figures(self._windows.of(subject, now), limits.requests_per_second, now, self._wall())
        too_big = never_fits(limits, requests, units)
        if too_big:
            return Decision(False, limits.requests_per_second, remaining, reset, 1, too_big, True)
        wait = 1
        if limits.requests_per_day and requests:
            wait, reason = self.longest_wait(subject, limits, reason, requests)
        return Decision(False, limits.requests_per_second, remaining, reset, wait, reason)

    def longest_wait(self, subject: str, limits: Limits, reason: str, requests: int) -> tuple[int, str]:
        """How long to wait, and for which limit: a spent day takes longer than a full window, so it goes first."""
        if reason != REQUESTS_PER_DAY and not self._ledger.is_spent(subject, limits.requests_per_day, requests):
            return 1, reason
        wait = 1 if self._ledger.may_have_room(subject, requests) else seconds_to_midnight(self._clock)
        return wait, REQUESTS_PER_DAY


def _figures(window: Window, limit: int, now: float, wall: float) -> tuple[int, int]:
    """What remains of the window, and when it is empty again."""
    if not limit:
        return 0, ceil(wall)
    return max(0, limit - window.requests), ceil(wall + window.seconds_to_empty(now))


def _refusal(window: Window, limits: Limits, requests: int, units: int) -> str:
    """The per-second limit that has no room for this request, or an empty string."""
    limit = limits.requests_per_second
    # What costs nothing always fits, also when a limit was lowered below what is already used.
    if limit and requests and window.requests + requests > limit:
        return REQUESTS_PER_SECOND
    limit = limits.units_per_second
    if limit and units and window.units + units > limit:
        return UNITS_PER_SECOND
    return ""
