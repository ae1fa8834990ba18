"""Behind a pool in transaction mode: no transaction relies on what an earlier one left on its connection."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import func, insert, select, text

from capstan.core.clock import SystemClock
from capstan.storage.database import Database, DatabaseOptions
from capstan.storage.errors import StorageError, StorageUnavailable
from capstan.storage.migrate import code_revision, upgrade
from capstan.storage.schema import leases
from capstan.stream.lease import LeaseStore
from tests.support.transaction_pool import TransactionPool, transaction_pool


@pytest.fixture
async def pooled(postgres_database: str) -> AsyncIterator[tuple[str, TransactionPool]]:
    parts = urlsplit(postgres_database)
    server = Path(parse_qs(parts.query)["host"][0])
    with tempfile.TemporaryDirectory(prefix="capstan-pool-") as directory:
        async with transaction_pool(Path(directory), server, parts.path.strip("/")) as found:
            yield found


async def test_everything_works_when_each_transaction_has_another_connection(
    pooled: tuple[str, TransactionPool],
) -> None:
    url, pool = pooled
    database = Database(DatabaseOptions(url=url, pgbouncer=True, statement_timeout_seconds=7))
    try:
        assert await upgrade(database) == (None, code_revision())

        async def many(number: int) -> None:
            store = LeaseStore(database, f"holder-{number}", SystemClock())
            for place in range(10):
                lease = await store.acquire(f"{number}-{place}")
                assert lease is not None
                await store.renew(lease)

        await asyncio.gather(*(many(number) for number in range(6)))
        async with database.write() as connection:
            rows = [{"name": f"more-{place}", "holder": "x", "token": 1, "expires_at": 0} for place in range(100)]
            await connection.execute(insert(leases), rows)
        async with database.read() as connection:
            assert await connection.scalar(select(func.count()).select_from(leases)) == 160
            assert await connection.scalar(text("SHOW statement_timeout")) == "7s"
    finally:
        await database.close()
    assert pool.transactions > 100


async def test_without_the_setting_it_is_refused(pooled: tuple[str, TransactionPool]) -> None:
    database = Database(DatabaseOptions(url=pooled[0]))
    try:
        with pytest.raises((StorageError, StorageUnavailable)):
            await upgrade(database)
    finally:
        await database.close()
