"""A process of its own that uses a limiter, for tests of what several processes share and of sudden death.

    python -m tests.unit.limits.worker redis URL SUBJECT RATE BUDGET SECONDS
    python -m tests.unit.limits.worker day URL SUBJECT LIMIT COUNT

`redis` asks as fast as it can and prints what was admitted as [stamp, requests, units] lists. `day` takes COUNT
requests (or, with 0, until it is refused), prints how many passed, and lives on until its input ends.
"""

import asyncio
import json
import random
import sys
import time

from prometheus_client import CollectorRegistry

from capstan.core.clock import SystemClock
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import Limits
from capstan.limits.redis import RedisLimiter, connect
from capstan.limits.store import DayStore
from capstan.storage.database import Database, DatabaseOptions
from tests.unit.limits.parts import NoStore, take


async def use_redis(url: str, subject: str, rate: int, budget: int, seconds: float) -> list[tuple[float, int, int]]:
    """Ask with several tasks at once until time is up."""
    registry = CollectorRegistry()
    clock = SystemClock()
    client = connect(url, cluster=False, connect_timeout=5.0, command_timeout=5.0)
    limiter = RedisLimiter(client, clock, DayLedger(NoStore(), clock, registry), registry, timeout_seconds=5.0)
    limits = Limits(rate, 0, budget)
    admitted: list[tuple[float, int, int]] = []
    end = time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < end:
            requests, units = random.randint(1, 3), random.randint(0, 10)
            decision = await limiter.take(subject, limits, requests=requests, units=units)
            if decision.allowed:
                admitted.append((decision.stamp, requests, units))
            await asyncio.sleep(random.random() / 200)

    await asyncio.gather(*(ask() for _ in range(8)))
    await client.aclose()
    if registry.get_sample_value("capstan_limits_local_decisions_total"):
        raise RuntimeError("Redis was taken for away, so this run proves nothing about Redis")
    return admitted


async def use_day(url: str, subject: str, limit: int, count: int) -> None:
    """Take requests of a day and stay until told to end."""
    clock = SystemClock()
    database = Database(DatabaseOptions(url=url))
    limiter = MemoryLimiter(clock, DayLedger(DayStore(database), clock, CollectorRegistry(), patience_seconds=20.0))
    await limiter.start()
    passed = 0
    while not count or passed < count:
        decision = await take(limiter, subject, Limits(0, limit, 0))
        if not decision.allowed:
            break
        passed += 1
    print(passed, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await limiter.close()
    await database.close()


def main() -> None:
    kind, url, subject, *numbers = sys.argv[1:]
    if kind == "redis":
        rate, budget, seconds = numbers
        print(json.dumps(asyncio.run(use_redis(url, subject, int(rate), int(budget), float(seconds)))))
    else:
        limit, count = numbers
        asyncio.run(use_day(url, subject, int(limit), int(count)))


if __name__ == "__main__":
    main()
