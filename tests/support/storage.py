"""A fresh database for each test, on SQLite and on a real PostgreSQL.

`database` is migrated; `empty_database` is not. Tests that use them run once for each dialect.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new, empty database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "capstan.db")
    url: str = request.getfixturevalue("postgres_database")
    return url


@pytest.fixture
async def empty_database(database_url: str) -> AsyncIterator[Database]:
    """A new database without tables."""
    database = Database(DatabaseOptions(url=database_url))
    yield database
    await database.close()


@pytest.fixture
async def database(empty_database: Database) -> Database:
    """A new database at the schema of this code."""
    await upgrade(empty_database)
    return empty_database
