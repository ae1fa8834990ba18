"""What one decision of the memory limiter costs, against the least any exact window could do.

The baseline is one increment in a dict and one append to a deque, in a function call. Each figure is the best of
several rounds of the same run, so that other load on the machine disturbs the ratio little. Run it with `make bench`,
or alone: `python bench/limits.py`.
"""

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from capstan.core.clock import SystemClock
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import Limits
from capstan.limits.store import DayStore
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade

# Short rounds, and many: one that nothing interrupted is among them.
ROUNDS = 60
CALLS = 500
SUBJECTS = [f"acc_{number}" for number in range(CALLS)]


def best(call: Callable[[str], object], subjects: list[str]) -> float:
    """Microseconds per call, in the quickest round."""
    quickest = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for subject in subjects:
            call(subject)
        quickest = min(quickest, time.perf_counter() - began)
    return quickest / len(subjects) * 1e6


def bare() -> Callable[[str], object]:
    """The baseline."""
    counts: dict[str, int] = {}
    moments: deque[float] = deque(maxlen=CALLS)

    def call(subject: str) -> None:
        counts[subject] = counts.get(subject, 0) + 1
        moments.append(0.0)

    return call


def deciding(limiter: MemoryLimiter, limits: Limits) -> Callable[[str], object]:
    """A call that takes one request; it must not have to wait."""

    def call(subject: str) -> None:
        if limiter.take_now(subject, limits) is None:
            raise RuntimeError("the limiter had to wait, so this would not measure take_now")

    return call


async def measure(database: Database) -> list[tuple[str, float]]:
    """The name and the cost of each case."""
    await upgrade(database)
    limiter = MemoryLimiter(SystemClock(), DayLedger(DayStore(database), SystemClock(), CollectorRegistry()))
    await limiter.start()
    # Ten thousand requests of the day are reserved ahead, and the ledger may extend that between two rounds.
    ledger_rounds = []
    with_day = Limits(1_000_000, 1_000_000_000, 0)
    for _ in range(ROUNDS):
        await limiter.take("day", with_day)
        began = time.perf_counter()
        for _ in range(CALLS):
            if limiter.take_now("day", with_day) is None:
                raise RuntimeError("the reservation ran out")
        ledger_rounds.append((time.perf_counter() - began) / CALLS * 1e6)
        await asyncio.sleep(0.01)
    free = Limits(10, 0, 200)
    cases = [
        ("dict increment + deque append", best(bare(), SUBJECTS)),
        ("admitted, 100/s, one of many subjects", best(deciding(limiter, Limits(100, 0, 200)), SUBJECTS)),
        ("refused, 10/s", best(deciding(limiter, free), ["busy"] * CALLS)),
        ("admitted, 1,000,000/s, one subject", best(deciding(limiter, Limits(1_000_000, 0, 0)), ["huge"] * CALLS)),
        ("admitted, with a day limit", min(ledger_rounds)),
        ("unlimited", best(deciding(limiter, Limits(0, 0, 0)), ["free"] * CALLS)),
    ]
    # Measured again at the end: the machine may have been busier at the beginning.
    cases[0] = (cases[0][0], min(cases[0][1], best(bare(), SUBJECTS)))
    await limiter.close()
    return cases


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:

        async def run() -> list[tuple[str, float]]:
            database = Database(DatabaseOptions(url=sqlite_url(Path(directory) / "bench.db")))
            try:
                return await measure(database)
            finally:
                await database.close()

        cases = asyncio.run(run())
    baseline = cases[0][1]
    for name, cost in cases:
        print(f"{name:40} {cost:6.2f} us  {cost / baseline:5.1f} x the baseline")


if __name__ == "__main__":
    main()
