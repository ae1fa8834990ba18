"""How long an upstream took lately: a short ring of latencies for each method.

Written by `PooledUpstream` after every answer; read by the selection (the median) and by hedging (a high quantile).
Methods are kept apart because a trace and a block number have nothing in common. Both the number of methods and the
length of a ring are bounded, so the cost of a call does not grow.
"""

import math
from bisect import bisect_left
from collections import deque

_RING_LENGTH = 32
_MAX_METHODS = 64
# Sorting a ring takes a few microseconds; a quantile may be this many answers old.
_SORT_EVERY = 4
# An estimate that nothing has confirmed for so long is forgotten, so that a slow upstream gets another chance.
_STALE_SECONDS = 10.0
# With fewer answers than this, nothing is concluded.
ENOUGH_FOR_MEDIAN = 5
ENOUGH_FOR_HEDGING = 16

HISTOGRAM_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Ring:
    """The most recent latencies, in seconds. `Latencies` adds to it: nothing is called for that but the deque."""

    __slots__ = ("_sorted", "noted_at", "unsorted", "values")

    def __init__(self) -> None:
        # The oldest one makes room.
        self.values: deque[float] = deque(maxlen=_RING_LENGTH)
        # How many were added since they were last sorted, and when the last one was.
        self.unsorted = 0
        self.noted_at = -math.inf
        self._sorted: list[float] = []

    @property
    def size(self) -> int:
        """Latencies held."""
        return len(self.values)

    def quantile(self, share: float) -> float | None:
        """The latency that this share of the answers did not exceed; None without any."""
        if not self.values:
            return None
        if self.unsorted >= _SORT_EVERY or not self._sorted:
            self._sorted = sorted(self.values)
            self.unsorted = 0
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]


class Latencies:
    """Rings by method, one over all of them, and a histogram that only grows."""

    def __init__(self, slow_share: float = 0.9) -> None:
        self._slow_share = slow_share
        self.overall = Ring()
        self._methods: dict[str, Ring] = {}
        self._other = Ring()
        # Answers by upper bound of HISTOGRAM_BOUNDS, the last one for everything slower; and their sum in seconds.
        self.histogram = [0] * (len(HISTOGRAM_BOUNDS) + 1)
        self.total_seconds = 0.0

    def note(self, method: str, seconds: float, now: float) -> None:
        """An answer to a call of this method took so long."""
        ring = self._methods.get(method) or self._new_ring(method)
        ring.values.append(seconds)
        ring.unsorted += 1
        ring.noted_at = now
        overall = self.overall
        overall.values.append(seconds)
        overall.unsorted += 1
        self.histogram[bisect_left(HISTOGRAM_BOUNDS, seconds)] += 1
        self.total_seconds += seconds

    def median(self, method: str, now: float, *, keep_stale: bool = False) -> float | None:
        """The typical latency of the method, or None when too little, or nothing recent, is known."""
        ring = self._methods.get(method)
        if ring is None or ring.size < ENOUGH_FOR_MEDIAN:
            return None
        if now - ring.noted_at > _STALE_SECONDS and not keep_stale:
            return None
        return ring.quantile(0.5)

    def slow(self, method: str) -> float | None:
        """The latency that most answers stay below (nine in ten, by default), or None when too little is known."""
        ring = self._methods.get(method)
        return ring.quantile(self._slow_share) if ring is not None and ring.size >= ENOUGH_FOR_HEDGING else None

    def _new_ring(self, method: str) -> Ring:
        if len(self._methods) >= _MAX_METHODS:
            return self._other
        ring = self._methods[method] = Ring()
        return ring
