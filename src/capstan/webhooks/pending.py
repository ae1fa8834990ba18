"""Watches the mempool of one network for the webhooks that want it.

Subscribes to the follower's pending transactions while there is such a webhook, and writes what matches in small
batches. What upstreams tell of their mempools is all there is: nobody can promise that every transaction is seen.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from capstan.chain.follower.models import PendingTransaction
from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.webhooks.kinds import Family
from capstan.webhooks.matching import Draft, match_pending
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.subscriptions import Subscriptions

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.5
_BATCH_SECONDS = 0.05
_MOST_WAITING = 10_000

Subscribe = Callable[[Callable[[PendingTransaction], None]], Callable[[], None]]


class PendingWatcher:
    """The mempool of one network. Construct, `start`, and `close` at the end."""

    def __init__(
        self,
        database: Database,
        subscriptions: Subscriptions,
        outbox: Outbox,
        clock: Clock,
        *,
        subscribe: Subscribe,
        written: Callable[[], None],
    ) -> None:
        self._database = database
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._clock = clock
        self._subscribe = subscribe
        self._written = written
        self._unsubscribe: Callable[[], None] | None = None
        self._waiting: list[Draft] = []
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="webhooks of the mempool")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
                await self._write()
            except StorageError as error:
                log.warning("webhooks.storage_unavailable", reason=str(error))
            try:
                await asyncio.wait_for(self._some.wait(), _LOOK_SECONDS)
            except TimeoutError:
                continue
            await asyncio.sleep(_BATCH_SECONDS)

    async def _look(self) -> None:
        """Follow the mempool exactly while somebody wants it."""
        async with self._database.read() as connection:
            await self._subscriptions.refresh(connection)
        wanted = self._subscriptions.wants(Family.PENDING)
        if wanted and self._unsubscribe is None:
            self._unsubscribe = self._subscribe(self._told)
        elif not wanted:
            self._stop()

    def _stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _told(self, pending: PendingTransaction) -> None:
        if pending.transaction is None:
            return
        try:
            drafts = match_pending(self._subscriptions, pending.transaction, self._clock.now())
        except (msgspec.MsgspecError, ValueError) as error:
            log.info("webhooks.pending_not_read", reason=str(error)[:200])
            return
        if not drafts:
            return
        if len(self._waiting) >= _MOST_WAITING:
            log.warning("webhooks.pending_dropped", count=len(drafts))
            return
        self._waiting += drafts
        self._some.set()

    async def _write(self) -> None:
        self._some.clear()
        drafts, self._waiting = self._waiting, []
        if not drafts:
            return
        try:
            async with self._database.write() as connection:
                await self._outbox.add_pending(connection, drafts)
        except StorageError:
            self._waiting = [*drafts, *self._waiting][:_MOST_WAITING]
            raise
        self._written()
