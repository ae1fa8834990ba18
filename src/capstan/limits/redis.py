"""The limiter shared by many processes: windows in Redis, days in the ledger.

Every decision about a window is one run of `windows.lua`, which reads the Redis server's clock, so processes on
machines with different clocks share one exact limit. Keys carry the subject as hash tag and so stay together on Redis
Cluster. Works with Redis and Valkey. The server uses it where a Redis address is configured. It must not close the
client, which belongs to whoever made it.

While Redis is away or slow, each process decides by itself with the memory limiter, at once: the first call that fails
opens a breaker, and one task asks Redis from time to time until it answers. This process's own admissions are always
counted in memory too, so the change-over does not begin with empty windows, and a window which this process alone has
filled is refused without asking Redis.
"""

import asyncio
import math
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from capstan.core.clock import Clock
from capstan.limits.batch import RedisAway, ScriptBatcher
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import (
    REQUESTS_PER_DAY,
    REQUESTS_PER_SECOND,
    UNITS_PER_SECOND,
    Decision,
    Limits,
    check_cost,
    never_fits,
)

_SCRIPT = Path(__file__).with_name("windows.lua").read_text(encoding="utf-8")
_MICROSECONDS = 1_000_000
# Stamps from Redis are microseconds since 1970, those of the memory limiter seconds since the machine started.
_REDIS_STAMPS = 1e12

_log = structlog.get_logger(__name__)


def connect(url: str, *, cluster: bool, connect_timeout: float, command_timeout: float) -> "Redis | RedisCluster":
    """A client that fails fast: no retries of its own, since the limiter has something better to do than to wait."""
    retry = Retry(NoBackoff(), 0)
    if cluster:
        return RedisCluster.from_url(
            url, socket_connect_timeout=connect_timeout, socket_timeout=command_timeout, retry=retry, protocol=2
        )
    return Redis.from_url(
        url, socket_connect_timeout=connect_timeout, socket_timeout=command_timeout, retry=retry, protocol=2
    )


class RedisLimiter:
    """Exact limits over all processes that share a Redis. The client stays the caller's to close."""

    def __init__(
        self,
        client: "Redis | RedisCluster",
        clock: Clock,
        ledger: DayLedger,
        registry: CollectorRegistry,
        *,
        prefix: str = "capstan:limits:",
        timeout_seconds: float = 0.25,
        retry_seconds: float = 1.0,
    ) -> None:
        self._ledger = ledger
        self._local = MemoryLimiter(clock, ledger)
        self._batcher = ScriptBatcher(client, _SCRIPT, timeout_seconds)
        self._prefix = prefix
        self._retry_seconds = retry_seconds
        self._up = True
        self._down = asyncio.Event()
        self._failed_subject = "probe"
        self._task: asyncio.Task[None] | None = None
        self._up_gauge = Gauge("capstan_limits_redis_up", "1 while limits are counted in Redis.", registry=registry)
        self._up_gauge.set(1)
        self._local_decisions = Counter(
            "capstan_limits_local_decisions",
            "Decisions made by this process alone because Redis was away.",
            registry=registry,
        )

    def take_now(self, subject: str, limits: Limits, requests: int = 1, units: int = 1) -> Decision | None:
        """Decide what needs no Redis: no per-second limit, a limit known to be used up, or Redis away."""
        if requests < 1 or units < 0:
            check_cost(requests, units)
        windowed = limits.requests_per_second > 0 or limits.units_per_second > 0
        if not windowed or not self._up:
            decision = self._local.take_now(subject, limits, requests=requests, units=units)
            if windowed and decision is not None:
                self._local_decisions.inc()
            return decision
        if never_fits(limits, requests, units) or not requests:
            return None
        if limits.requests_per_day and self._ledger.is_spent(subject, limits.requests_per_day, requests):
            return self._local.refuse(subject, limits, REQUESTS_PER_DAY, requests, units)
        if self._local.is_full(subject, limits):
            # Then all there is in the window is this process's own, and Redis would say the same.
            return self._local.refuse(subject, limits, REQUESTS_PER_SECOND, requests, units)
        return None

    async def take(self, subject: str, limits: Limits, *, requests: int = 1, units: int = 1) -> Decision:
        """Decide, asking Redis and the ledger."""
        decision = self.take_now(subject, limits, requests=requests, units=units)
        if decision is not None:
            return decision
        if not self._up or not (limits.requests_per_second or limits.units_per_second):
            return await self._take_local(subject, limits, requests, units)
        reason = never_fits(limits, requests, units)
        if reason:
            figures = await self.peek(subject, limits)
            return Decision(False, figures.limit, figures.remaining, figures.reset, 1, reason, True)
        if not requests and not units:
            return await self.peek(subject, limits)
        day = 0
        if limits.requests_per_day and requests:
            day = await self._ledger.hold(subject, limits.requests_per_day, requests)
            if not day:
                return self._local.refuse(subject, limits, REQUESTS_PER_DAY, requests, units)
        return await self._take_held(subject, limits, requests, units, day)

    async def peek(self, subject: str, limits: Limits) -> Decision:
        """The figures for a response that used nothing."""
        if not self._up or not limits.requests_per_second:
            return await self._local.peek(subject, limits)
        try:
            _, used, last, _ = await self._ask(subject, (0, 0, 0, 0, 0, 0))
        except RedisAway:
            return await self._local.peek(subject, limits)
        limit = limits.requests_per_second
        return Decision(True, limit, max(0, limit - used), _reset(last), 0, "")

    async def refund(self, subject: str, limits: Limits, *, units: int, stamp: float = 0.0) -> None:
        """Give back units. Lost when Redis is away: by then they have all but left the window."""
        check_cost(0, units)
        if 0 < stamp < _REDIS_STAMPS or (not stamp and not self._up):
            await self._local.refund(subject, limits, units=units, stamp=stamp)
        elif self._up and units:
            try:
                await self._ask(subject, (0, 0, 0, 0, units, int(stamp)))
            except RedisAway:
                return

    async def start(self) -> None:
        """Ask Redis once, so that the first request knows whether it is there, and begin background work."""
        await self._ledger.start()
        if self._task is None:
            await self._probe()
            self._task = asyncio.create_task(self._watch(), name="limits-redis-watch")

    async def close(self) -> None:
        """Stop, and give back unused day reservations."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._batcher.close()
        await self._ledger.close()

    async def _take_held(self, subject: str, limits: Limits, requests: int, units: int, day: int) -> Decision:
        """Decide by the windows, with requests of `day` already held in the ledger, and end that hold."""
        if not self._up:
            self._local_decisions.inc()
            return self._local.take_held(subject, limits, requests, units, day)
        per_second, per_day, budget = limits.requests_per_second, limits.requests_per_day, limits.units_per_second
        try:
            verdict, used, last, now = await self._ask(subject, (requests, units, per_second, budget, 0, 0))
        except RedisAway:
            self._local_decisions.inc()
            return self._local.take_held(subject, limits, requests, units, day)
        except asyncio.CancelledError:
            if day:
                self._ledger.settle(subject, day, requests, used=False)
            raise
        if day:
            self._ledger.settle(subject, day, requests, used=not verdict)
        remaining = max(0, per_second - used)
        reset = _reset(last) if per_second else math.ceil(now / _MICROSECONDS)
        if not verdict:
            self._local.remember(subject, limits, requests, units)
            return Decision(True, per_second, remaining, reset, 0, "", False, float(now))
        wait, reason = 1, REQUESTS_PER_SECOND if verdict == 1 else UNITS_PER_SECOND
        if per_day and requests:
            wait, reason = self._local.longest_wait(subject, limits, reason, requests)
        return Decision(False, per_second, remaining, reset, wait, reason)

    async def _take_local(self, subject: str, limits: Limits, requests: int, units: int) -> Decision:
        """Decide without Redis, waiting for the ledger."""
        if limits.requests_per_second or limits.units_per_second:
            self._local_decisions.inc()
        return await self._local.take(subject, limits, requests=requests, units=units)

    async def _ask(self, subject: str, arguments: tuple[int, ...]) -> list[int]:
        try:
            return await self._batcher.call(self._keys(subject), arguments)
        except RedisAway as error:
            self._went_away(subject, error)
            raise

    async def _probe(self) -> None:
        """Ask for the windows of the subject that failed: on a cluster, that is the node which must be back."""
        try:
            await self._batcher.call_alone(self._keys(self._failed_subject), (0, 0, 0, 0, 0, 0))
        except RedisAway as error:
            self._went_away(self._failed_subject, error)
            return
        if not self._up:
            self._up = True
            self._down.clear()
            self._up_gauge.set(1)
            _log.info("limits.redis_back")

    async def _watch(self) -> None:
        while True:
            await self._down.wait()
            await asyncio.sleep(self._retry_seconds)
            await self._probe()

    def _went_away(self, subject: str, error: RedisAway) -> None:
        if self._up:
            self._up = False
            self._failed_subject = subject
            self._down.set()
            # Those who wait for a pipeline would only learn the same, later.
            self._batcher.refuse_waiting(error)
            self._up_gauge.set(0)
            _log.warning("limits.redis_away", why=str(error), consequence="each process counts limits by itself")

    def _keys(self, subject: str) -> tuple[str, str]:
        tagged = f"{self._prefix}{{{subject}}}"
        return f"{tagged}:events", f"{tagged}:sums"


def _reset(last: int) -> int:
    """The Unix second at which an admission at `last` has left the window."""
    return -(-(last + _MICROSECONDS) // _MICROSECONDS)
