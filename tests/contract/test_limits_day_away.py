"""Daily counts while the database is away or hangs: requests are answered, nothing is forgotten."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select
from structlog.testing import CapturingLogger

from capstan.core.clock import SystemClock
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import REQUESTS_PER_DAY, Limits
from capstan.limits.store import DayStore
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from capstan.storage.schema import day_usage
from tests.support.servers import PostgresProcess
from tests.unit.limits.parts import take


class Outage(Protocol):
    """Takes a database away and brings it back."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class LockedFile:
    """Another program holds the write lock of the SQLite file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


class StoppedServer:
    """PostgreSQL dies and is started again."""

    def __init__(self, server: PostgresProcess) -> None:
        self._server = server

    def begin(self) -> None:
        self._server.kill()

    def end(self) -> None:
        if self._server.process is None:
            self._server.start()


class Setup:
    def __init__(self, database: Database, outage: Outage) -> None:
        self.database = database
        self.outage = outage
        self.registry = CollectorRegistry()
        self.ledger = DayLedger(
            DayStore(database), SystemClock(), self.registry, patience_seconds=20.0, retry_seconds=0.05
        )
        self.limiter = MemoryLimiter(SystemClock(), self.ledger)

    async def take_many(self, count: int, limit: int) -> int:
        return sum([(await take(self.limiter, "acc_1", Limits(0, limit, 0))).allowed for _ in range(count)])

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"capstan_limits_day_{name}")

    async def reserved(self) -> int:
        """Over all days, so that midnight during the test does no harm."""
        async with self.database.read() as connection:
            return sum((await connection.execute(select(day_usage.c.reserved))).scalars())


@pytest.fixture(params=["sqlite", "postgresql"])
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Setup]:
    if request.param == "sqlite":
        path = tmp_path / "capstan.db"
        database = Database(DatabaseOptions(url=sqlite_url(path), pool_timeout_seconds=0.2))
        await upgrade(database)
        outage: LockedFile | StoppedServer = LockedFile(path)
    else:
        server: PostgresProcess = request.getfixturevalue("own_postgres")
        database = Database(DatabaseOptions(url=server.url("postgres"), pool_timeout_seconds=2.0))
        await upgrade(database)
        outage = StoppedServer(server)
    setup = Setup(database, outage)
    await setup.limiter.start()
    yield setup
    outage.end()
    await setup.limiter.close()
    await database.close()
    if isinstance(outage, LockedFile):
        outage.close()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.02)


async def test_requests_pass_while_the_database_is_away_and_are_counted_when_it_is_back(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.limits.day._log", log)
    assert await setup.take_many(10, 5_000) == 10
    assert setup.metric("database_up") == 1.0
    setup.outage.begin()
    assert await setup.take_many(300, 5_000) == 300
    assert setup.metric("database_up") == 0.0
    assert (setup.metric("local_requests_total") or 0) >= 290
    setup.outage.end()
    await _until(lambda: setup.metric("database_up") == 1.0)
    assert await setup.take_many(1, 5_000) == 1
    await setup.limiter.close()
    # A claim whose fate is unknown may be counted twice, so that nothing is ever counted too low.
    assert 311 <= await setup.reserved() <= 311 + 10
    assert [call.args[0] for call in log.calls] == ["limits.day_database_away", "limits.day_database_back"]


async def test_the_limit_holds_for_this_process_while_the_database_is_away(setup: Setup) -> None:
    assert await setup.take_many(4, 12) == 4
    setup.outage.begin()
    assert await setup.take_many(30, 12) in {7, 8}
    refused = await take(setup.limiter, "acc_1", Limits(0, 12, 0))
    assert (refused.allowed, refused.reason) == (False, REQUESTS_PER_DAY)
    setup.outage.end()
    await _until(lambda: setup.metric("database_up") == 1.0)
    assert await setup.take_many(30, 12) <= 1
    await setup.limiter.close()
    assert await setup.reserved() in {12, 13}


async def test_a_process_that_starts_without_a_database_answers(setup: Setup) -> None:
    setup.outage.begin()
    assert await setup.take_many(25, 20) == 20
    setup.outage.end()
    await _until(lambda: setup.metric("database_up") == 1.0)
    assert await setup.take_many(5, 20) == 0
    await setup.limiter.close()
    assert await setup.reserved() == 20


async def test_unlimited_days_do_not_notice(setup: Setup) -> None:
    setup.outage.begin()
    assert await setup.take_many(100, 0) == 100
    assert setup.metric("local_requests_total") == 0.0


async def test_a_hanging_database_delays_requests_by_the_patience_at_most(tmp_path: Path) -> None:
    path = tmp_path / "capstan.db"
    database = Database(DatabaseOptions(url=sqlite_url(path), pool_timeout_seconds=8.0))
    await upgrade(database)
    registry = CollectorRegistry()
    ledger = DayLedger(DayStore(database), SystemClock(), registry, patience_seconds=0.2, retry_seconds=0.05)
    limiter = MemoryLimiter(SystemClock(), ledger)
    await limiter.start()
    lock = LockedFile(path)
    lock.begin()
    began = time.monotonic()
    for _ in range(50):
        assert (await take(limiter, "acc_1", Limits(0, 1_000, 0))).allowed
    # One of them waited; the others knew. Each for itself, they would wait for ten seconds.
    assert time.monotonic() - began < 9.0
    assert registry.get_sample_value("capstan_limits_day_database_up") == 0.0
    lock.end()
    await _until(lambda: registry.get_sample_value("capstan_limits_day_database_up") == 1.0)
    await limiter.close()
    async with database.read() as connection:
        assert sum((await connection.execute(select(day_usage.c.reserved))).scalars()) == 50
    await database.close()
    lock.close()


async def test_closing_without_a_database_says_what_is_lost_and_ends(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.limits.day._log", log)
    setup.outage.begin()
    assert await setup.take_many(15, 100) == 15
    await setup.limiter.close()
    lost = [call.kwargs for call in log.calls if call.args[0] == "limits.day_counts_lost"]
    assert lost == [{"subjects": 1, "uncounted_requests": 15}]
