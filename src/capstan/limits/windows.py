"""Exact sliding windows of one second, for many subjects, in this process.

A window remembers what was admitted during the last second and when. Something admitted at `t` counts until `t + 1`,
so any stretch of one second, wherever it begins, holds no more than the limit; refused attempts leave no trace. The
memory limiter decides with these windows alone; the Redis limiter keeps them beside Redis, for when Redis is away.
Callers give monotonic time. Nothing here reads a clock, waits, or knows limits.

The first `EXACT_ENTRIES` admissions of a window are remembered one by one. Beyond that, admissions within `QUANTUM`
are remembered as one entry that counts until the last of them expires. So a window holds about two thousand entries at
most, whatever the limit, and a plan of more than a thousand requests a second gets room back up to `QUANTUM` late,
never early.
"""

from collections import deque

from capstan.limits.models import WINDOW

EXACT_ENTRIES = 1_000
QUANTUM = 0.001

# Windows not asked for during this many seconds are dropped. Longer than WINDOW, so that only empty ones are.
_GENERATION = 2.0


class Window:
    """What one subject was admitted during the last second."""

    __slots__ = ("_bucket", "events", "requests", "units")

    def __init__(self) -> None:
        # (moment of the last admission in the entry, requests, units), oldest first.
        self.events: deque[tuple[float, int, int]] = deque()
        self.requests = 0
        self.units = 0
        # The moment of the first admission in the youngest entry.
        self._bucket = 0.0

    def expire(self, now: float) -> None:
        """Forget what is a second old."""
        events = self.events
        # Subtracting two near floats is exact, adding one second to a float is not.
        while events and now - events[0][0] >= WINDOW:
            _, requests, units = events.popleft()
            self.requests -= requests
            self.units -= units

    def add(self, now: float, requests: int, units: int) -> None:
        """Remember an admission."""
        events = self.events
        self.requests += requests
        self.units += units
        if len(events) >= EXACT_ENTRIES and now - self._bucket < QUANTUM:
            _, before_requests, before_units = events[-1]
            events[-1] = (now, before_requests + requests, before_units + units)
        else:
            events.append((now, requests, units))
            self._bucket = now

    def seconds_to_empty(self, now: float) -> float:
        """How long until nothing is left in the window, if nothing more comes."""
        return WINDOW - (now - self.events[-1][0]) if self.events else 0.0

    def take_back(self, now: float, units: int, stamp: float) -> None:
        """Forget `units` of the admission made at `stamp`, or of the oldest ones when `stamp` is zero."""
        if stamp and now - stamp >= WINDOW:
            return
        found = 0.0
        for index, (moment, requests, held) in enumerate(self.events):
            if moment < stamp:
                continue
            # The first entry that ends at or after the stamp contains it. Only entries of the same moment may follow.
            found = found or moment
            if units <= 0 or (stamp and moment > found):
                return
            given = min(units, held)
            self.events[index] = (moment, requests, held - given)
            self.units -= given
            units -= given


class Windows:
    """The windows of all subjects. Those of idle subjects are dropped without a search."""

    def __init__(self) -> None:
        # Those asked for lately, and when they become the old ones. Whoever looks there by himself asks `find` for what
        # he does not find, and from that moment on, and lets a window expire.
        self.young: dict[str, Window] = {}
        self._old: dict[str, Window] = {}
        self.turn_at = 0.0

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def of(self, subject: str, now: float) -> Window:
        """The window of `subject` as it is at `now`; an empty one if there was none."""
        window = self.young.get(subject)
        if window is None or now >= self.turn_at:
            window = self.find(subject, now)
        events = window.events
        if events and now - events[0][0] >= WINDOW:
            window.expire(now)
        return window

    def find(self, subject: str, now: float) -> Window:
        """The window of `subject` as it was left; an empty one if there was none."""
        if now >= self.turn_at:
            self._turn(now)
        window = self.young.get(subject)
        if window is None:
            window = self.young[subject] = self._old.pop(subject) if subject in self._old else Window()
        return window

    def _turn(self, now: float) -> None:
        # A window still in `_old` was last used before the previous turn, at least one generation ago.
        self._old = self.young
        self.young = {}
        self.turn_at = now + _GENERATION
