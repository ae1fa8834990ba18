"""Whatever happens and in whatever order, minutes and days agree with what was recorded, and nothing counts twice."""

import asyncio
import shutil
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.clock import ManualClock
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from tests.unit.usage.parts import METHODS, MORNING, FaultyDatabase, Numbers, Slot, as_days, days, minutes, new_recorder

_RECORDS = st.fixed_dictionaries(
    {
        "key_id": st.sampled_from(["key_1", "key_2"]),
        "network": st.sampled_from(["ethereum/mainnet", "solana/devnet", ""]),
        "method": st.sampled_from([*METHODS, "unknown_1", "unknown_2"]),
        "units": st.integers(0, 1_000),
        "failed": st.booleans(),
        "microseconds": st.integers(0, 2**32),
        "cached": st.booleans(),
    }
)
_STEPS = st.one_of(
    st.tuples(st.just("record"), _RECORDS),
    st.tuples(st.just("record"), _RECORDS),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 59.0, 61.0, 3_600.0, 86_400.0, -90.0])),
    st.tuples(st.just("flush"), st.sampled_from([(), ("before",), ("after",), ("before", "after"), ("after",) * 3])),
    st.tuples(st.just("crash"), st.just(None)),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database to copy."""
    path = tmp_path_factory.mktemp("usage") / "template.db"

    async def make() -> None:
        database = Database(DatabaseOptions(url=sqlite_url(path)))
        await upgrade(database)
        await database.close()

    asyncio.run(make())
    return path


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(_STEPS, max_size=40))
def test_the_tables_hold_exactly_what_was_recorded_before_the_last_flush(
    template: Path, steps: list[tuple[str, Any]]
) -> None:
    path = template.with_name("example.db")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(template, path)
    asyncio.run(_play(path, steps))


async def _play(path: Path, steps: list[tuple[str, Any]]) -> None:
    database = FaultyDatabase(DatabaseOptions(url=sqlite_url(path)))
    database.faults = deque()
    clock = ManualClock(now=MORNING)
    recorder = new_recorder(database, clock)
    written: dict[Slot, Numbers] = {}
    unwritten: dict[Slot, Numbers] = {}
    for what, detail in steps:
        if what == "record":
            recorder.record(account_id="acc_1", **detail)
            _count(unwritten, clock, detail)
        elif what == "wait":
            clock.advance(detail)
        elif what == "crash":
            # Whatever was not flushed is lost, and the next process starts anew.
            recorder, unwritten = new_recorder(database, clock), {}
        else:
            database.faults.extend(detail)
            while not await recorder.flush():
                pass
            database.faults.clear()
            for slot, numbers in unwritten.items():
                written[slot] = _plus(written.get(slot), numbers)
            unwritten = {}
            assert await minutes(database) == written
            assert await days(database) == as_days(written)
    assert await minutes(database) == written
    await database.close()


def _count(sums: dict[Slot, Numbers], clock: ManualClock, request: dict[str, Any]) -> None:
    method = request["method"] if request["method"] in METHODS else "other"
    slot = ("acc_1", int(clock.now() // 60), request["key_id"], request["network"], method)
    numbers = (1, request["units"], int(request["failed"]), int(request["cached"]), request["microseconds"])
    sums[slot] = _plus(sums.get(slot), numbers)


def _plus(one: Numbers | None, two: Numbers) -> Numbers:
    return two if one is None else tuple(a + b for a, b in zip(one, two, strict=True))
