"""Carries the canonical stream of one network into the database: one transaction for each block.

Made by the composition root for each network that has durable consumers. The transaction of a block holds what every
consumer writes and the cursor, so killed at any instant it resumes exactly there: it walks back over blocks that are no
longer on the chain, which it knows from the table of applied blocks, and goes on, without a gap or a repetition. Of
several processes one leads; the others wait for its lease. It never takes back a final block: then it stops and says
so. On a development chain that was begun anew, it tells the consumers to forget the old one.
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from capstan.chain.follower.follower import Follower
from capstan.chain.follower.models import Delta, Demand
from capstan.chain.follower.reader import ContentUnavailable
from capstan.chain.follower.replay import wait_for
from capstan.chain.follower.walk import Halt, Position, Reset, Walk
from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.storage.errors import StorageUnavailable
from capstan.stream.lease import Lease, LeaseLost, LeaseStore
from capstan.stream.metrics import DurableMetrics
from capstan.stream.models import DurableConsumer
from capstan.stream.store import CursorStore

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# A lease is renewed so many times before it could be taken over.
_RENEWALS = 3


class DurableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a durable stream is kept."""

    # Names the cursor: one for each group of consumers that move together.
    role: str = "index"
    # The first block ever applied; None: the head when it first runs.
    start: int | None = None
    # The same after a development chain was begun anew; None: `start`.
    start_anew: int | None = None
    # Blocks that can be taken back while nothing is known of finality.
    window: int = 8_192


class DurableStream:
    """The durable stream of one network. Construct, `start`, and `close` at the end."""

    def __init__(
        self,
        follower: Follower,
        database: Database,
        leases: LeaseStore,
        consumers: Sequence[DurableConsumer],
        clock: Clock,
        *,
        options: DurableOptions | None = None,
        metrics: DurableMetrics | None = None,
    ) -> None:
        self.network = follower.network
        self.halted: str | None = None
        self.leading = False
        self._follower = follower
        self._database = database
        self._leases = leases
        self._consumers = tuple(consumers)
        self._clock = clock
        self._options = options or DurableOptions()
        self._metrics = metrics or DurableMetrics()
        role = self._options.role
        self._labels = (self.network, role)
        self._name = f"stream {self.network} {role}"
        self._store = CursorStore(database, self.network, role, clock, window=self._options.window)
        self._walk: Walk | None = None
        self._wake = asyncio.Event()
        self._lost = False
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def position(self) -> Position | None:
        """The last block written, while this process leads."""
        return None if self._walk is None else self._walk.position

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"durable {self._name}")

    async def close(self) -> None:
        """Stop, and let another process lead."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def _demand(self) -> Demand:
        return max((consumer.demand for consumer in self._consumers), default=Demand.HEADERS)

    # --- leading

    async def _run(self) -> None:
        failures, written = 0, 0
        while True:
            if self._written != written:
                failures, written = 0, self._written
            try:
                lease = await self._leases.acquire(self._name)
                if lease is not None:
                    await self._lead(lease)
                pause = self._leases.seconds / _RENEWALS
            except LeaseLost:
                log.warning("stream.lease_lost", network=self.network, role=self._options.role)
                pause = self._leases.seconds / _RENEWALS
            except StorageUnavailable as error:
                failures += 1
                pause = _pause(failures)
                log.warning("stream.storage_unavailable", network=self.network, reason=str(error), again_in=pause)
            except Exception:
                # A mistake of ours, or of a consumer: nothing of the block was written. It is tried again.
                failures += 1
                pause = _pause(failures)
                log.exception("stream.not_written", network=self.network, role=self._options.role, again_in=pause)
            await asyncio.sleep(pause)

    async def _lead(self, lease: Lease) -> None:
        """Carry the stream until the lease is lost. What the database says is the truth, whatever came before."""
        async with self._database.read() as connection:
            standing = await self._store.load(connection)
        start, window = self._options.start, self._options.window
        if standing is None:
            walk = self._follower.open_walk(window=window, start=start)
        else:
            walk = self._follower.open_walk(
                window=window, blocks=standing.blocks, floor=standing.floor, final=standing.final
            )
            if walk.position is None:
                walk.begin_at(standing.position)
            self._metrics.cursor(*self._labels, standing.position.number)
        self._walk, self._lost = walk, False
        unlisten = self._follower.listen(self._changed)
        renewing = asyncio.create_task(self._renew(lease), name=f"lease of {self._name}")
        self._set_leading(True)
        log.info("stream.leads", network=self.network, role=self._options.role, position=_number(walk.position))
        try:
            await self._carry(walk, lease)
        finally:
            unlisten()
            renewing.cancel()
            self._walk = None
            self._set_leading(False)
            # Whoever leads next says whether it is stopped.
            self._set_halted(None)
            await asyncio.gather(renewing, return_exceptions=True)
            await self._let_go(lease)

    async def _carry(self, walk: Walk, lease: Lease) -> None:
        failures = 0
        while not self._lost:
            self._wake.clear()
            pause = _LOOK_SECONDS
            try:
                if await self._step(walk, lease):
                    failures = 0
                    continue
            except ContentUnavailable as error:
                failures += 1
                pause = _pause(failures)
                log.warning("stream.content_unavailable", network=self.network, reason=str(error), again_in=pause)
            await wait_for(self._wake, pause)

    async def _step(self, walk: Walk, lease: Lease) -> bool:
        """Write one delta; false when there is none to write."""
        if self._follower.fault is not None:
            self._set_halted(self._follower.fault)
            return False
        step = await walk.next(lambda: self._demand)
        if isinstance(step, Halt):
            self._set_halted(f"{self.network}: {step.reason}")
            return False
        self._set_halted(None)
        if step is None:
            return False
        if isinstance(step, Reset):
            await self._reset(walk, lease, step)
            return True
        await self._write(lease, step, None if self._follower.rewritable else walk.final)
        walk.advance(_bare(step))
        self._written += 1
        self._metrics.cursor(*self._labels, walk.position.number if walk.position else 0)
        return True

    async def _write(self, lease: Lease, delta: Delta, final: int | None) -> None:
        started = self._clock.monotonic()
        async with self._database.write() as connection:
            await self._leases.check(connection, lease)
            for consumer in self._consumers:
                await consumer.apply(connection, delta)
            await self._store.advance(connection, delta, final)
        self._metrics.written(*self._labels, self._clock.monotonic() - started)

    async def _reset(self, walk: Walk, lease: Lease, step: Reset) -> None:
        log.warning("stream.forgets_the_old_chain", network=self.network, role=self._options.role, reason=step.reason)
        async with self._database.write() as connection:
            await self._leases.check(connection, lease)
            for consumer in self._consumers:
                await consumer.reset(connection)
            await self._store.forget(connection)
        start, anew = self._options.start, self._options.start_anew
        walk.restart((start or 0) if anew is None else anew)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(self._leases.seconds / _RENEWALS)
            try:
                await self._leases.renew(lease)
            except LeaseLost:
                self._lost = True
                self._changed()
                return
            except StorageUnavailable as error:
                # The next transaction will find out whether somebody else leads by then.
                log.warning("stream.lease_not_renewed", network=self.network, reason=str(error))

    async def _let_go(self, lease: Lease) -> None:
        try:
            await self._leases.release(lease)
        except StorageUnavailable as error:
            log.info("stream.lease_not_released", network=self.network, reason=str(error))

    # --- telling how it goes

    def _changed(self) -> None:
        if self._walk is not None:
            self._walk.poke()
        self._wake.set()

    def _set_leading(self, leading: bool) -> None:
        self.leading = leading
        self._metrics.leading(*self._labels, leading)

    def _set_halted(self, reason: str | None) -> None:
        if (reason is None) != (self.halted is None):
            self._metrics.halted(*self._labels, reason is not None)
        self.halted = reason
        self._follower.condition.note_halt(self._options.role, reason)


def _bare(delta: Delta) -> Delta:
    """The same without content: what is taken back is found in the consumers' own rows, and memory is not for that."""
    block = msgspec.structs.replace(delta.block, transactions=None, receipts=None, logs=None)
    return type(delta)(block)


def _pause(failures: int) -> float:
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_SECONDS)


def _number(position: Position | None) -> int | None:
    return None if position is None else position.number
