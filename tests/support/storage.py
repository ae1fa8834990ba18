"""A fresh database for each test, on SQLite and on a real PostgreSQL.

`database` is migrated; `empty_database` is not. Tests that use them run once for each dialect. The migrations run once
for a test session and dialect; the databases of the tests are copies. What the migrations do is tried in
`tests/contract/test_storage.py`.
"""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from tests.support.servers import PostgresProcess

_TEMPLATE = "capstan_template"
_migrated_file: bytes | None = None


async def migrate_new(database: Database) -> None:
    """Bring a SQLite database that nothing has opened yet to the schema of this code."""
    global _migrated_file
    assert database.file is not None, "copies are of SQLite files"
    if database.file.exists():
        await upgrade(database)
        return
    if _migrated_file is None:
        with tempfile.TemporaryDirectory(prefix="capstan-template-") as directory:
            path = Path(directory) / "capstan.db"
            template = Database(DatabaseOptions(url=sqlite_url(path)))
            await upgrade(template)
            await template.close()
            _migrated_file = await asyncio.to_thread(path.read_bytes)
    with database.file.open("xb") as file:
        file.write(_migrated_file)


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresProcess) -> str:
    """The name of a migrated PostgreSQL database to copy."""

    async def migrate() -> None:
        template = Database(DatabaseOptions(url=postgres_server.url(_TEMPLATE)))
        await upgrade(template)
        await template.close()

    postgres_server.sql(f"CREATE DATABASE {_TEMPLATE}")
    asyncio.run(migrate())
    return _TEMPLATE


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a new database: migrated if the test asks for `database`, else empty."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "capstan.db")
        return
    server: PostgresProcess = request.getfixturevalue("postgres_server")
    name = f"test_{secrets.token_hex(6)}"
    original = request.getfixturevalue("migrated_template") if "database" in request.fixturenames else "template1"
    server.sql(f"CREATE DATABASE {name} TEMPLATE {original}")
    yield server.url(name)
    server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def empty_database(database_url: str) -> AsyncIterator[Database]:
    """A new database without tables."""
    database = Database(DatabaseOptions(url=database_url))
    yield database
    await database.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A new database at the schema of this code."""
    database = Database(DatabaseOptions(url=database_url))
    if database.is_sqlite:
        await migrate_new(database)
    yield database
    await database.close()
