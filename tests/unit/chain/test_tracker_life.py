"""The tracker as a running thing: its rhythm, its subscribers, those who wait, stalled upstreams, sleep and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from capstan.chain.errors import UpstreamRefused
from capstan.chain.heads.headers import ChainChange
from capstan.chain.heads.metrics import HeadMetrics
from capstan.chain.heads.source import HeadOptions
from capstan.chain.heads.tracker import HeadTracker
from capstan.core.clock import SystemClock
from tests.support.head_nodes import HeadNode, Tracked, chain_of, evm_spec

MAIN = chain_of(1, 400)
QUICK = HeadOptions(fastest_interval=0.005, slowest_interval=0.01, startup_seconds=0.05, idle_interval=0.02)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def followers() -> list[asyncio.Task[None]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("head of")]


async def test_a_started_tracker_follows_and_a_stopped_one_leaves_nothing_behind() -> None:
    node = HeadNode("a", MAIN[:10])
    tracker = HeadTracker(evm_spec(), [node], SystemClock(), options=QUICK)
    tracker.start()
    for height in range(10, 30):
        node.blocks = MAIN[:height]
        assert await tracker.wait_for(height, 10) == height
    await tracker.stop()
    assert not followers()
    calls = len(node.calls)
    with pytest.raises(TimeoutError):
        await tracker.wait_for(31, 10)
    assert len(node.calls) == calls


async def test_an_upstream_that_stalls_for_good_delays_nobody() -> None:
    stalled, alive = HeadNode("stalled", MAIN[:10]), HeadNode("alive", MAIN[:10])
    stalled.stall()
    tracker = HeadTracker(evm_spec(), [stalled, alive], SystemClock(), options=QUICK)
    tracker.start()
    try:
        for height in range(10, 20):
            alive.blocks = MAIN[:height]
            assert await tracker.wait_for(height, 30) == height
        assert len(stalled.calls) == 1
    finally:
        await tracker.stop()
    assert not followers()


async def test_waiting_ends_with_the_time_limit_and_with_the_tracker() -> None:
    node = HeadNode("a", MAIN[:10])
    tracker = HeadTracker(evm_spec(), [node], SystemClock(), options=QUICK)
    tracker.start()
    await tracker.wait_for(5, 10)
    with pytest.raises(TimeoutError):
        await tracker.wait_for(11, 0.05)
    waiting = asyncio.create_task(tracker.wait_for(11, 60))
    await until(lambda: not tracker.idle, "the wait to begin")
    await tracker.stop()
    async with asyncio.timeout(30):
        with pytest.raises(TimeoutError):
            await waiting


async def test_upstreams_can_be_exchanged_while_it_runs() -> None:
    first, second = HeadNode("first", MAIN[:10]), HeadNode("second", MAIN[:10])
    tracker = HeadTracker(evm_spec(), [first], SystemClock(), options=QUICK)
    tracker.start()
    try:
        await tracker.wait_for(10, 10)
        tracker.update(tracker.spec, [second])
        second.blocks = MAIN[:12]
        first.blocks = MAIN[:20]
        assert await tracker.wait_for(12, 10) == 12
        await until(lambda: len(followers()) == 1, "the first to be left")
    finally:
        await tracker.stop()


async def test_a_mistake_in_our_own_code_does_not_end_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    node = HeadNode("a", MAIN[:10])
    tracker = HeadTracker(evm_spec(), [node], SystemClock(), options=QUICK)
    failures = 0

    def fail_twice(number: int) -> None:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise RuntimeError("not expected")

    monkeypatch.setattr(node, "note_head", fail_twice)
    tracker.start()
    try:
        await tracker.wait_for(10, 10)
        await until(lambda: failures >= 3, "further questions")
    finally:
        await tracker.stop()


async def test_subscribers_are_told_in_order_and_one_that_fails_harms_nobody() -> None:
    node = HeadNode("a", MAIN[:10])
    tracked = Tracked(node)
    seen: list[tuple[str, ChainChange]] = []

    def fail(_: ChainChange) -> None:
        raise RuntimeError("a subscriber's own mistake")

    tracked.tracker.subscribe(fail)
    end = tracked.tracker.subscribe(lambda change: seen.append(("first", change)))
    tracked.tracker.subscribe(lambda change: seen.append(("second", change)))
    await tracked.poll()
    end()
    end()
    node.blocks = MAIN[:11]
    await tracked.poll()
    one, two = ChainChange(applied=(MAIN[9],)), ChainChange(applied=(MAIN[10],))
    assert seen == [("first", one), ("second", one), ("second", two)]


# --- the rhythm


@pytest.mark.parametrize(
    ("block_time_ms", "usual", "when_due"),
    [(12_000, 4.0, 1.0), (2_000, 1.0, 0.2), (1_000, 0.5, 0.2), (250, 0.2, 0.2), (60_000, 4.0, 4.0)],
)
async def test_the_interval_follows_the_block_time(block_time_ms: int, usual: float, when_due: float) -> None:
    node = HeadNode("a", MAIN[:10])
    tracked = Tracked(node, spec=evm_spec(block_time_ms=block_time_ms))
    assert tracked.tracker.interval() == 0.25, "until the first head is known"
    await tracked.poll()
    assert tracked.tracker.interval() == pytest.approx(usual)
    tracked.clock.advance(block_time_ms / 1000 + 0.001)
    assert tracked.tracker.interval() == pytest.approx(when_due)
    tracked.clock.advance(block_time_ms / 1000)
    assert tracked.tracker.interval() == pytest.approx(usual), "a chain that has stopped"


async def test_an_upstream_is_asked_right_when_the_block_is_due() -> None:
    tracked = Tracked(HeadNode("a", MAIN[:10]), spec=evm_spec(block_time_ms=12_000))
    await tracked.poll()
    tracked.clock.advance(10.5)
    assert tracked.tracker.interval() == pytest.approx(1.5)


async def test_a_network_that_nobody_asks_about_is_asked_seldom_and_wakes_at_once() -> None:
    tracked = Tracked(HeadNode("a", MAIN[:10]))
    tracker = HeadTracker(evm_spec(), [HeadNode("a", MAIN[:10])], tracked.clock)
    await tracker.poll()
    assert tracker.interval() == 5.0
    tracker.touch()
    assert tracker.interval() < 1.0
    tracked.clock.advance(59)
    assert tracker.interval() < 1.0
    tracked.clock.advance(2)
    assert tracker.interval() == 5.0
    end = tracker.subscribe(lambda _: None, keep_awake=False)
    assert tracker.interval() == 5.0, "a cache does not keep it awake"
    end()
    tracker.subscribe(lambda _: None)
    tracked.clock.advance(1000)
    assert tracker.interval() < 1.0, "a follower does"


async def test_a_sleeping_tracker_asks_again_on_the_first_touch() -> None:
    node = HeadNode("a", MAIN[:10])
    options = HeadOptions(idle_interval=600.0, slowest_interval=600.0)
    tracker = HeadTracker(evm_spec(block_time_ms=1_200_000), [node], SystemClock(), options=options)
    tracker.start()
    try:
        await until(lambda: tracker.number == 10, "the first head")
        await until(lambda: tracker.asleep, "its sleep")
        node.blocks = MAIN[:11]
        tracker.touch()
        assert not tracker.asleep
        await until(lambda: tracker.number == 11, "the next head")
    finally:
        await tracker.stop()


async def test_an_idle_network_does_not_pay_for_wide_gaps() -> None:
    node = HeadNode("a", MAIN[:10])
    tracked = Tracked(node)
    tracker = HeadTracker(evm_spec(block_time_ms=250), [node], tracked.clock)
    await tracker.poll()
    tracker.interval()
    node.calls.clear()
    for height in range(30, 200, 20):
        node.blocks = MAIN[:height]
        tracked.clock.advance(5)
        await tracker.poll()
        assert tracker.number == height
        assert len(node.calls) == 1
        node.calls.clear()
    tracker.touch()
    node.blocks = MAIN[:210]
    await tracker.poll()
    assert tracker.chain is not None
    assert tracker.chain.hash_at(200) == MAIN[199].hash


async def test_an_upstream_that_turns_us_away_is_asked_ever_less() -> None:
    node = HeadNode("a", MAIN[:10])
    node.fault = UpstreamRefused("a", "HTTP status 429")
    tracker = HeadTracker(evm_spec(), [node], SystemClock(), options=QUICK)
    tracker.start()
    try:
        await until(lambda: len(node.calls) == 1, "the first question")
        with pytest.raises(TimeoutError):
            await tracker.wait_for(10, 0.3)
        assert len(node.calls) == 1
    finally:
        await tracker.stop()


# --- metrics


async def test_heads_lag_reorganisations_and_age_are_measured() -> None:
    registry = CollectorRegistry()
    ahead, behind = HeadNode("ahead", MAIN[:100]), HeadNode("behind", MAIN[:97])
    tracked = Tracked(ahead, behind, metrics=HeadMetrics(registry))
    network = {"network": "ethereum/devnet"}
    await tracked.poll(after=2.0)
    behind.fail()
    ahead.reorganise(98, chain_of(99, 4, branch=1, on=MAIN[97]))
    await tracked.poll()
    tracked.clock.advance(7)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {**network, **labels})

    assert value("capstan_head_number") == 102
    assert value("capstan_head_age_seconds") == 7
    assert value("capstan_head_upstream_lag_blocks", upstream="ahead") == 0
    assert value("capstan_head_upstream_lag_blocks", upstream="behind") == 5
    assert value("capstan_head_poll_failures_total", upstream="behind") == 1
    assert value("capstan_head_reorg_depth_count") == 1
    assert value("capstan_head_reorg_depth_sum") == 2
    tracked.tracker.update(tracked.tracker.spec, [ahead])
    assert value("capstan_head_upstream_lag_blocks", upstream="behind") is None
    await tracked.tracker.stop()
    assert value("capstan_head_number") is None
    assert value("capstan_head_age_seconds") is None
