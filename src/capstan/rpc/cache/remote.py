"""The second tier in Redis: final answers shared by several processes.

Used by `gateway` in a cluster. Values expire by themselves and the server evicts by its own policy, so there is nothing
to tidy up. Writes are queued and bounded; reads have a short limit. Any failure is a miss. After one, Redis is left
alone for a moment, so that a server that is away does not slow down every call.
"""

import asyncio
from typing import Any

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter
from redis.exceptions import RedisError

from capstan.core.clock import Clock
from capstan.rpc.cache.persistent import digest_of

log = structlog.get_logger(__name__)

_MEBIBYTE = 1024 * 1024


class RemoteLimits(msgspec.Struct, frozen=True):
    """The bounds of values, queue and waits."""

    max_value_bytes: int = _MEBIBYTE
    max_queued_bytes: int = 16 * _MEBIBYTE
    max_queued: int = 4096
    # Written together in one round trip.
    batch: int = 128
    expire_seconds: int = 7 * 86_400
    read_seconds: float = 0.1
    write_seconds: float = 2.0
    rest_seconds: float = 5.0


class RemoteTier:
    """Answers in Redis. `client` is an asyncio client, plain or of a cluster; it is not closed here."""

    def __init__(
        self,
        client: Any,
        clock: Clock,
        *,
        prefix: bytes = b"capstan:rpc:",
        limits: RemoteLimits | None = None,
        registry: CollectorRegistry | None = None,
    ):
        self._client = client
        self._clock = clock
        self._prefix = prefix
        self._limits = limits or RemoteLimits()
        self._queue: dict[bytes, bytes] = {}
        self._queued_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._rests_until = 0.0
        self._left_out = 0
        self._events = Counter(
            "capstan_rpc_cache_redis",
            "Questions to the cache in Redis: hit, miss, or failed, which is a miss too; and answers left out.",
            ("event",),
            registry=registry if registry is not None else CollectorRegistry(),
        )

    @property
    def left_out(self) -> int:
        """How many answers did not fit into the queue or could not be written."""
        return self._left_out

    def may_have(self, key: bytes) -> bool:
        """Whether asking is worth it: unless Redis has just failed."""
        return self._clock.monotonic() >= self._rests_until

    async def get(self, key: bytes) -> bytes | None:
        """The answer, or None."""
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                value = await self._client.get(self._prefix + digest_of(key))
        except (RedisError, OSError, TimeoutError) as error:
            self._events.labels("failed").inc()
            self._rest(error)
            return None
        found = value if isinstance(value, bytes) else None
        self._events.labels("miss" if found is None else "hit").inc()
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Keep an answer, soon."""
        limits = self._limits
        if len(value) > limits.max_value_bytes or not self.may_have(key):
            return
        if len(self._queue) >= limits.max_queued or self._queued_bytes + len(value) > limits.max_queued_bytes:
            self._leave_out(1)
            return
        digest = digest_of(key)
        if digest not in self._queue:
            self._queue[digest] = value
            self._queued_bytes += len(value)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self.flush())

    async def flush(self) -> None:
        """Write what is queued now."""
        while self._queue:
            batch = [self._take() for _ in range(min(self._limits.batch, len(self._queue)))]
            try:
                async with asyncio.timeout(self._limits.write_seconds):
                    pipeline = self._client.pipeline(transaction=False)
                    for digest, value in batch:
                        pipeline.set(self._prefix + digest, value, ex=self._limits.expire_seconds)
                    await pipeline.execute()
            except (RedisError, OSError, TimeoutError) as error:
                self._leave_out(len(batch))
                self._rest(error)

    async def close(self) -> None:
        """Write what is queued and stop."""
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await self.flush()

    def _leave_out(self, count: int) -> None:
        self._left_out += count
        self._events.labels("left_out").inc(count)

    def _take(self) -> tuple[bytes, bytes]:
        digest, value = self._queue.popitem()
        self._queued_bytes -= len(value)
        return digest, value

    def _rest(self, error: Exception) -> None:
        if self._clock.monotonic() >= self._rests_until:
            log.warning("rpc_cache.redis_failed", error=type(error).__name__)
        self._rests_until = self._clock.monotonic() + self._limits.rest_seconds
        # What waits would fail as well, one time limit after another.
        self._leave_out(len(self._queue))
        self._queue.clear()
        self._queued_bytes = 0
