"""The file of the persistent tier: one SQLite table of answers, bounded in bytes.

Used by `persistent`, in one thread, and by nobody else. A cache may be lost, so the file is written without waiting for
the disk, and a damaged one is deleted and begun anew. `sqlite3.OperationalError` means that it cannot be used just now.
"""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Raised when the table or the meaning of keys changes: then a file of the old kind is deleted.
_VERSION = 1
_ROW_OVERHEAD = 100
# Room is made in steps, so that not every write has to.
_KEPT_SHARE = 0.9
_EVICTED_AT_ONCE = 256

_SCHEMA = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = OFF;
    PRAGMA temp_store = MEMORY;
    PRAGMA journal_size_limit = 4194304;
    CREATE TABLE IF NOT EXISTS answers (
        digest BLOB PRIMARY KEY, value BLOB NOT NULL, size INTEGER NOT NULL, used INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used);
"""


class AnswerFile:
    """Answers by digest. `used` is a number that grows with time; the lowest leave first."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._bytes = 0
        self._used = 0
        self._connection: sqlite3.Connection | None = None

    @property
    def total_bytes(self) -> int:
        """The size of all answers."""
        return self._bytes

    def open(self) -> list[bytes]:
        """Open the file and tell which digests are in it."""
        return self._guarded(lambda connection: [row[0] for row in connection.execute("SELECT digest FROM answers")])

    def get(self, digest: bytes) -> bytes | None:
        """One answer."""

        def read(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute("SELECT value FROM answers WHERE digest = ?", (digest,)).fetchone()
            return None if row is None else bytes(row[0])

        return self._guarded(read)

    def write(self, answers: Iterable[tuple[bytes, bytes]], used: Iterable[bytes]) -> None:
        """Keep answers, note which others were used, and make room."""
        rows = [(digest, value, len(value) + _ROW_OVERHEAD) for digest, value in answers]
        touched = list(used)

        def work(connection: sqlite3.Connection) -> None:
            with connection:
                self._used += 1
                connection.executemany(
                    "UPDATE answers SET used = ? WHERE digest = ?", [(self._used, digest) for digest in touched]
                )
                for digest, value, size in rows:
                    added = connection.execute(
                        "INSERT INTO answers VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                        (digest, value, size, self._used),
                    ).rowcount
                    self._bytes += size if added else 0
                if self._bytes > self._max_bytes:
                    self._evict(connection)

        self._guarded(work)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _evict(self, connection: sqlite3.Connection) -> None:
        while self._bytes > self._max_bytes * _KEPT_SHARE:
            oldest = connection.execute(
                "SELECT rowid, size FROM answers ORDER BY used LIMIT ?", (_EVICTED_AT_ONCE,)
            ).fetchall()
            if not oldest:
                return
            for row, size in oldest:
                connection.execute("DELETE FROM answers WHERE rowid = ?", (row,))
                self._bytes -= size
                if self._bytes <= self._max_bytes * _KEPT_SHARE:
                    return

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do the work; if the file is damaged, delete it and do the work on an empty one."""
        try:
            return work(self._connected())
        except sqlite3.OperationalError:
            # Locked, or the disk is full: the file itself is sound.
            raise
        except sqlite3.DatabaseError as error:
            log.warning("rpc_cache.file_deleted", path=str(self._path), error=str(error))
            self._delete()
            return work(self._connected())

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=5.0, check_same_thread=False)
            try:
                self._prepare(connection)
            except sqlite3.DatabaseError:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        query = "SELECT coalesce(sum(size), 0), coalesce(max(used), 0) FROM answers"
        self._bytes, self._used = connection.execute(query).fetchone()

    def _delete(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
