"""Brings a database to the schema of this code, and refuses one that is newer.

Called at start on SQLite and by `capstan migrate` on PostgreSQL. Two processes that start together take turns: an
advisory lock on PostgreSQL, the write lock on SQLite. Migrations run in one transaction, so a kill half-way leaves
the database as it was. There is no way down: restore a backup instead.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from capstan.storage.database import Database
from capstan.storage.errors import SchemaMismatch

_VERSION_TABLE = "schema_version"
# Any fixed number will do; it names our lock among the advisory locks of the database.
_ADVISORY_LOCK = 7_227_826


def code_revision() -> str:
    """The newest revision this code knows."""
    head = _script().get_current_head()
    if head is None:
        raise SchemaMismatch("this installation has no migrations; reinstall it")
    return head


async def database_revision(database: Database) -> str | None:
    """The revision the database is at, or None when it is empty."""
    async with database.read() as connection:
        return await connection.run_sync(_current)


async def upgrade(database: Database, *, to: str = "head") -> tuple[str | None, str]:
    """Run what is missing. Returns the revision before and after."""
    async with database.write() as connection:
        return await connection.run_sync(_upgrade, to)


async def require_current(database: Database) -> None:
    """Raise `SchemaMismatch` unless the database is at exactly this code's revision."""
    revision = await database_revision(database)
    _refuse_newer(revision)
    if revision != code_revision():
        raise SchemaMismatch(
            f"the database is at schema {revision or 'none'}, this code needs {code_revision()}; run: capstan migrate"
        )


def _upgrade(connection: Connection, to: str) -> tuple[str | None, str]:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    before = _current(connection)
    _refuse_newer(before)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, to)
    after = _current(connection)
    if after is None:
        raise SchemaMismatch("the migrations ran but left no version behind")
    return before, after


def _refuse_newer(revision: str | None) -> None:
    known = {script.revision for script in _script().walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaMismatch(
            f"the database is at schema {revision}, which this code (up to {code_revision()}) does not know; "
            "it was written by a newer Capstan: install that version or restore a backup"
        )


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": _VERSION_TABLE})
    return context.get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
