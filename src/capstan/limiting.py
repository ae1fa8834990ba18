"""Builds the counters of the limits, in memory or in Redis, and notices whether this process is alone.

Called by the composition root, of which it is a part: it names concrete classes and connects them.
"""

from contextlib import AsyncExitStack

import structlog
from prometheus_client import CollectorRegistry

from capstan.core.clock import Clock
from capstan.core.ids import new_id
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import RateLimiter
from capstan.limits.redis import RedisLimiter, connect
from capstan.limits.store import DayStore
from capstan.settings import Settings
from capstan.storage.database import Database
from capstan.storage.presence import alone
from capstan.stream.lease import LeaseStore

log = structlog.get_logger(__name__)


async def build_limiter(
    settings: Settings, database: Database, clock: Clock, metrics: CollectorRegistry, stack: AsyncExitStack
) -> RateLimiter:
    """The limiter, not started yet."""
    is_alone = database.file is not None and stack.enter_context(alone(database.file))
    if is_alone:
        # Whoever held a lease on this file is dead; nobody needs to wait until it has run out.
        await LeaseStore(database, new_id("proc"), clock).release_all()
    ledger = DayLedger(DayStore(database), clock, metrics, share=settings.limits.day_reservation_share)
    if not settings.redis.url:
        if database.file is not None and not is_alone:
            log.warning("limits_not_shared", reason="another process serves this database; set redis.url")
        return MemoryLimiter(clock, ledger)
    client = connect(
        settings.redis.url,
        cluster=settings.redis.cluster,
        connect_timeout=settings.redis.connect_timeout_seconds,
        command_timeout=settings.redis.command_timeout_seconds,
    )
    stack.push_async_callback(client.aclose)
    return RedisLimiter(
        client,
        clock,
        ledger,
        metrics,
        timeout_seconds=settings.redis.command_timeout_seconds,
        retry_seconds=settings.redis.retry_seconds,
    )
