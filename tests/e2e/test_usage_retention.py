"""How long usage is kept is a setting: a running service deletes what is older, and nothing else."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.servers import wait_until
from tests.support.service import RunCapstan, StartService

MINUTES_PER_DAY = 24 * 60


@contextmanager
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "data" / "capstan.db", timeout=20)) as connection, connection:
        yield connection


def ages(tmp_path: Path, table: str, column: str, now: int) -> list[int]:
    """How many minutes or days ago the rows are."""
    with database(tmp_path) as connection:
        return sorted(now - row[0] for row in connection.execute(f"SELECT {column} FROM {table}"))  # noqa: S608 - ours


def add(tmp_path: Path, table: str, column: str, values: list[int]) -> None:
    with database(tmp_path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        texts = {"account_id": "acc_old", "key_id": "key_old", "network": "", "method": "eth_call"}
        for value in values:
            row = [value if name == column else texts.get(name, 0) for name in columns]
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)  # noqa: S608 - ours


def test_older_usage_than_the_settings_keep_is_deleted(
    start_service: StartService, capstan: RunCapstan, tmp_path: Path
) -> None:
    capstan("keys", "create")
    minute = int(time.time() // 60)
    day = minute // MINUTES_PER_DAY
    add(tmp_path, "usage_minute", "minute", [minute - age * MINUTES_PER_DAY for age in (2, 4, 6)])
    add(tmp_path, "usage_day", "day", [day - age for age in (5, 9, 11, 300)])
    start_service({"usage.minute_days": 5, "usage.days": 10})
    wait_until(lambda: len(ages(tmp_path, "usage_day", "day", day)) == 2)
    assert ages(tmp_path, "usage_day", "day", day) == [5, 9]
    assert ages(tmp_path, "usage_minute", "minute", minute) == [2 * MINUTES_PER_DAY, 4 * MINUTES_PER_DAY]
