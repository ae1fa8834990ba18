"""One database, two dialects: SQLite in the embedded set-up, PostgreSQL in a cluster.

Stores ask for a transaction with `read()` or `write()` and run SQLAlchemy Core statements on it. On SQLite there is one
writer at a time: a write transaction takes the file's write lock at its start (BEGIN IMMEDIATE), so it never fails
half-way with "database is locked". A transaction commits when its block ends and rolls back when the block raises.
Engine exceptions leave this module as `storage.errors`. No query lives here.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec
from sqlalchemy import Select, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from capstan.storage.errors import AlreadyExists, StorageError, StorageUnavailable
from capstan.storage.glance import Glance

_SQLITE_READERS = 4
_WRITER_CACHE_KIB = 64 * 1024
# Pages in the log before they are copied into the database. A page that several transactions write is copied once.
_WRITER_LOG_PAGES = 8_000
# SQLSTATE classes: connection exception, insufficient resources, operator intervention.
_AWAY_STATES = frozenset({"08", "53", "57"})


class DatabaseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the database and how long to wait for it."""

    url: str
    pool_size: int = 10
    pool_timeout_seconds: float = 5.0
    statement_timeout_seconds: float = 30.0
    # Whether the server is pgbouncer in transaction mode: a connection is then another one in every transaction.
    pgbouncer: bool = False


class Database:
    """Connections and transactions on one database."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options
        self.url = _driver_url(options.url)
        self.dialect = self.url.get_backend_name()
        self._write_lock = asyncio.Lock()
        self._glance_lock = asyncio.Lock()
        self._glancer: aiosqlite.Connection | None = None
        if self.dialect == "sqlite":
            self._writer = _sqlite_engine(self.url, options, readers=0)
            self._reader = _sqlite_engine(self.url, options, readers=_SQLITE_READERS)
        else:
            self._writer = self._reader = _postgresql_engine(self.url, options)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded database."""
        return self.dialect == "sqlite"

    @property
    def display_url(self) -> str:
        """The address without its password, for logs and messages."""
        return self.url.render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        """The file of an embedded database; None for one in memory or on a server."""
        name = self.url.database
        return Path(name) if self.is_sqlite and name and name != ":memory:" else None

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads; it sees one consistent state."""
        with _translated():
            async with self._reader.connect() as connection, connection.begin():
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write. On SQLite the writers of this process wait for each other here."""
        with _translated():
            if not self.is_sqlite:
                async with self._writer.begin() as connection:
                    yield connection
                return
            async with self._write_lock, self._writer.begin() as connection:
                yield connection

    def glance(self, query: Select[Any]) -> "Glance | EngineGlance":
        """A query to be asked again and again, at the least cost."""
        if self.file is None:
            return EngineGlance(self, query)
        return Glance(query, self._reader.dialect, self._glance_at)

    async def _glance_at(self, text: str, values: tuple[Any, ...]) -> list[Any]:
        with _translated(), _translated_driver():
            async with self._glance_lock:
                if self._glancer is None:
                    seconds = self._options.pool_timeout_seconds
                    self._glancer = await aiosqlite.connect(str(self.file), timeout=seconds, isolation_level=None)
            return list(await self._glancer.execute_fetchall(text, values))

    async def close(self) -> None:
        """Close every connection."""
        if self._glancer is not None:
            await self._glancer.close()
            self._glancer = None
        await self._writer.dispose()
        if self._reader is not self._writer:
            await self._reader.dispose()


class EngineGlance:
    """The same through the engine, for databases that have no thread to pass steps to, or no file."""

    def __init__(self, database: Database, query: Select[Any]) -> None:
        self._database = database
        self._query = query

    async def ask(self, **values: int | str) -> list[Any]:
        """The rows now. Raises `storage.errors`."""
        async with self._database.read() as connection:
            return list(await connection.execute(self._query, values))


def sqlite_url(path: Path) -> str:
    """The address of the SQLite file at `path`."""
    return f"sqlite:///{path}"


def _driver_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StorageError(
            "storage.url is not a database address; use sqlite:///path or postgresql://user:password@host/name"
        ) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite")
    if backend in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+asyncpg")
    raise StorageError(f"storage.url names {backend}; Capstan stores in sqlite or postgresql")


def _sqlite_engine(url: URL, options: DatabaseOptions, *, readers: int) -> AsyncEngine:
    """The engine of the one writer (`readers=0`), or of the readers."""
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_async_engine(
        url,
        pool_size=readers or 1,
        max_overflow=0,
        pool_timeout=options.pool_timeout_seconds,
        pool_reset_on_return=None,
    )
    writer = readers == 0

    @event.listens_for(engine.sync_engine, "connect")
    def configure(dbapi_connection: Any, _record: Any) -> None:
        # The driver must not open transactions by itself: ours begin with the statement below.
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(options.pool_timeout_seconds * 1000)}")
        # A write-ahead log with synchronous=NORMAL survives the death of the process at any instant.
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        if writer:
            # The rows of one transaction of the transfer index fall all over its indexes. With the 2 MiB that are the
            # default, the same pages would be written and read again within it.
            cursor.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
            cursor.execute(f"PRAGMA wal_autocheckpoint = {_WRITER_LOG_PAGES}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")

    return engine


def _postgresql_engine(url: URL, options: DatabaseOptions) -> AsyncEngine:
    milliseconds = str(int(options.statement_timeout_seconds * 1000))
    arguments: dict[str, Any] = {"timeout": options.pool_timeout_seconds}
    if options.pgbouncer:
        # Statements without a name end with the transaction, and names are the session's, which is not ours.
        arguments |= {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: "",
            "server_settings": {"application_name": "capstan"},
        }
    else:
        arguments["server_settings"] = {"application_name": "capstan", "statement_timeout": milliseconds}
    engine = create_async_engine(
        url,
        pool_size=options.pool_size,
        max_overflow=0,
        pool_timeout=options.pool_timeout_seconds,
        pool_pre_ping=True,
        connect_args=arguments,
    )
    if options.pgbouncer:

        @event.listens_for(engine.sync_engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")

    return engine


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the engine's exceptions into ours. The engine's text may quote data, so only its class is repeated."""
    try:
        yield
    except IntegrityError as error:
        raise AlreadyExists("a row with this unique value exists, or a row it refers to does not") from error
    except (OperationalError, InterfaceError, PoolTimeoutError, OSError) as error:
        raise StorageUnavailable(f"the database did not answer ({type(error).__name__})") from error
    except DBAPIError as error:
        if error.connection_invalidated or _is_away(error):
            raise StorageUnavailable("the connection to the database was lost or refused") from error
        raise StorageError(f"the database refused a statement ({type(error.orig).__name__})") from error


@contextmanager
def _translated_driver() -> Iterator[None]:
    """The same for the exceptions of SQLite itself."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageUnavailable(f"the database did not answer ({type(error).__name__})") from error


def _is_away(error: DBAPIError) -> bool:
    """Whether PostgreSQL says that it is starting, stopping or full, by the class of its SQLSTATE."""
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or ""
    text = str(error.orig)
    return str(state)[:2] in _AWAY_STATES or "connection was closed" in text or "connection is closed" in text
