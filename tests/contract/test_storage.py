"""What both databases must do: transactions, isolation, uniqueness, migrations."""

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, bindparam, insert, select, text, update

from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.errors import AlreadyExists, SchemaMismatch, StorageError, StorageUnavailable
from capstan.storage.migrate import code_revision, database_revision, require_current, upgrade
from capstan.storage.schema import access_version, accounts, metadata

_ACCOUNT = {
    "id": "acc_1",
    "name": "one",
    "plan": "free",
    "overrides": "{}",
    "status": "active",
    "created_at": 1,
}


async def test_a_transaction_commits_at_its_end(database: Database) -> None:
    async with database.write() as connection:
        await connection.execute(insert(accounts).values(_ACCOUNT))
    async with database.read() as connection:
        assert await connection.scalar(select(accounts.c.name)) == "one"


async def test_a_transaction_that_raises_leaves_nothing(database: Database) -> None:
    async def fail() -> None:
        async with database.write() as connection:
            await connection.execute(insert(accounts).values(_ACCOUNT))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await fail()
    async with database.read() as connection:
        assert await connection.scalar(select(accounts.c.id)) is None


async def test_a_second_row_with_a_unique_value_is_refused(database: Database) -> None:
    async with database.write() as connection:
        await connection.execute(insert(accounts).values(_ACCOUNT))
    with pytest.raises(AlreadyExists):
        async with database.write() as connection:
            await connection.execute(insert(accounts).values(_ACCOUNT))


async def test_a_value_outside_a_check_is_refused(database: Database) -> None:
    with pytest.raises(AlreadyExists):
        async with database.write() as connection:
            await connection.execute(insert(accounts).values({**_ACCOUNT, "status": "gone"}))


async def test_concurrent_increments_are_all_counted(database: Database) -> None:
    async def increment() -> None:
        async with database.write() as connection:
            await connection.execute(update(access_version).values(version=access_version.c.version + 1))

    await asyncio.gather(*(increment() for _ in range(40)))
    async with database.read() as connection:
        assert await connection.scalar(select(access_version.c.version)) == 40


async def test_two_connections_to_one_database_both_write(database: Database, database_url: str) -> None:
    other = Database(DatabaseOptions(url=database_url))

    async def increment(which: Database) -> None:
        for _ in range(20):
            async with which.write() as connection:
                await connection.execute(update(access_version).values(version=access_version.c.version + 1))

    try:
        await asyncio.gather(increment(database), increment(other))
    finally:
        await other.close()
    async with database.read() as connection:
        assert await connection.scalar(select(access_version.c.version)) == 40


async def test_a_reader_is_not_blocked_by_a_writer(database: Database) -> None:
    async with database.write() as writing:
        await writing.execute(insert(accounts).values(_ACCOUNT))
        async with asyncio.timeout(30), database.read() as reading:
            assert await reading.scalar(select(accounts.c.id)) is None


async def test_a_glance_sees_what_was_written_last(database: Database) -> None:
    glance = database.glance(
        select(accounts.c.id).where(accounts.c.created_at <= bindparam("now"), accounts.c.status == "active").limit(1)
    )
    assert await glance.ask(now=2**62) == []
    async with database.write() as connection:
        await connection.execute(insert(accounts).values(_ACCOUNT))
        assert await asyncio.wait_for(glance.ask(now=2**62), 30) == [], "not before it is committed"
    assert [tuple(row) for row in await glance.ask(now=2**62)] == [(_ACCOUNT["id"],)]
    assert await glance.ask(now=-1) == []


async def test_a_glance_that_fails_says_that_the_database_is_unavailable(tmp_path: Path) -> None:
    database = Database(DatabaseOptions(url=sqlite_url(tmp_path / "without-tables.db")))
    with pytest.raises(StorageUnavailable):
        await database.glance(select(access_version.c.version)).ask()
    await database.close()


async def test_migrations_run_from_empty_and_again_change_nothing(empty_database: Database) -> None:
    assert await database_revision(empty_database) is None
    assert await upgrade(empty_database) == (None, code_revision())
    assert await upgrade(empty_database) == (code_revision(), code_revision())
    await require_current(empty_database)


async def test_migrations_run_from_the_previous_version_and_keep_its_rows(empty_database: Database) -> None:
    await upgrade(empty_database, to="0001")
    async with empty_database.write() as connection:
        await connection.execute(insert(accounts).values(_ACCOUNT))
    before, after = await upgrade(empty_database)
    assert (before, after) == ("0001", code_revision())
    async with empty_database.read() as connection:
        assert await connection.scalar(select(accounts.c.name)) == "one"


async def test_two_processes_may_migrate_at_once(empty_database: Database, database_url: str) -> None:
    other = Database(DatabaseOptions(url=database_url))
    try:
        results = await asyncio.gather(upgrade(empty_database), upgrade(other))
    finally:
        await other.close()
    assert {after for _, after in results} == {code_revision()}


async def test_the_migrations_make_exactly_the_declared_tables(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"version_table": "schema_version"})
        return list(compare_metadata(context, metadata))

    async with database.read() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_database_newer_than_the_code_is_refused(database: Database) -> None:
    async with database.write() as connection:
        await connection.execute(text("UPDATE schema_version SET version_num = '9999'"))
    with pytest.raises(SchemaMismatch, match="newer Capstan"):
        await upgrade(database)
    with pytest.raises(SchemaMismatch, match="newer Capstan"):
        await require_current(database)


async def test_an_older_database_is_told_to_migrate(empty_database: Database) -> None:
    await upgrade(empty_database, to="0001")
    with pytest.raises(SchemaMismatch, match="capstan migrate"):
        await require_current(empty_database)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    database = Database(DatabaseOptions(url="postgresql://nobody:secret@127.0.0.1:1/none", pool_timeout_seconds=2))
    try:
        with pytest.raises(StorageUnavailable) as caught:
            async with database.read() as connection:
                await connection.execute(text("SELECT 1"))
        assert "secret" not in str(caught.value)
        assert "secret" not in database.display_url
    finally:
        await database.close()


@pytest.mark.parametrize("url", ["mysql://host/db", "not an address"])
def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(StorageError, match=r"storage\.url"):
        Database(DatabaseOptions(url=url))


async def test_sqlite_makes_the_directory_of_its_file(tmp_path: Path) -> None:
    database = Database(DatabaseOptions(url=sqlite_url(tmp_path / "a" / "b" / "capstan.db")))
    try:
        await upgrade(database)
    finally:
        await database.close()
    assert (tmp_path / "a" / "b" / "capstan.db").exists()
