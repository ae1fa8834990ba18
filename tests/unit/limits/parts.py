"""What the tests of the limiters share: limiters ready to use, and a check that no second holds too much."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from capstan.core.clock import Clock, ManualClock
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import Decision, Limits, RateLimiter
from capstan.limits.store import Claim, DayStore, Grant
from capstan.storage.database import Database, DatabaseOptions, sqlite_url


class NoStore(DayStore):
    """A store for tests without day limits: to ask it anything is an error."""

    def __init__(self) -> None:
        super().__init__(Database(DatabaseOptions(url=sqlite_url(Path("never-opened.db")))))

    async def settle(self, claims: Sequence[Claim]) -> list[Grant]:
        raise AssertionError(f"the database was asked for {claims}")

    async def prune(self, first_kept: int) -> int:
        raise AssertionError("the database was asked to delete")


def memory_limiter(clock: Clock | None = None) -> MemoryLimiter:
    """A memory limiter without a database."""
    clock = clock or ManualClock()
    return MemoryLimiter(clock, DayLedger(NoStore(), clock, CollectorRegistry()))


async def take(limiter: RateLimiter, subject: str, limits: Limits, *, requests: int = 1, units: int = 1) -> Decision:
    """Decide the way the server does: at once if possible, else by waiting."""
    decision = limiter.take_now(subject, limits, requests=requests, units=units)
    if decision is None:
        decision = await limiter.take(subject, limits, requests=requests, units=units)
    return decision


def most_in_a_second(admitted: Iterable[tuple[float, int]], second: float = 1.0) -> int:
    """The largest sum of amounts in any stretch of one second, over (moment, amount) pairs."""
    ordered = sorted(admitted)
    most = 0
    for index, (start, _) in enumerate(ordered):
        inside = 0
        for moment, amount in ordered[index:]:
            if moment - start >= second:
                break
            inside += amount
        most = max(most, inside)
    return most
