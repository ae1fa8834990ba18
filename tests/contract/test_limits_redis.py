"""What only the Redis limiter promises: one limit over many processes, and answers while Redis is away."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import CapturingLogger

from capstan.core.clock import SystemClock
from capstan.limits.batch import ScriptBatcher
from capstan.limits.day import DayLedger
from capstan.limits.models import REQUESTS_PER_SECOND, Decision, Limits
from capstan.limits.redis import RedisLimiter, connect
from tests.support.forks import run_module
from tests.support.servers import ValkeyCluster, ValkeyProcess
from tests.unit.limits.parts import NoStore, most_in_a_second, take

MICROSECONDS = 1e6


class Shared:
    """A limiter on a server of the test's choice, with its metrics and a client to look behind it."""

    def __init__(self, url: str, *, cluster: bool = False, timeout_seconds: float = 5.0) -> None:
        self.registry = CollectorRegistry()
        self.client = connect(url, cluster=cluster, connect_timeout=2.0, command_timeout=5.0)
        clock = SystemClock()
        self.limiter = RedisLimiter(
            self.client,
            clock,
            # No test here has a day limit, so the ledger is never started and its database never asked.
            DayLedger(NoStore(), clock, self.registry),
            self.registry,
            timeout_seconds=timeout_seconds,
            retry_seconds=0.05,
        )
        self.subject = f"acc_{secrets.token_hex(8)}"

    @property
    def raw(self) -> Any:
        """The client, for commands whose answers redis-py types loosely."""
        return self.client

    def key(self, name: str) -> str:
        return f"capstan:limits:{{{self.subject}}}:{name}"

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"capstan_limits_{name}")

    async def take(self, limits: Limits, *, requests: int = 1, units: int = 1) -> Decision:
        return await take(self.limiter, self.subject, limits, requests=requests, units=units)

    async def start(self) -> None:
        """Begin as `RedisLimiter.start` does, without the ledger."""
        await self.limiter._probe()
        self.limiter._task = asyncio.create_task(self.limiter._watch())

    async def close(self) -> None:
        await self.limiter.close()
        await self.client.aclose()


@pytest.fixture
async def shared(valkey_url: str) -> AsyncIterator[Shared]:
    found = Shared(valkey_url)
    await found.start()
    yield found
    await found.close()


async def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.01)


async def test_processes_share_one_limit_and_never_pass_it(valkey_url: str) -> None:
    subject = f"acc_{secrets.token_hex(8)}"
    arguments = ("redis", valkey_url, subject, "60", "140", "3")
    work = partial(run_module, "tests.unit.limits.worker", *arguments, seconds=60)
    counts = [json.loads(done.stdout) for done in await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))]
    admitted = [tuple(entry) for count in counts for entry in count]
    assert all(counts), "every process must have had its share"
    requests = most_in_a_second(((stamp, requests) for stamp, requests, _ in admitted), MICROSECONDS)
    units = most_in_a_second(((stamp, units) for stamp, _, units in admitted), MICROSECONDS)
    assert requests <= 60
    assert units <= 140
    # They asked all the time, so one limit or the other was reached, not only kept.
    assert requests >= 57 or units >= 133


async def test_calls_of_one_moment_travel_together(shared: Shared) -> None:
    limits = Limits(100_000, 0, 0)
    await shared.take(limits)
    before = (await shared.raw.info("stats"))["total_reads_processed"]
    decisions = await asyncio.gather(*(shared.take(limits) for _ in range(500)))
    after = (await shared.raw.info("stats"))["total_reads_processed"]
    assert all(decision.allowed for decision in decisions)
    # A pipeline of 256 calls is larger than one read of the server, so a few reads each.
    assert after - before <= 50


async def test_a_server_that_lost_the_script_gets_it_again(shared: Shared) -> None:
    limits = Limits(10, 0, 0)
    for expected in range(9, 4, -1):
        await shared.raw.script_flush()
        decision = await shared.take(limits)
        assert (decision.allowed, decision.remaining) == (True, expected)
    assert shared.metric("local_decisions_total") == 0.0


async def test_keys_vanish_when_the_window_is_empty(shared: Shared) -> None:
    limits = Limits(2, 0, 0)
    assert (await shared.take(limits)).allowed
    assert 0 < await shared.raw.pttl(shared.key("events")) <= 1_100
    assert 0 < await shared.raw.pttl(shared.key("sums")) <= 1_100
    deadline = time.monotonic() + 10.0
    while await shared.raw.exists(shared.key("events"), shared.key("sums")):
        assert time.monotonic() < deadline
        await shared.limiter.peek(shared.subject, limits)
        await asyncio.sleep(0.02)


async def test_sums_that_were_evicted_are_counted_again(shared: Shared) -> None:
    limits = Limits(5, 0, 100)
    for _ in range(5):
        assert (await shared.take(limits, units=10)).allowed
    await shared.raw.delete(shared.key("sums"))
    seen = await shared.limiter.peek(shared.subject, limits)
    assert (seen.remaining, await shared.raw.hget(shared.key("sums"), "u")) == (0, b"50")


async def test_a_server_clock_that_was_set_back_neither_opens_nor_blocks_the_window(shared: Shared) -> None:
    limits = Limits(5, 0, 0)
    seconds, _ = await shared.raw.time()
    # As if five requests had been admitted, and the clock set back by an hour since.
    ahead = (seconds + 3_600) * 1_000_000
    await shared.raw.rpush(shared.key("events"), f"{ahead}:5:0")
    await shared.raw.hset(shared.key("sums"), mapping={"r": 5, "u": 0, "b": ahead})
    refused = await shared.take(limits)
    assert (refused.allowed, refused.retry_after) == (False, 1)
    await asyncio.sleep(refused.retry_after)
    assert (await shared.take(limits)).allowed


async def test_a_large_limit_keeps_a_short_list(shared: Shared) -> None:
    limits = Limits(1_000_000, 0, 0)
    # Merging begins after a thousand entries and gathers what comes within a millisecond.
    await asyncio.gather(*(shared.take(limits) for _ in range(6_000)))
    assert await shared.raw.llen(shared.key("events")) <= 2_100


async def test_a_window_this_process_filled_is_refused_without_redis(shared: Shared) -> None:
    limits = Limits(5, 0, 0)
    decisions = [await shared.take(limits) for _ in range(5)]
    at_once = shared.limiter.take_now(shared.subject, limits)
    if time.time() - decisions[0].stamp / MICROSECONDS < 0.9:
        assert at_once is not None
        assert (at_once.allowed, at_once.reason, at_once.remaining) == (False, REQUESTS_PER_SECOND, 0)


async def test_a_killed_redis_does_not_stop_answers_and_is_used_again(
    valkey_server: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("capstan.limits.redis._log", log)
    shared = Shared(valkey_server.url)
    await shared.start()
    limits = Limits(1_000_000, 0, 0)
    decisions: list[Decision] = []
    running = True

    async def load() -> None:
        while running:
            decisions.append(await shared.take(limits))
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(load()) for _ in range(10)]
    await _until(lambda: len(decisions) > 100)
    assert (shared.metric("redis_up"), shared.metric("local_decisions_total")) == (1.0, 0.0)
    valkey_server.kill()
    await _until(lambda: shared.metric("redis_up") == 0.0)
    before = len(decisions)
    await _until(lambda: len(decisions) > before + 500)
    assert (shared.metric("local_decisions_total") or 0) >= 500
    await asyncio.to_thread(valkey_server.start)
    await _until(lambda: shared.metric("redis_up") == 1.0)
    before = len(decisions)
    await _until(lambda: len(decisions) > before + 100)
    running = False
    await asyncio.gather(*tasks)
    assert all(decision.allowed for decision in decisions)
    # The stamps of Redis are microseconds since 1970, those of this process are not.
    assert decisions[-1].stamp > 1e12
    assert [call.args[0] for call in log.calls] == ["limits.redis_away", "limits.redis_back"]
    await shared.close()


async def test_a_hanging_redis_delays_only_those_already_waiting(valkey_server: ValkeyProcess) -> None:
    shared = Shared(valkey_server.url, timeout_seconds=0.5)
    await shared.start()
    limits = Limits(10, 0, 0)
    assert (await shared.take(limits)).allowed
    valkey_server.freeze()
    began = time.monotonic()
    waiting = await asyncio.gather(*(shared.take(limits) for _ in range(20)))
    # One after the other they would wait for ten seconds.
    assert time.monotonic() - began < 9.0
    # The one that Redis admitted is counted here too: nine are left of the ten.
    assert sum(decision.allowed for decision in waiting) in {9, 10}
    assert shared.metric("redis_up") == 0.0
    for _ in range(100):
        assert shared.limiter.take_now(shared.subject, limits) is not None
    valkey_server.resume()
    await _until(lambda: shared.metric("redis_up") == 1.0)
    assert (await shared.limiter.peek(shared.subject, limits)).limit == 10
    await shared.close()


async def test_a_hanging_redis_is_asked_no_more_once_that_is_known(
    valkey_server: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines = 0
    execute = ScriptBatcher._execute

    async def counted(batcher: ScriptBatcher, calls: Any) -> None:
        nonlocal pipelines
        pipelines += 1
        await execute(batcher, calls)

    monkeypatch.setattr(ScriptBatcher, "_execute", counted)
    shared = Shared(valkey_server.url, timeout_seconds=0.5)
    await shared.start()
    valkey_server.freeze()
    decisions = await asyncio.gather(*(shared.take(Limits(100_000, 0, 0)) for _ in range(3_000)))
    assert all(decision.allowed for decision in decisions)
    # Three thousand calls are twelve pipelines, of which four may be under way. The rest must not be tried in vain.
    assert pipelines == 4
    await shared.close()


async def test_the_limit_of_this_process_holds_while_redis_is_away(valkey_server: ValkeyProcess) -> None:
    shared = Shared(valkey_server.url)
    await shared.start()
    valkey_server.kill()
    limits = Limits(10, 0, 100)
    admitted: list[tuple[float, int]] = []
    end = time.monotonic() + 2.2
    while time.monotonic() < end:
        decision = await shared.take(limits)
        if decision.allowed:
            admitted.append((decision.stamp, 1))
        await asyncio.sleep(0.005)
    assert most_in_a_second(admitted) <= 10
    assert len(admitted) >= 20
    await shared.close()


async def test_a_service_that_starts_before_redis_finds_it(tmp_path: Path) -> None:
    server = ValkeyProcess(tmp_path)
    server.start()
    server.kill()
    shared = Shared(server.url)
    await shared.start()
    limits = Limits(10, 0, 0)
    assert shared.metric("redis_up") == 0.0
    assert (await shared.take(limits)).allowed
    server.start()
    await _until(lambda: shared.metric("redis_up") == 1.0)
    assert (await shared.take(limits)).stamp > 1e12
    await shared.close()
    server.stop()


async def test_a_cluster_node_that_died_is_used_again(tmp_path: Path) -> None:
    cluster = ValkeyCluster(tmp_path)
    cluster.start()
    shared = Shared(cluster.url, cluster=True)
    await shared.start()
    limits = Limits(1_000, 0, 0)
    subjects = [f"acc_{number}" for number in range(40)]

    async def ask_all() -> list[Decision]:
        return list(await asyncio.gather(*(take(shared.limiter, subject, limits) for subject in subjects)))

    assert all(decision.stamp > 1e12 for decision in await ask_all())
    cluster.nodes[1].kill()
    assert all(decision.allowed for decision in await ask_all())
    assert shared.metric("redis_up") == 0.0
    await asyncio.to_thread(cluster.nodes[1].start)
    await _until(lambda: shared.metric("redis_up") == 1.0, seconds=40.0)
    assert all(decision.stamp > 1e12 for decision in await ask_all())
    await shared.close()
    cluster.stop()


async def test_closing_answers_those_who_wait(valkey_server: ValkeyProcess) -> None:
    shared = Shared(valkey_server.url, timeout_seconds=1.0)
    await shared.start()
    valkey_server.freeze()
    waiting = [asyncio.create_task(shared.take(Limits(10, 0, 0))) for _ in range(5)]
    await asyncio.sleep(0)
    await shared.close()
    assert all(decision.allowed for decision in await asyncio.gather(*waiting))


async def test_the_client_of_the_factory_does_not_retry(tmp_path: Path) -> None:
    server = ValkeyProcess(tmp_path)
    server.start()
    server.kill()
    client = connect(server.url, cluster=False, connect_timeout=1.0, command_timeout=1.0)
    assert isinstance(client, Redis)
    began = time.monotonic()
    with pytest.raises(RedisConnectionError):
        await client.get("x")
    assert time.monotonic() - began < 10.0
    await client.aclose()
