"""Daily counts over SQLite and a real PostgreSQL: exact over processes, kept over restarts, never too low."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import insert, select

from capstan.core.clock import Clock, ManualClock, SystemClock
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import REQUESTS_PER_DAY, Decision, Limits
from capstan.limits.store import Claim, DayStore, Grant, day_text
from capstan.storage.database import Database
from capstan.storage.schema import day_usage
from tests.unit.limits.parts import take

TODAY = 19_675
# Ten in the morning of that day.
MORNING = TODAY * 86_400.0 + 36_000.0


class CountingStore(DayStore):
    """The real store, with a count of its transactions and a gate before them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.transactions = 0
        self.open = asyncio.Event()
        self.open.set()

    async def settle(self, claims: Sequence[Claim]) -> list[Grant]:
        self.transactions += 1
        await self.open.wait()
        return await super().settle(claims)


class Process:
    """What one process of the service has: a limiter with its own ledger on the shared database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.store = CountingStore(database)
        # Patience beyond any pause of a busy test machine: a slow database is tested elsewhere.
        self.ledger = DayLedger(self.store, clock, self.registry, patience_seconds=30.0)
        self.limiter = MemoryLimiter(clock, self.ledger)

    async def take(self, limit: int, *, requests: int = 1, subject: str = "acc_1") -> Decision:
        return await take(self.limiter, subject, Limits(0, limit, 0), requests=requests)

    async def take_many(self, count: int, limit: int, *, subject: str = "acc_1") -> int:
        """How many of so many requests pass."""
        return sum([(await self.take(limit, subject=subject)).allowed for _ in range(count)])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=MORNING)


@pytest.fixture
async def start(database: Database, clock: ManualClock) -> AsyncIterator[Callable[[], Process]]:
    """Starts processes; those still open at the end are closed."""
    processes: list[Process] = []

    def begin() -> Process:
        process = Process(database, clock)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        await process.limiter.close()


async def _reserved(database: Database, *, day: int = TODAY, subject: str = "acc_1") -> int:
    query = select(day_usage.c.reserved).where(day_usage.c.subject == subject, day_usage.c.day == day_text(day))
    async with database.read() as connection:
        return (await connection.execute(query)).scalar() or 0


async def test_exactly_the_limit_passes(start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    assert await process.take_many(60, 50) == 50
    refused = await process.take(50)
    # Ten in the morning: fourteen hours to midnight.
    assert (refused.reason, refused.retry_after) == (REQUESTS_PER_DAY, 50_400)


async def test_requests_do_not_wait_for_the_database_when_it_keeps_up(start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    await process.take(100_000)
    lease = process.ledger._leases["acc_1"]

    async def extended() -> bool:
        return not lease.queued

    for _ in range(2_000):
        decision = process.limiter.take_now("acc_1", Limits(0, 100_000, 0))
        assert decision is not None
        assert decision.allowed
        if lease.queued:
            await _until(extended)
    # One hundred are reserved at a time and extended when half are used.
    assert process.store.transactions <= 2_000 / 50 + 2


async def test_a_restart_keeps_the_count(database: Database, start: Callable[[], Process]) -> None:
    first = start()
    await first.limiter.start()
    assert await first.take_many(37, 5_000) == 37
    await first.limiter.close()
    assert await _reserved(database) == 37
    second = start()
    await second.limiter.start()
    assert await second.take_many(5_000, 5_000) == 5_000 - 37


async def test_processes_share_one_limit_exactly(database: Database, start: Callable[[], Process]) -> None:
    processes = [start() for _ in range(3)]
    for process in processes:
        await process.limiter.start()
    passed = await asyncio.gather(*(process.take_many(1_500, 3_000) for process in processes))
    assert sum(passed) == 3_000
    assert await _reserved(database) == 3_000


async def test_what_is_reserved_is_never_more_than_the_share(database: Database, start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    for used in range(1, 400):
        await process.take(100_000)
        assert used <= await _reserved(database) <= used + 100


async def test_an_idle_subject_gives_back_what_it_did_not_use(
    database: Database, clock: ManualClock, start: Callable[[], Process]
) -> None:
    process = start()
    await process.limiter.start()
    await process.take_many(30, 100_000)
    assert await _reserved(database) > 30
    clock.advance(11.0)
    await _until(lambda: _equals(database, 30))
    assert (await process.take(100_000)).allowed


async def test_midnight_begins_a_new_day(database: Database, clock: ManualClock, start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    assert await process.take_many(20, 15) == 15
    refused = await process.take(15)
    clock.advance(refused.retry_after - 1.0)
    assert not (await process.take(15)).allowed
    clock.advance(1.0)
    assert await process.take_many(20, 15) == 15
    await process.limiter.close()
    assert await _reserved(database) == 15
    assert await _reserved(database, day=TODAY + 1) == 15


async def test_what_was_reserved_before_midnight_goes_back_to_its_own_day(
    database: Database, clock: ManualClock, start: Callable[[], Process]
) -> None:
    process = start()
    await process.limiter.start()
    await process.take_many(30, 100_000)
    clock.advance(86_400.0)
    await process.take(100_000)
    await process.limiter.close()
    assert await _reserved(database) == 30
    assert await _reserved(database, day=TODAY + 1) == 1


async def test_a_raised_limit_opens_a_spent_day_at_once(start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    assert await process.take_many(12, 10) == 10
    assert await process.take_many(12, 20) == 10


async def test_a_lowered_limit_closes_a_day_that_is_over_it(database: Database, start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    assert await process.take_many(30, 100_000) == 30
    # Seventy are still set aside under the old limit; under the new one only twenty are left.
    assert await process.take_many(60, 50) == 20
    assert await _reserved(database) == 50


async def test_a_batch_is_taken_whole_or_not_at_all(start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    assert (await process.take(10, requests=7)).allowed
    assert (await process.take(10, requests=4)).reason == REQUESTS_PER_DAY
    assert (await process.take(10, requests=3)).allowed
    never = await process.take(10, requests=11)
    assert (never.fits_never, never.retry_after) == (True, 1)


async def test_hammering_a_spent_day_does_not_hammer_the_database(
    clock: ManualClock, start: Callable[[], Process]
) -> None:
    process = start()
    await process.limiter.start()
    await process.take_many(11, 10)
    before = process.store.transactions
    assert await process.take_many(1_000, 10) == 0
    assert process.store.transactions - before <= 1
    clock.advance(1.5)
    assert await process.take_many(1_000, 10) == 0
    assert process.store.transactions - before <= 3


async def test_what_another_process_gives_back_is_found(start: Callable[[], Process], clock: ManualClock) -> None:
    first, second = start(), start()
    for process in (first, second):
        await process.limiter.start()
    assert await first.take_many(1, 4_000) == 1
    assert await second.take_many(4_000, 4_000) >= 3_990
    await first.limiter.close()
    clock.advance(1.5)
    assert await second.take_many(10, 4_000) >= 1


async def test_many_subjects_share_transactions(start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    decisions = await asyncio.gather(*(process.take(100, subject=f"acc_{n}") for n in range(2_000)))
    assert all(decision.allowed for decision in decisions)
    assert process.store.transactions <= 20


async def test_a_large_batch_that_waits_is_not_overtaken(start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    limits = Limits(0, 100_000, 0)
    assert (await process.take(100_000)).allowed
    process.store.open.clear()
    # More than the reservation holds, so it waits for the database.
    batch = asyncio.create_task(process.take(100_000, requests=500))
    await asyncio.sleep(0)
    # The reservation has room for one, but a stream of such requests could keep the batch waiting for ever.
    assert process.limiter.take_now("acc_1", limits) is None
    process.store.open.set()
    assert (await batch).allowed
    assert process.limiter.take_now("acc_1", limits) is not None


async def test_a_caller_who_gives_up_waiting_uses_nothing(database: Database, start: Callable[[], Process]) -> None:
    process = start()
    await process.limiter.start()
    gave_up = passed = 0
    for turns in range(40):
        waiting = asyncio.create_task(process.take(5))
        # Cancelled after more and more turns of the loop: before the question, during it, just as the answer comes.
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        # One that had its answer before it was cancelled has used a request.
        gave_up += isinstance(outcome, asyncio.CancelledError)
        passed += isinstance(outcome, Decision) and outcome.allowed
    assert gave_up > 0
    assert passed + await process.take_many(10, 5) == 5
    assert await _reserved(database) == 5


async def test_rows_are_kept_for_eight_days(database: Database, start: Callable[[], Process]) -> None:
    async with database.write() as connection:
        rows = [{"subject": "acc_1", "day": day_text(TODAY - age), "reserved": 1} for age in range(12)]
        await connection.execute(insert(day_usage), rows)
    process = start()
    await process.limiter.start()

    async def pruned() -> bool:
        async with database.read() as connection:
            days = (await connection.execute(select(day_usage.c.day).order_by(day_usage.c.day))).scalars().all()
        return list(days) == [day_text(TODAY - age) for age in range(7, -1, -1)]

    await _until(pruned)


async def test_a_killed_process_leaves_the_count_too_high_by_its_reservation_at_most(
    database: Database, database_url: str
) -> None:
    today = int(SystemClock().now() // 86_400)
    with _worker(database_url, limit=100_000, count=137) as worker:
        assert worker.stdout is not None
        assert int(worker.stdout.readline()) == 137
        worker.kill()
    # Killed at midnight the two halves are on two rows.
    left = await _reserved(database, day=today) + await _reserved(database, day=today + 1)
    assert 137 <= left <= 237


async def test_real_processes_share_one_limit_exactly(database: Database, database_url: str) -> None:
    today = int(SystemClock().now() // 86_400)
    workers = [_worker(database_url, limit=3_000, count=0) for _ in range(2)]
    passed = []
    for worker in workers:
        assert worker.stdout is not None
        passed.append(int(await asyncio.to_thread(worker.stdout.readline)))
    for worker in workers:
        await asyncio.to_thread(worker.communicate, "", 20)
    assert sum(passed) == 3_000
    assert await _reserved(database, day=today) + await _reserved(database, day=today + 1) == 3_000


def _worker(url: str, *, limit: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.limits.worker", "day", url, "acc_1", str(limit), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _equals(database: Database, count: int) -> bool:
    return await _reserved(database) == count


async def _until(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Wait for a condition in the database."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.02)
