"""Budgets of calls: how many an upstream is sent in a second, and how many of all calls may be doubled.

Asked by the pool before an attempt. Both are exact, cost the same however many calls there were, and start no timers.
"""

from array import array


class RateBudget:
    """At most `limit` calls in any second, whichever way the second is cut. 0 is unlimited."""

    __slots__ = ("_limit", "_next", "_times")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # When each of the last `limit` calls was made; the next one to overwrite is the oldest.
        self._times = array("d")
        self._next = 0

    def wait_seconds(self, now: float) -> float:
        """How long until a call may be made; 0 when it may be made now."""
        if len(self._times) < self._limit or not self._limit:
            return 0.0
        return max(0.0, self._times[self._next] + 1.0 - now)

    def spend(self, now: float) -> None:
        """A call is made now. Also to be told of calls that are made whatever the budget says."""
        if not self._limit:
            return
        if len(self._times) < self._limit:
            self._times.append(now)
            return
        self._times[self._next] = now
        self._next = (self._next + 1) % self._limit


class HedgeBudget:
    """Doubled calls as a share of all calls, so that hedging does not double the load of upstreams that are slow."""

    __slots__ = ("_share", "credit", "most", "sent", "won")

    def __init__(self, share: float = 0.1, most: float = 10.0) -> None:
        # Second calls made, and how many of them had the answer first. Only counted here.
        self.sent = 0
        self.won = 0
        self._share = share
        self.most = most
        # Something to begin with, unless nothing may be doubled at all.
        self.credit = most if share else 0.0

    def earn(self) -> None:
        """A call is made."""
        if self.credit < self.most:
            self.credit = min(self.credit + self._share, self.most)

    def spend(self) -> bool:
        """Whether one call may be doubled now; it is then paid for."""
        if self.credit < 1.0:
            return False
        self.credit -= 1.0
        return True
