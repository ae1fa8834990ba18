"""What one process holds of one subject's day.

A lease is a record with a little arithmetic: how much is reserved and not used, how much was served without a
reservation, who waits. `day.DayLedger` owns every lease and alone changes it. It reads no clock and does no input or
output.
"""

from asyncio import Future
from collections import deque

from capstan.limits.store import Claim, Grant

# A process never sets aside more than this, however large the limit.
LARGEST_CHUNK = 10_000


class Lease:
    """One subject, one day, this process."""

    __slots__ = (
        "_posting",
        "chunk",
        "day",
        "debt",
        "held",
        "left",
        "limit",
        "low",
        "queued",
        "reserved",
        "retired",
        "spent_until",
        "subject",
        "surplus",
        "used_at",
        "waiters",
    )

    def __init__(self, subject: str, day: int, limit: int, share: int) -> None:
        self.subject = subject
        self.day = day
        # Reserved in the database and not used yet.
        self.left = 0
        # Used without a reservation, while the database was away; to be added to the row.
        self.debt = 0
        # No longer wanted; to be taken off the row.
        self.surplus = 0
        # Taken, but the request may still be refused by another limit.
        self.held = 0
        # What the row held when last seen, over all processes.
        self.reserved = 0
        self.used_at = 0.0
        # Until then the day counts as spent without asking again.
        self.spent_until = 0.0
        self.queued = False
        self.retired = False
        self.waiters: deque[tuple[int, Future[int]]] = deque()
        self._posting = 0
        self.relimit(limit, share)

    def relimit(self, limit: int, share: int) -> None:
        """Work under another limit from now on."""
        self.limit = limit
        self.chunk = min(LARGEST_CHUNK, max(1, limit // share))
        # Below this the reservation is extended, before it runs out.
        self.low = max(1, self.chunk // 2)
        self.spent_until = 0.0

    def hand_in(self) -> None:
        """Mark what is left to be given back."""
        self.surplus += self.left
        self.left = 0

    def take_local(self, requests: int) -> bool:
        """Serve without a reservation, as far as this process knows the limit allows."""
        if self.reserved + self.debt + requests > self.limit:
            return False
        self.debt += requests
        return True

    def claim(self) -> Claim:
        """What to ask of the database now. `surplus` leaves the lease here and does not come back: see `failed`."""
        waiting = sum(requests for requests, future in self.waiters if not future.done())
        need = max(0, waiting - self.left)
        want = 0 if self.retired else max(0, waiting + self.chunk - self.left)
        self._posting = self.debt
        add = self.debt - self.surplus
        self.surplus = 0
        return Claim(self.subject, self.day, self.limit, add, need, want)

    def granted(self, answer: Grant) -> None:
        """Take over what the database granted, less what was served without it while the answer was on its way."""
        self.debt -= self._posting
        self._posting = 0
        served = min(self.debt, answer.granted)
        self.debt -= served
        self.left += answer.granted - served
        self.reserved = answer.reserved

    def failed(self) -> None:
        """Nobody knows whether the claim was applied.

        Debt is posted again and surplus is not taken back into use: whichever way it went, the row holds at least what
        was used.
        """
        self._posting = 0

    def serve(self) -> None:
        """Give waiters, first come first served, what is left."""
        while self.waiters:
            requests, future = self.waiters[0]
            if not future.done():
                if requests > self.left:
                    return
                self.left -= requests
                self.held += requests
                future.set_result(self.day)
            self.waiters.popleft()

    def refuse_waiters(self) -> None:
        """Tell every waiter that the day is spent."""
        while self.waiters:
            _, future = self.waiters.popleft()
            if not future.done():
                future.set_result(0)

    def serve_local(self) -> int:
        """Answer every waiter without a reservation; returns how many requests were let through."""
        served = 0
        while self.waiters:
            requests, future = self.waiters.popleft()
            if future.done():
                continue
            if self.take_local(requests):
                served += requests
                self.held += requests
                future.set_result(self.day)
            else:
                future.set_result(0)
        return served

    def fail_waiters(self, error: Exception) -> None:
        """Hand every waiter an error that is not about the database being away."""
        while self.waiters:
            _, future = self.waiters.popleft()
            if not future.done():
                future.set_exception(error)

    def is_idle(self) -> bool:
        """Whether nobody would miss this lease."""
        return not (self.held or self.waiters or self.debt or self.queued)
