"""What the recorder counts, and how it stays within its bounds."""

import asyncio
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import CapturingLogger

from capstan.core.clock import ManualClock
from capstan.storage.database import DatabaseOptions, sqlite_url
from tests.support.storage import migrate_new
from tests.unit.usage.parts import (
    DAY,
    FIRST_MINUTE,
    MORNING,
    FaultyDatabase,
    as_days,
    days,
    minutes,
    new_recorder,
    record,
    total,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=MORNING)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[FaultyDatabase]:
    database = FaultyDatabase(DatabaseOptions(url=sqlite_url(tmp_path / "capstan.db")))
    database.faults = deque()
    await migrate_new(database)
    yield database
    await database.close()


async def test_requests_are_counted_by_key_network_method_minute_and_day(
    database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock)
    record(recorder)
    record(recorder, failed=True, units=0, microseconds=500)
    record(recorder, cached=True)
    record(recorder, key_id="key_2")
    record(recorder, network="polygon/mainnet")
    record(recorder, method="eth_getBalance")
    clock.advance(60.0)
    record(recorder)
    clock.advance(86_400.0)
    record(recorder, account_id="acc_2", key_id="key_3")
    assert await recorder.flush()
    main = "ethereum/mainnet"
    assert await minutes(database) == {
        ("acc_1", FIRST_MINUTE, "key_1", main, "eth_call"): (3, 6, 1, 1, 3_500),
        ("acc_1", FIRST_MINUTE, "key_2", main, "eth_call"): (1, 3, 0, 0, 1_500),
        ("acc_1", FIRST_MINUTE, "key_1", "polygon/mainnet", "eth_call"): (1, 3, 0, 0, 1_500),
        ("acc_1", FIRST_MINUTE, "key_1", main, "eth_getBalance"): (1, 3, 0, 0, 1_500),
        ("acc_1", FIRST_MINUTE + 1, "key_1", main, "eth_call"): (1, 3, 0, 0, 1_500),
        ("acc_2", FIRST_MINUTE + 1_441, "key_3", main, "eth_call"): (1, 3, 0, 0, 1_500),
    }
    found = await days(database)
    assert found == as_days(await minutes(database))
    assert found["acc_1", DAY, "key_1", main, "eth_call"] == (4, 9, 1, 1, 5_000)


async def test_later_flushes_add_to_the_same_rows(database: FaultyDatabase, clock: ManualClock) -> None:
    recorder = new_recorder(database, clock)
    for _ in range(5):
        record(recorder)
        assert await recorder.flush()
    assert await recorder.flush()
    slot = ("acc_1", FIRST_MINUTE, "key_1", "ethereum/mainnet", "eth_call")
    assert await minutes(database) == {slot: (5, 15, 0, 0, 7_500)}


async def test_a_clock_that_goes_back_counts_in_the_earlier_minute(
    database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock)
    record(recorder)
    clock.advance(-60.0)
    record(recorder)
    clock.advance(60.0)
    record(recorder)
    await recorder.flush()
    counted = {slot[1]: numbers[0] for slot, numbers in (await minutes(database)).items()}
    assert counted == {FIRST_MINUTE - 1: 1, FIRST_MINUTE: 2}


@pytest.mark.parametrize("name", ["no_such_method", "", "eth_call\x00", "eth_cäll", "\ud800", "e" * 5_000])
async def test_a_method_that_is_not_known_is_counted_as_other(
    name: str, database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock)
    record(recorder, method=name)
    record(recorder, method=name)
    assert await recorder.flush()
    slot = ("acc_1", FIRST_MINUTE, "key_1", "ethereum/mainnet", "other")
    assert (await minutes(database))[slot][0] == 2


async def test_a_name_that_no_database_can_store_is_other_even_if_it_is_known(
    database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock)
    recorder._known = lambda name: True
    for name in ("hardhat_\x00", "hardhat_\ud800", "h" * 101):
        record(recorder, method=name)
    assert await recorder.flush()
    assert {slot[4] for slot in await minutes(database)} == {"other"}


async def test_random_names_do_not_fill_the_memory(database: FaultyDatabase, clock: ManualClock) -> None:
    recorder = new_recorder(database, clock)
    record(recorder, method="none")
    tracemalloc.start()
    try:
        for number in range(20_000):
            record(recorder, method=f"random_{number}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert recorder.held == 1
    assert held < 100_000


async def test_beyond_the_bound_methods_become_other_and_then_minutes_one(
    database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock, max_series=3)
    for key in ("key_1", "key_2", "key_3"):
        record(recorder, key_id=key)
    # Full: a new method of a key is counted as other, an old one as before.
    record(recorder, method="eth_getBalance")
    record(recorder)
    clock.advance(60.0)
    record(recorder)
    assert recorder.held == 4
    assert await recorder.flush()
    counted = {(slot[1], slot[2], slot[4]): numbers[0] for slot, numbers in (await minutes(database)).items()}
    assert counted == {
        (FIRST_MINUTE, "key_1", "eth_call"): 3,
        (FIRST_MINUTE, "key_2", "eth_call"): 1,
        (FIRST_MINUTE, "key_3", "eth_call"): 1,
        (FIRST_MINUTE, "key_1", "other"): 1,
    }
    # With room again the minute is the one on the clock.
    record(recorder)
    await recorder.flush()
    assert ("acc_1", FIRST_MINUTE + 1, "key_1", "ethereum/mainnet", "eth_call") in await minutes(database)


async def test_a_full_memory_does_not_blur_the_days(database: FaultyDatabase, clock: ManualClock) -> None:
    recorder = new_recorder(database, clock, max_series=1)
    record(recorder)
    clock.advance(86_400.0)
    record(recorder, method="getSlot")
    await recorder.flush()
    assert {slot[1]: numbers[0] for slot, numbers in (await days(database)).items()} == {DAY: 1, DAY + 1: 1}


async def test_what_has_no_room_at_all_is_dropped_counted_and_logged_once(
    database: FaultyDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.usage.recorder._log", log)
    registry = CollectorRegistry()
    recorder = new_recorder(database, clock, registry, max_series=5)
    for _ in range(2):
        for number in range(25):
            record(recorder, key_id=f"key_{number}")
        assert recorder.held == 10
        await recorder.flush()
    assert (await total(database))[0] == 20
    assert registry.get_sample_value("capstan_usage_dropped_requests_total") == 30
    assert [call.args[0] for call in log.calls] == ["usage.too_many_series"]


async def test_an_outage_of_a_day_holds_a_bounded_number_of_series(
    database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock, max_series=200)
    database.faults.extend(["before"] * 1_000)
    requests = 0
    for _ in range(600):
        for number in range(10):
            record(recorder, key_id=f"key_{number}")
            requests += 1
        assert not await recorder.flush()
        clock.advance(60.0)
    assert recorder.held <= 210
    database.faults.clear()
    assert await recorder.flush()
    assert await recorder.flush()
    assert (await total(database))[0] == requests


async def test_metrics_name_networks_and_methods_but_no_keys(database: FaultyDatabase, clock: ManualClock) -> None:
    registry = CollectorRegistry()
    recorder = new_recorder(database, clock, registry)
    record(recorder, units=4, failed=True)
    record(recorder, units=1, key_id="key_2", cached=True)
    record(recorder, method="nonsense")
    await recorder.flush()
    labels = {"network": "ethereum/mainnet", "method": "eth_call"}
    found = {
        name: registry.get_sample_value(f"capstan_usage_{name}_total", labels)
        for name in ("requests", "units", "errors", "cached", "seconds")
    }
    assert found == {"requests": 2, "units": 5, "errors": 1, "cached": 1, "seconds": 0.003}
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert not any("key_" in value or "acc_" in value for sample in samples for value in sample.labels.values())
    assert {sample.labels.get("method") for sample in samples} == {None, "eth_call", "other"}


async def test_the_number_of_metrics_is_bounded(
    database: FaultyDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.usage.writer._LABEL_SETS", 10)
    registry = CollectorRegistry()
    recorder = new_recorder(database, clock, registry)
    for number in range(50):
        record(recorder, network=f"chain-{number}/mainnet")
    await recorder.flush()
    (metric,) = [metric for metric in registry.collect() if metric.name == "capstan_usage_requests"]
    counted = {sample.labels["network"]: sample.value for sample in metric.samples if sample.name.endswith("_total")}
    assert len(counted) == 11
    assert counted["other"] == 40


async def test_a_batch_is_sent_in_transactions_of_bounded_size(
    database: FaultyDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.usage.writer._BATCH", 10)
    recorder = new_recorder(database, clock)
    for number in range(35):
        record(recorder, key_id=f"key_{number:02}")
    # The first of four is added but not confirmed, then fails once more: the others wait for it.
    database.faults.extend(["after", "before"])
    assert not await recorder.flush()
    assert (await total(database))[0] == 10
    assert not await recorder.flush()
    assert (await total(database))[0] == 10
    assert await recorder.flush()
    assert (await total(database))[0] == 35


async def test_the_task_writes_by_itself_and_close_writes_the_rest(
    database: FaultyDatabase, clock: ManualClock
) -> None:
    recorder = new_recorder(database, clock, flush_seconds=0.02)
    await recorder.start()
    record(recorder)
    async with asyncio.timeout(20):
        while (await total(database))[0] != 1:
            await asyncio.sleep(0.01)
    record(recorder)
    await recorder.close()
    assert (await total(database))[0] == 2


async def test_closing_sends_what_waited_and_what_came_after_it(database: FaultyDatabase, clock: ManualClock) -> None:
    recorder = new_recorder(database, clock)
    record(recorder)
    database.faults.append("before")
    assert not await recorder.flush()
    record(recorder)
    await recorder.close()
    assert (await total(database))[0] == 2


async def test_closing_without_a_database_says_what_is_lost(
    database: FaultyDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.usage.writer._log", log)
    recorder = new_recorder(database, clock)
    record(recorder)
    database.faults.extend(["before"] * 10)
    assert not await recorder.flush()
    record(recorder)
    record(recorder)
    await recorder.close()
    lost = [call.kwargs for call in log.calls if call.args[0] == "usage.counts_lost"]
    assert lost == [{"batches": 2, "requests": 3}]


async def test_a_defect_does_not_end_the_task(
    database: FaultyDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.usage.writer._log", log)
    recorder = new_recorder(database, clock, flush_seconds=0.02)
    ledger = recorder._writer._ledger
    broken = ledger._add_day
    ledger._add_day = "NO SUCH STATEMENT"
    record(recorder)
    await recorder.start()
    async with asyncio.timeout(20):
        while not log.calls:
            await asyncio.sleep(0.01)
    ledger._add_day = broken
    async with asyncio.timeout(20):
        while (await total(database))[0] != 1:
            await asyncio.sleep(0.01)
    await recorder.close()
    assert [call.args[0] for call in log.calls] == ["usage.database_away", "usage.database_back"]
