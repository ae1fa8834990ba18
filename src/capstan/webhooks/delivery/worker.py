"""Delivers events: claims what is due, sends it, and writes down what came of it.

One of these runs in each process that delivers. First attempts of a webhook are made one after the other, in the order
of its events; retries come on their own schedule and wait for nobody. What is killed between sending and writing is
sent again under the same id. Results of many attempts are written in one transaction.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from capstan.core.clock import Clock
from capstan.storage.errors import StorageError
from capstan.webhooks.delivery.hosts import Hosts
from capstan.webhooks.delivery.lookups import Lookups
from capstan.webhooks.delivery.metrics import DeliveryMetrics
from capstan.webhooks.delivery.models import DueEvent, Lane, Outcome, Release, Result, Target
from capstan.webhooks.delivery.sender import Sender
from capstan.webhooks.delivery.store import DeliveryStore
from capstan.webhooks.kinds import Format
from capstan.webhooks.retries import next_delay
from capstan.webhooks.store import NEVER

log = structlog.get_logger(__name__)

_MICROSECONDS = 1_000_000
# How long the claim of a lane lasts. Those that are still worked on are renewed in time; those of a process that died
# are another one's soon after.
_CLAIM_SECONDS = 12.0
_RENEW_SECONDS = 4.0
# How long the claim of a retry lasts, which is not renewed: longer than one attempt can take.
_RETRY_SECONDS = 60.0
_MOST_UNWRITTEN = 4_096
_GATHER_SECONDS = 0.01
_PAUSE_SECONDS = 1.0
_HOUSEKEEPING_SECONDS = 5.0
_PURGE_SECONDS = 600.0
_DAY = 86_400


class DeliveryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How deliveries are made; from the settings."""

    delays: Mapping[Format, Sequence[float]]
    concurrency: int
    poll_seconds: float
    keep_days: int


class Deliverer:
    """Construct with the event loop running, `start`, and `close` at the end."""

    def __init__(
        self,
        store: DeliveryStore,
        sender: Sender,
        hosts: Hosts,
        lookups: Lookups,
        clock: Clock,
        options: DeliveryOptions,
        metrics: DeliveryMetrics | None = None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._hosts = hosts
        self._lookups = lookups
        self._clock = clock
        self._options = options
        self._metrics = metrics or DeliveryMetrics()
        self._wake = asyncio.Event()
        self._unwritten: asyncio.Queue[Result | Release] = asyncio.Queue(_MOST_UNWRITTEN)
        # What was taken from there and is not written yet. Written once more when it was and nobody knows.
        self._taken: list[Result | Release] = []
        # The lanes that are worked on, and those whose webhook has changed since.
        self._lanes: dict[str, int] = {}
        self._changed: set[str] = set()
        # Until when each lane is surely this process's own: one that was paused must not go on where it stood.
        self._ends: dict[str, float] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        for name, work in (
            ("claims", self._claims),
            ("results", self._results),
            ("renewals", self._renewals),
            ("housekeeping", self._housekeeping),
        ):
            self._tasks.append(asyncio.create_task(self._forever(work), name=f"webhook {name}"))

    async def close(self) -> None:
        """Stop. What is under way is sent again by the next process."""
        tasks = [*self._tasks, *self._working]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StorageError):
            await self._flush()

    def wake(self) -> None:
        """There may be something to deliver."""
        self._wake.set()

    def changed(self, webhook_id: str) -> None:
        """A webhook was changed: what it was claimed with no longer counts."""
        if webhook_id in self._lanes:
            self._changed.add(webhook_id)
        self._wake.set()

    # --- claiming

    async def _claims(self) -> None:
        self._wake.clear()
        now = self._now()
        until, retry_until = (now + int(each * _MICROSECONDS) for each in (_CLAIM_SECONDS, _RETRY_SECONDS))
        ends = self._clock.monotonic() + _CLAIM_SECONDS
        room = self._options.concurrency - len(self._working)
        claimed = 0
        if room > 0:
            for target, event in await self._store.claim_retries(now, retry_until, most=room):
                self._begin(self._retry(target, event))
                claimed += 1
        room = self._options.concurrency - len(self._working)
        if room > 0 and await self._store.any_due(now):
            for lane in await self._store.claim(now, until, lanes=room):
                self._lanes[lane.target.webhook_id] = lane.token
                self._ends[lane.target.webhook_id] = ends
                self._begin(self._lane(lane))
                claimed += 1
        if not claimed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._options.poll_seconds)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._working.add(task)
        self._metrics.working(len(self._working))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self._metrics.working(len(self._working))
        if len(self._working) >= self._options.concurrency - 1:
            self._wake.set()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            # The claim runs out, and the events are tried again.
            log.exception("webhooks.attempt_failed")

    # --- attempting

    async def _lane(self, lane: Lane) -> None:
        webhook_id, hold_until = lane.target.webhook_id, 0
        try:
            events = await self._lookups.fill(lane.target, lane.events, self._store.fill)
            host = self._hosts.of(lane.target.url)
            for event in events:
                if webhook_id in self._changed or self._clock.monotonic() >= self._ends.get(webhook_id, 0.0):
                    break
                pause = self._hosts.pause(host)
                if pause:
                    hold_until = self._now() + int(pause * _MICROSECONDS)
                    break
                if await self._attempt(lane.target, event):
                    break
        finally:
            self._lanes.pop(webhook_id, None)
            self._ends.pop(webhook_id, None)
            self._changed.discard(webhook_id)
        await self._unwritten.put(Release(webhook_id, lane.token, hold_until))

    async def _retry(self, target: Target, event: DueEvent) -> None:
        (event,) = await self._lookups.fill(target, (event,), self._store.fill)
        await self._attempt(target, event)

    async def _attempt(self, target: Target, event: DueEvent) -> bool:
        """Try once and note the result. True when the webhook is not active any more because of it."""
        host = self._hosts.of(target.url)
        host.users += 1
        try:
            async with host.slots:
                outcome = await self._sender.send(target, event.id, event.body)
        finally:
            host.users -= 1
        if outcome.status is None:
            self._hosts.failed(host)
        else:
            self._hosts.answered(host)
        result = self._judged(target, event, outcome)
        self._metrics.attempted(outcome)
        if result.webhook_status is not None:
            self._metrics.stopped(result.webhook_status)
        await self._unwritten.put(result)
        return result.webhook_status is not None

    def _judged(self, target: Target, event: DueEvent, outcome: Outcome) -> Result:
        """What follows from an attempt."""
        now = self._now()
        if outcome.accepted:
            return Result(target, event, outcome, "delivered", now, event.retries)
        if outcome.gone:
            return Result(target, event, outcome, "failed", now, event.retries, "disabled")
        form = target.kind.format
        delay = next_delay(self._options.delays[form], event.retries, outcome.retry_after)
        if delay is not None:
            due = now + int(delay * _MICROSECONDS)
            return Result(target, event, outcome, "pending", due, event.retries + 1)
        if form == "A":
            # Kept, and delivered when the webhook is resumed.
            return Result(target, event, outcome, "pending", NEVER, event.retries + 1, "paused")
        return Result(target, event, outcome, "failed", now, event.retries)

    # --- writing

    async def _results(self) -> None:
        self._taken.append(await self._unwritten.get())
        # Whatever else comes in this time goes into the same transaction.
        await asyncio.sleep(_GATHER_SECONDS)
        await self._flush()

    async def _flush(self) -> None:
        while not self._unwritten.empty():
            self._taken.append(self._unwritten.get_nowait())
        items = self._taken
        if not items:
            return
        results = [item for item in items if isinstance(item, Result)]
        releases = [item for item in items if isinstance(item, Release)]
        while True:
            try:
                await self._store.write(results, releases, self._now())
                break
            except StorageError as error:
                log.warning("webhooks.results_not_written", reason=str(error), count=len(results))
                await asyncio.sleep(_PAUSE_SECONDS)
        self._taken = []
        if releases:
            self._wake.set()

    # --- keeping

    async def _renewals(self) -> None:
        await asyncio.sleep(_RENEW_SECONDS)
        ends = self._clock.monotonic() + _CLAIM_SECONDS
        held = await self._store.renew(dict(self._lanes), self._now() + int(_CLAIM_SECONDS * _MICROSECONDS))
        for lane in held & self._ends.keys():
            self._ends[lane] = ends

    async def _housekeeping(self) -> None:
        kept = self._options.keep_days * _DAY * _MICROSECONDS
        await self._store.purge(self._now() - kept)
        for _ in range(int(_PURGE_SECONDS / _HOUSEKEEPING_SECONDS)):
            await self._store.follow_accounts(self._now())
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)

    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except StorageError as error:
                log.warning("webhooks.storage_unavailable", reason=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception:
                log.exception("webhooks.worker_failed")
                await asyncio.sleep(_PAUSE_SECONDS)

    def _now(self) -> int:
        return int(self._clock.now() * _MICROSECONDS)
