"""The day ledger: requests per day over all processes, without a database query per request.

A process reserves a small share of the day ahead (`store`), serves requests from it, extends it in the background
before it runs out, and gives back what it does not need when a subject is idle and when it closes. The row in the
database is raised before a request is served from it, so a process that dies leaves the count too high by its
reservation at most, and never too low. The limiters call `take_now` on every request with a day limit; subjects without
one never get here. It must not decide about anything but the day.

While the database is away each process counts by itself from what it last knew, and adds its count to the row when the
database is back. All database work is done by one task, in batches over many subjects.
"""

import asyncio
from asyncio import Future
from itertools import islice

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from capstan.core.clock import Clock
from capstan.limits.lease import Lease
from capstan.limits.store import FAILURES, Claim, DayStore, Grant

_SECONDS_PER_DAY = 86_400
_KEPT_DAYS = 8
_BATCH = 500
# How long a spent day is believed without asking the database again: another process may give something back.
_SPENT_SECONDS = 1.0
_TICK_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class DayLedger:
    """Reservations of this process, and the task that keeps them filled."""

    def __init__(
        self,
        store: DayStore,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        share: int = 1_000,
        idle_seconds: float = 10.0,
        patience_seconds: float = 1.0,
        retry_seconds: float = 1.0,
        close_seconds: float = 5.0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._share = share
        self._idle_seconds = idle_seconds
        self._patience_seconds = patience_seconds
        self._retry_seconds = retry_seconds
        self._close_seconds = close_seconds
        self._leases: dict[str, Lease] = {}
        self._queue: dict[Lease, None] = {}
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._away = False
        self._pruned_day = 0
        self._scan_at = 0.0
        self._up = Gauge(
            "capstan_limits_day_database_up", "1 while daily counts are kept in the database.", registry=registry
        )
        self._up.set(1)
        self._local = Counter(
            "capstan_limits_day_local_requests",
            "Requests counted in this process alone because the database was away.",
            registry=registry,
        )

    def take_now(self, subject: str, limit: int, requests: int, now: float, wall: float) -> int | None:
        """Take requests of today: returns the day they came from, zero when it is spent, None when one must `hold`."""
        day = int(wall // _SECONDS_PER_DAY)
        lease = self._leases.get(subject)
        if lease is None or lease.day != day or lease.limit != limit:
            lease = self._open(subject, day, limit)
        lease.used_at = now
        left = lease.left - requests
        # Whoever already waits goes first.
        if left >= 0 and not lease.waiters:
            lease.left = left
            if left < lease.low and not lease.queued and now >= lease.spent_until:
                self._enqueue(lease)
            return day
        if requests > limit or now < lease.spent_until:
            return 0
        if self._away:
            return self._take_local(lease, requests)
        return None

    def hold_now(self, subject: str, limit: int, requests: int) -> int | None:
        """Like `take_now`, but `settle` must be called when it is known whether the request passes."""
        day = self.take_now(subject, limit, requests, self._clock.monotonic(), self._clock.now())
        if day:
            self._leases[subject].held += requests
        return day

    async def hold(self, subject: str, limit: int, requests: int) -> int:
        """Take requests of today, waiting for the database if need be: the day, or zero when it is spent."""
        day = self.hold_now(subject, limit, requests)
        if day is not None:
            return day
        if self._task is None:
            raise RuntimeError("the day ledger was not started: await start() before the first request")
        lease = self._leases[subject]
        future: Future[int] = asyncio.get_running_loop().create_future()
        lease.waiters.append((requests, future))
        self._enqueue(lease)
        try:
            await asyncio.wait((future,), timeout=self._patience_seconds)
        except asyncio.CancelledError:
            if future.done() and not future.exception() and future.result():
                self.settle(subject, lease.day, requests, used=False)
            future.cancel()
            raise
        if future.done():
            return future.result()
        future.cancel()
        self._went_away(f"no answer in {self._patience_seconds:g} s")
        if not self._take_local(lease, requests):
            return 0
        lease.held += requests
        return lease.day

    def settle(self, subject: str, day: int, requests: int, *, used: bool) -> None:
        """End a hold. What was not used goes back to the reservation it came from."""
        lease = self._leases.get(subject)
        # A lease that was closed meanwhile keeps the requests counted: too many on a day that is over, never too few.
        if lease is None or lease.day != day:
            return
        lease.held -= requests
        if not used:
            lease.left += requests

    def is_spent(self, subject: str, limit: int, requests: int) -> bool:
        """Whether it is already known that today has no room for these requests."""
        lease = self._leases.get(subject)
        if lease is None or lease.limit != limit or lease.day != int(self._clock.now() // _SECONDS_PER_DAY):
            return False
        return requests > lease.left and self._clock.monotonic() < lease.spent_until

    def may_have_room(self, subject: str, requests: int) -> bool:
        """Whether a request just refused could pass today after all, with what others hold or have given back."""
        lease = self._leases.get(subject)
        return lease is not None and lease.left + lease.held >= requests

    async def start(self) -> None:
        """Start the task that talks to the database."""
        if self._task is None:
            self._closing.clear()
            self._task = asyncio.create_task(self._run(), name="limits-day-ledger")

    async def close(self) -> None:
        """Stop, and give back every reservation."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing.set()
        self._wake.set()
        # A transaction that is under way may finish; it is cut off only when it hangs.
        await asyncio.wait((task,), timeout=self._close_seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for lease in list(self._leases.values()):
            self._retire(lease)
        try:
            async with asyncio.timeout(self._close_seconds):
                while self._queue and await self._settle_batch():
                    pass
        except TimeoutError:
            self._went_away("it did not answer while closing")
        if self._queue:
            lost = sum(lease.debt for lease in self._queue)
            _log.error("limits.day_counts_lost", subjects=len(self._queue), uncounted_requests=lost)
            self._queue.clear()

    async def work(self) -> None:
        """One round of database work: give back what is idle, settle what is queued, delete old days."""
        self._retire_idle()
        while self._queue and await self._settle_batch():
            pass
        await self._prune()

    async def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            try:
                await self.work()
            except Exception:
                # A defect, not an outage: those who waited were told, and the next round must still come.
                _log.exception("limits.day_ledger_failed")
                await _wait(self._closing, self._retry_seconds)
            if self._away:
                await _wait(self._closing, self._retry_seconds)
            else:
                await _wait(self._wake, _TICK_SECONDS)

    async def _settle_batch(self) -> bool:
        """Settle some of the queue in one transaction; false when the database is away."""
        batch = list(islice(self._queue, _BATCH))
        for lease in batch:
            del self._queue[lease]
        claims = [lease.claim() for lease in batch]
        try:
            grants = await self._store.settle(claims)
        except FAILURES as error:
            # Only the class: the text of an engine's exception may quote data.
            self._went_away(type(error).__name__)
            self._failed(batch)
            return False
        except asyncio.CancelledError:
            self._failed(batch)
            raise
        except Exception as error:
            for lease in batch:
                lease.fail_waiters(error)
            self._failed(batch)
            raise
        self._came_back()
        for lease, claim, answer in zip(batch, claims, grants, strict=True):
            self._granted(lease, claim, answer)
        return True

    def _granted(self, lease: Lease, claim: Claim, answer: Grant) -> None:
        lease.queued = False
        lease.granted(answer)
        lease.serve()
        if answer.reserved >= claim.limit == lease.limit:
            lease.spent_until = self._clock.monotonic() + _SPENT_SECONDS
            lease.refuse_waiters()
        if lease.retired and lease.left:
            lease.hand_in()
        # What came up while the transaction ran takes part in the next one.
        if lease.waiters or lease.surplus or lease.debt:
            self._enqueue(lease)

    def _failed(self, batch: list[Lease]) -> None:
        for lease in batch:
            lease.queued = False
            lease.failed()
            self._local.inc(lease.serve_local())
            if lease.debt or lease.surplus:
                self._enqueue(lease)

    def _retire_idle(self) -> None:
        now = self._clock.monotonic()
        if now < self._scan_at:
            return
        self._scan_at = now + self._idle_seconds / 4
        for lease in list(self._leases.values()):
            if now - lease.used_at >= self._idle_seconds and lease.is_idle():
                self._retire(lease)

    def _take_local(self, lease: Lease, requests: int) -> int:
        if not lease.take_local(requests):
            return 0
        self._local.inc(requests)
        self._enqueue(lease)
        return lease.day

    def _open(self, subject: str, day: int, limit: int) -> Lease:
        """The lease for this day and limit, in place of one for another."""
        lease = self._leases.get(subject)
        if lease is None or lease.day != day:
            if lease is not None:
                self._retire(lease)
            lease = self._leases[subject] = Lease(subject, day, limit, self._share)
            return lease
        if limit < lease.limit:
            # What was reserved under the larger limit may be over the new one: let the database decide again.
            lease.hand_in()
        lease.relimit(limit, self._share)
        return lease

    def _retire(self, lease: Lease) -> None:
        """Take the lease out of use and have what is left of it given back."""
        del self._leases[lease.subject]
        lease.retired = True
        lease.hand_in()
        if lease.surplus or lease.debt:
            self._enqueue(lease)

    def _enqueue(self, lease: Lease) -> None:
        if not lease.queued:
            lease.queued = True
            self._queue[lease] = None
            self._wake.set()

    async def _prune(self) -> None:
        """Delete old days once a day. While the database is away with nothing queued, this shows that it is back."""
        today = int(self._clock.now() // _SECONDS_PER_DAY)
        if self._queue or (self._pruned_day == today and not self._away):
            return
        try:
            await self._store.prune(today - _KEPT_DAYS + 1)
        except FAILURES as error:
            self._went_away(type(error).__name__)
        else:
            self._pruned_day = today
            self._came_back()

    def _went_away(self, why: str) -> None:
        if not self._away:
            self._away = True
            self._up.set(0)
            _log.warning("limits.day_database_away", why=why, consequence="daily limits count in this process alone")

    def _came_back(self) -> None:
        if self._away:
            self._away = False
            self._up.set(1)
            _log.info("limits.day_database_back", subjects_to_reconcile=len(self._queue))


async def _wait(signal: asyncio.Event, seconds: float) -> None:
    """Wait for the signal, but no longer than that."""
    try:
        async with asyncio.timeout(seconds):
            await signal.wait()
    except TimeoutError:
        return
