"""The index on a fresh SQLite database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from tests.support.index_chain import Parts
from tests.support.storage import migrate_new
from tests.unit.index.history import WRAPPED


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """SQLite alone: these tests are about upstreams. The queries are tried on both in `tests/contract`."""
    made = Database(DatabaseOptions(url=sqlite_url(tmp_path / "capstan.db")))
    await migrate_new(made)
    yield made
    await made.close()


@pytest.fixture
def parts(database: Database) -> Parts:
    return Parts(database, wrapped=WRAPPED)
