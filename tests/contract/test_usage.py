"""The usage ledger over SQLite and a real PostgreSQL: several processes, lost connections, outages, retention."""

import asyncio
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Table, func, select
from structlog.testing import CapturingLogger

from capstan.core.clock import ManualClock
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from capstan.storage.schema import usage_day, usage_flushes, usage_minute
from capstan.usage.models import Usage
from capstan.usage.recorder import UsageRecorder
from capstan.usage.store import UsageStore
from capstan.usage.writer import Retention
from tests.support.servers import PostgresProcess
from tests.unit.usage.lossy import Loss, LossyPostgres
from tests.unit.usage.parts import (
    DAY,
    FIRST_MINUTE,
    MORNING,
    FaultyDatabase,
    as_days,
    days,
    minutes,
    new_recorder,
    record,
    total,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=MORNING)


async def test_processes_add_to_the_same_rows(database: Database, database_url: str, clock: ManualClock) -> None:
    others = [Database(DatabaseOptions(url=database_url)) for _ in range(2)]
    recorders = [new_recorder(each, clock) for each in (database, *others)]

    async def work(number: int) -> None:
        for turn in range(15):
            for place in range(40):
                # In another order in each process, so that locks taken in the order of arrival would meet.
                key = (place * (7 + 2 * number) + turn) % 40
                record(recorders[number], key_id=f"key_{key}", units=number + 1)
            assert await recorders[number].flush()

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(number) for number in range(3)))
    for other in others:
        await other.close()
    found = await minutes(database)
    assert found == {
        ("acc_1", FIRST_MINUTE, f"key_{key}", "ethereum/mainnet", "eth_call"): (45, 90, 0, 0, 67_500)
        for key in range(40)
    }
    assert await days(database) == as_days(found)


async def test_a_restart_goes_on_where_the_last_process_ended(database: Database, clock: ManualClock) -> None:
    for _ in range(3):
        recorder = new_recorder(database, clock)
        await recorder.start()
        record(recorder)
        await recorder.close()
    assert await total(database) == (3, 9, 0, 0, 4_500)


@pytest.mark.parametrize("faults", [["after"], ["before"], ["after", "before"], ["before", "after", "after"]])
async def test_a_batch_whose_commit_is_uncertain_counts_once(
    faults: list[str], database: Database, database_url: str, clock: ManualClock
) -> None:
    faulty = FaultyDatabase(DatabaseOptions(url=database_url))
    faulty.faults = deque(faults)  # type: ignore[arg-type]  # the parameters are plain lists
    recorder = new_recorder(faulty, clock)
    record(recorder)
    for _ in faults:
        assert not await recorder.flush()
        # What comes meanwhile is no part of the batch that is sent again.
        record(recorder)
    assert await recorder.flush()
    assert (await total(database))[0] == 1
    assert await recorder.flush()
    assert (await total(database))[0] == 1 + len(faults)
    await faulty.close()


@pytest.mark.parametrize("losses", [["withheld"], ["unconfirmed"], ["late"], ["unconfirmed", "withheld", "late"]])
async def test_a_connection_lost_at_the_commit_counts_once(
    losses: list[Loss], postgres_server: PostgresProcess, postgres_database: str, clock: ManualClock
) -> None:
    direct = Database(DatabaseOptions(url=postgres_database))
    await upgrade(direct)
    name = direct.url.database or ""
    with tempfile.TemporaryDirectory(prefix="capstan-lossy-") as directory:
        async with LossyPostgres(postgres_server.directory, Path(directory)) as proxy, asyncio.timeout(60):
            through = Database(DatabaseOptions(url=proxy.url(name)))
            recorder = new_recorder(through, clock)
            record(recorder)
            assert await recorder.flush()
            record(recorder)
            proxy.losses.extend(losses)
            while proxy.losses:
                assert not await recorder.flush()
            # The last batch is sent again while its late commit is still on its way: it has to wait for that.
            again = asyncio.create_task(recorder.flush())
            if "late" in losses:
                await _until(lambda: _waits_for_a_lock(direct))
            proxy.release()
            assert await again
            assert proxy.lost == losses
            await through.close()
    assert await total(direct) == (2, 6, 0, 0, 3_000)
    await direct.close()


async def _waits_for_a_lock(database: Database) -> bool:
    async with database.read() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return bool((await connection.exec_driver_sql(query)).scalar())


class _Outage:
    """A database that goes away and comes back."""

    def __init__(self, database: Database, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.database = database
        self.begin = begin
        self.end = end
        self.registry = CollectorRegistry()
        self.recorder: UsageRecorder | None = None

    def start_recorder(self, clock: ManualClock) -> UsageRecorder:
        """A recorder that is closed with the test, however the test ends."""
        self.recorder = new_recorder(self.database, clock, self.registry, flush_seconds=0.05, close_seconds=2.0)
        return self.recorder

    async def close(self) -> None:
        """Close everything, for so long and no longer."""
        async with asyncio.timeout(20):
            if self.recorder is not None:
                await self.recorder.close()
            await self.database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
async def outage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[_Outage]:
    if request.param == "sqlite":
        path = tmp_path / "capstan.db"
        database = Database(DatabaseOptions(url=sqlite_url(path), pool_timeout_seconds=0.2))
        await upgrade(database)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        outage = _Outage(database, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("ROLLBACK"))
        yield outage
        other.close()
    else:
        server: PostgresProcess = request.getfixturevalue("own_postgres")
        database = Database(DatabaseOptions(url=server.url("postgres"), pool_timeout_seconds=2.0))
        await upgrade(database)
        outage = _Outage(database, server.kill, server.start)
        yield outage
    await outage.close()


async def test_an_outage_loses_nothing_and_is_told_once(
    outage: _Outage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.usage.writer._log", log)

    def up() -> float | None:
        return outage.registry.get_sample_value("capstan_usage_database_up")

    recorder = outage.start_recorder(clock)
    await recorder.start()
    record(recorder)
    await _until(lambda: _counted(outage.database, 1))
    assert up() == 1.0
    # In a thread: the recorder may hold the database at this moment, and needs the loop to let it go.
    await asyncio.to_thread(outage.begin)
    for _ in range(100):
        record(recorder)
        clock.advance(1.0)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        while up() != 0.0:
            await asyncio.sleep(0.02)
    await asyncio.to_thread(outage.end)
    await _until(lambda: _counted(outage.database, 101))
    assert up() == 1.0
    assert {slot[1]: numbers[0] for slot, numbers in (await minutes(outage.database)).items()} == {
        FIRST_MINUTE: 61,
        FIRST_MINUTE + 1: 40,
    }
    await recorder.close()
    assert [call.args[0] for call in log.calls] == ["usage.database_away", "usage.database_back"]


async def test_a_hanging_database_is_given_up_and_tried_again(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "capstan.db"
    database = Database(DatabaseOptions(url=sqlite_url(path), pool_timeout_seconds=3.0))
    await upgrade(database)
    recorder = new_recorder(database, clock, timeout_seconds=0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    record(recorder)
    assert not await recorder.flush()
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(30):
        while not await recorder.flush():
            await asyncio.sleep(0.02)
    assert (await total(database))[0] == 1
    await database.close()


async def test_closing_with_a_hanging_database_ends(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "capstan.db"
    database = Database(DatabaseOptions(url=sqlite_url(path), pool_timeout_seconds=2.0))
    await upgrade(database)
    recorder = new_recorder(database, clock, flush_seconds=0.02, close_seconds=0.2)
    await recorder.start()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    record(recorder)
    began = time.monotonic()
    async with asyncio.timeout(30):
        await recorder.close()
    # Twice the patience for the task and the last flush, and what the driver itself waits for the lock.
    assert time.monotonic() - began < 10.0
    other.close()
    await database.close()


async def test_old_minutes_and_days_are_deleted_in_bounded_steps(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.usage.writer._PRUNE_ROWS", 10)
    recorder = new_recorder(database, clock, retention=Retention(minute_hours=2, days=3))
    for hour in range(-100, 1):
        clock.advance(3_600.0 * hour)
        record(recorder)
        clock.advance(-3_600.0 * hour)
    await recorder.flush()
    before = await _rows(database, usage_minute)
    await recorder._writer.prune()
    assert before - await _rows(database, usage_minute) == 10
    for _ in range(20):
        await recorder._writer.prune()
    assert {slot[1] for slot in await minutes(database)} == {FIRST_MINUTE - 120, FIRST_MINUTE - 60, FIRST_MINUTE}
    assert {slot[1] for slot in await days(database)} == {DAY - 3, DAY - 2, DAY - 1, DAY}
    # The numbers of the processes are kept for a month.
    assert await _rows(database, usage_flushes) == 1
    clock.advance(31 * 86_400.0)
    for _ in range(20):
        await recorder._writer.prune()
    assert [await _rows(database, table) for table in (usage_minute, usage_day, usage_flushes)] == [0, 0, 0]


async def test_by_default_minutes_are_kept_two_days_and_days_four_hundred(
    database: Database, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock)
    for age in (0, 47, 49, 24 * 399, 24 * 402):
        clock.advance(-3_600.0 * age)
        record(recorder)
        clock.advance(3_600.0 * age)
    await recorder.flush()
    await recorder._writer.prune()
    assert {(FIRST_MINUTE - slot[1]) // 60 for slot in await minutes(database)} == {0, 47}
    assert {DAY - slot[1] for slot in await days(database)} == {0, 2, 399}


async def test_processes_may_prune_at_once(database: Database, database_url: str, clock: ManualClock) -> None:
    other = Database(DatabaseOptions(url=database_url))
    recorders = [new_recorder(database, clock), new_recorder(other, clock)]
    for number in range(900):
        record(recorders[0], key_id=f"key_{number}")
    await recorders[0].flush()
    clock.advance(72 * 3_600.0)
    async with asyncio.timeout(30):
        await asyncio.gather(*(recorder._writer.prune() for recorder in recorders))
    assert await _rows(database, usage_minute) == 0
    assert await _rows(database, usage_day) == 900
    await other.close()


def _figures(entries: list[Usage]) -> list[tuple[str, int, int]]:
    return [(entry.name, entry.counts.requests, entry.counts.units) for entry in entries]


async def test_reports_sum_up_one_account_by_day_minute_method_key_and_network(
    database: Database, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock)
    store = UsageStore(database, clock)
    clock.advance(-2 * 86_400.0)
    record(recorder, units=50)
    clock.advance(2 * 86_400.0)
    for _ in range(3):
        record(recorder, method="eth_getBalance", units=1, failed=True)
    clock.advance(60.0)
    record(recorder, key_id="key_2", network="", method="GET /v1/account", units=1, cached=True)
    record(recorder, account_id="acc_2", key_id="key_9", units=1_000)
    await recorder.flush()
    assert _figures(await store.by_day("acc_1", 2)) == [("2023-11-14", 4, 4)]
    assert _figures(await store.by_day("acc_1", 3)) == [("2023-11-12", 1, 50), ("2023-11-14", 4, 4)]
    assert _figures(await store.by_method("acc_1", 3)) == [
        ("eth_getBalance", 3, 3),
        ("GET /v1/account", 1, 1),
        ("eth_call", 1, 50),
    ]
    assert _figures(await store.by_key("acc_1", 1)) == [("key_1", 3, 3), ("key_2", 1, 1)]
    assert _figures(await store.by_network("acc_1", 1)) == [("ethereum/mainnet", 3, 3), ("", 1, 1)]
    assert _figures(await store.by_minute("acc_1", 2)) == [
        ("2023-11-14T10:00:00Z", 3, 3),
        ("2023-11-14T10:01:00Z", 1, 1),
    ]
    assert _figures(await store.by_minute("acc_1", 1)) == [("2023-11-14T10:01:00Z", 1, 1)]
    report = await store.report("method", "acc_1", 1)
    assert (report.first_day, report.last_day) == ("2023-11-14", "2023-11-14")
    assert (report.total.requests, report.total.errors, report.total.cached) == (4, 3, 1)
    assert (await store.report("key", "acc_3", 90)).entries == []


async def _rows(database: Database, table: Table) -> int:
    async with database.read() as connection:
        return (await connection.execute(select(func.count()).select_from(table))).scalar() or 0


async def _counted(database: Database, requests: int) -> bool:
    # The writer is at work: two reads one after the other may see two different moments, so only one is made.
    return sum(numbers[0] for numbers in (await days(database)).values()) == requests


async def _until(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Wait for a condition in the database."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.02)
