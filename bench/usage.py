"""What counting one request in the usage ledger costs, against the least any counter could do.

The baseline is one increment in a dict, in a function call. Each figure is the best of
several rounds of the same run, so that other load on the machine disturbs the ratio little. The last figures are not on
the path of a request: what one flush of many series costs the event loop and how long it takes. Run it with
`make bench`, or alone: `python bench/usage.py`.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from capstan.core.clock import SystemClock
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from capstan.usage.ledger import UsageLedger
from capstan.usage.recorder import UsageRecorder

# Short rounds, and many: one that nothing interrupted is among them.
ROUNDS = 60
CALLS = 1_000
KEYS = [f"key_{number}" for number in range(CALLS)]
FLUSHED_SERIES = 10_000


def best(call: Callable[[str, str], object], keys: list[str], method: str = "eth_call") -> float:
    """Microseconds per call, in the quickest round."""
    quickest = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for key in keys:
            call(key, method)
        quickest = min(quickest, time.perf_counter() - began)
    return quickest / len(keys) * 1e6


def bare() -> Callable[[str, str], object]:
    """The baseline."""
    counts: dict[str, int] = {}

    def call(key: str, method: str) -> None:
        counts[key] = counts.get(key, 0) + 1

    return call


def bare_with_arguments() -> Callable[[str, str], object]:
    """The same, called with everything there is to know of a request."""
    counts: dict[str, int] = {}

    def increment(
        *,
        account_id: str,
        key_id: str,
        network: str,
        method: str,
        units: int,
        failed: bool,
        microseconds: int,
        cached: bool = False,
    ) -> None:
        counts[key_id] = counts.get(key_id, 0) + 1

    return lambda key, method: increment(
        account_id="acc_1",
        key_id=key,
        network="ethereum/mainnet",
        method=method,
        units=2,
        failed=False,
        microseconds=850,
    )


def recording(recorder: UsageRecorder) -> Callable[[str, str], object]:
    """One request counted by the ledger."""
    return lambda key, method: recorder.record(
        account_id="acc_1",
        key_id=key,
        network="ethereum/mainnet",
        method=method,
        units=2,
        failed=False,
        microseconds=850,
    )


async def flush_cost(recorder: UsageRecorder) -> tuple[float, float]:
    """Seconds for a flush of many series, and the longest time it kept the event loop from anything else."""
    for number in range(FLUSHED_SERIES):
        recording(recorder)(f"key_{number}", "eth_call")
    longest = 0.0
    done = False

    async def watch() -> None:
        nonlocal longest
        before = time.perf_counter()
        while not done:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest = max(longest, now - before)
            before = now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    began = time.perf_counter()
    if not await recorder.flush():
        raise RuntimeError("the database did not take the counts")
    took = time.perf_counter() - began
    done = True
    await watcher
    return took, longest


async def measure(database: Database) -> None:
    """Print the cost of each case."""
    await upgrade(database)
    recorder = UsageRecorder(
        UsageLedger(database), SystemClock(), CollectorRegistry(), known=lambda name: name.startswith("eth_")
    )
    cases = [
        ("dict increment", best(bare(), KEYS)),
        ("dict increment, all arguments passed", best(bare_with_arguments(), KEYS)),
        ("record(), one key", best(recording(recorder), KEYS[:1] * CALLS)),
        ("record(), one of 1,000 keys", best(recording(recorder), KEYS)),
        ("record(), a method that is not known", best(recording(recorder), KEYS, "no_such_method")),
    ]
    # Measured again at the end: the machine may have been busier at the beginning.
    cases[0] = (cases[0][0], min(cases[0][1], best(bare(), KEYS)))
    baseline = cases[0][1]
    for name, cost in cases:
        print(f"{name:40} {cost:6.2f} us  {cost / baseline:5.1f} x the baseline")
    await recorder.flush()
    took, longest = await flush_cost(recorder)
    print(f"flush of {FLUSHED_SERIES:,} series: {took:.2f} s, event loop held up {longest * 1000:.0f} ms at most")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:

        async def run() -> None:
            database = Database(DatabaseOptions(url=sqlite_url(Path(directory) / "bench.db")))
            try:
                await measure(database)
            finally:
                await database.close()

        asyncio.run(run())


if __name__ == "__main__":
    main()
