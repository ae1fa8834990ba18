"""The bundling of one network: of several processes one leads, and its signers send what the pool holds.

Each signer has one nonce lane, with one nonce open at a time. A transaction is written down, whole, before it is sent;
after a restart it is sent again, never made again. One that is stuck is replaced with higher fees; one whose operations
are all gone is replaced by a transaction that does nothing. That an operation was included is not decided here: the
consumer of the stream sees it on the chain and closes the nonce.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec
import structlog

from capstan.bundler.chain import BundlerChain, HeadBlock
from capstan.bundler.entries import EntryPoint
from capstan.bundler.lanes import Lanes
from capstan.bundler.metrics import BundlerMetrics
from capstan.bundler.pool import OperationPool
from capstan.bundler.signers import Signer
from capstan.bundler.slots import Slot
from capstan.chain.calls.models import BlockChanged
from capstan.chain.errors import ChainError
from capstan.core.clock import Clock
from capstan.core.errors import ApiError
from capstan.storage.errors import StorageUnavailable
from capstan.stream.lease import Lease, LeaseLost, LeaseStore

log = structlog.get_logger(__name__)

Mode = Literal["auto", "manual"]

_RENEWALS = 3
_LONGEST_PAUSE_SECONDS = 1.0
_LEAST_PAUSE_SECONDS = 0.05
_NOW_SECONDS = 50.0
_FAILURE_SECONDS = 2.0
_TIDY_SECONDS = 3600.0


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a network is bundled."""

    mode: Mode = "auto"
    # How long operations are gathered after the first one came.
    gather_seconds: float = 0.05
    # Signers with less than this are not used, in wei.
    least_balance: int = 0
    # Operations that left the pool are remembered for so long.
    keep_seconds: float = 30 * 86_400.0


class BundlingWorker:
    """Bundles the operations of one network while this process leads. Construct, `start`, and `close` at the end."""

    def __init__(
        self,
        pool: OperationPool,
        chain: BundlerChain,
        lanes: Lanes,
        leases: LeaseStore,
        clock: Clock,
        *,
        entry_points: Sequence[EntryPoint],
        signers: Sequence[Signer],
        on_this_chain: Callable[[], Awaitable[bool]],
        options: WorkerOptions | None = None,
        metrics: BundlerMetrics | None = None,
    ) -> None:
        """`on_this_chain` says whether what is stored belongs to the chain that the nodes have now."""
        self.mode: Mode = (options or WorkerOptions()).mode
        self.leading = False
        self._pool = pool
        self._chain = chain
        self._lanes = lanes
        self._leases = leases
        self._clock = clock
        self._entry_points = tuple(entry_points)
        self._signers = tuple(signers)
        self._on_this_chain = on_this_chain
        self._options = options or WorkerOptions()
        self._metrics = metrics or BundlerMetrics()
        self._name = f"bundler {pool.network}"
        self._task: asyncio.Task[None] | None = None
        self._lost = False
        self._asked: list[asyncio.Future[None]] = []
        self._awaited: list[asyncio.Future[None]] = []
        self._last_head = -1
        self._cleaned_at = 0.0

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        if self._task is None and self._signers:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Stop, and let another process lead."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for future in [*self._asked, *self._awaited]:
            future.cancel()

    async def bundle_now(self) -> None:
        """Send one bundle for each entry point, and wait until they are mined. Raises `TimeoutError`."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._pool.changed.set()
        async with asyncio.timeout(_NOW_SECONDS):
            await asked

    async def transaction_for(self, signer: bytes, nonce: int, operation_hash: bytes) -> bytes | None:
        """The newest transaction of an open nonce that carries the operation."""
        for slot in await self._lanes.open_slots():
            if slot.place == (signer, nonce):
                carrying = [each.hash for each in slot.attempts if operation_hash in each.operations]
                return carrying[-1] if carrying else None
        return None

    # --- leading

    async def _run(self) -> None:
        while True:
            pause = self._leases.seconds / _RENEWALS
            try:
                lease = await self._leases.acquire(self._name)
                if lease is not None:
                    await self._lead(lease)
            except LeaseLost:
                log.warning("bundler.lease_lost", network=self._pool.network)
            except StorageUnavailable as error:
                pause = _FAILURE_SECONDS
                log.warning("bundler.storage_unavailable", network=self._pool.network, reason=str(error))
            except Exception:
                # A mistake of ours. What was written stays true; it is tried again.
                pause = _FAILURE_SECONDS
                log.exception("bundler.failed", network=self._pool.network)
            await asyncio.sleep(pause)

    async def _lead(self, lease: Lease) -> None:
        self._lost = False
        renewing = asyncio.create_task(self._renew(lease), name=f"lease of {self._name}")
        try:
            while not await self._belongs():
                await asyncio.sleep(_LONGEST_PAUSE_SECONDS)
                if self._lost:
                    return
            log.info("bundler.leads", network=self._pool.network, signers=len(self._signers))
            self.leading = True
            await self._carry(lease)
        finally:
            self.leading = False
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with contextlib.suppress(StorageUnavailable):
                await self._leases.release(lease)

    async def _belongs(self) -> bool:
        try:
            return await self._on_this_chain()
        except (ApiError, ChainError) as error:
            log.info("bundler.waits_for_the_chain", network=self._pool.network, reason=str(error)[:200])
            return False

    async def _carry(self, lease: Lease) -> None:
        self._last_head = -1
        while not self._lost:
            self._pool.changed.clear()
            try:
                await self._tick(lease)
            except (ApiError, ChainError, BlockChanged) as error:
                # No upstream answers, one refuses, or the head changes too fast: the next tick tries again.
                log.warning("bundler.tick_failed", network=self._pool.network, reason=str(error)[:300])
                await asyncio.sleep(_FAILURE_SECONDS)
            await self._wait()

    async def _wait(self) -> None:
        """Until something changed, at most for part of a block's time."""
        block_seconds = self._chain.network.spec.block_time_ms / 1000
        pause = max(_LEAST_PAUSE_SECONDS, min(_LONGEST_PAUSE_SECONDS, block_seconds / 4))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._pool.changed.wait()
            await asyncio.sleep(self._options.gather_seconds)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(self._leases.seconds / _RENEWALS)
            try:
                await self._leases.renew(lease)
            except LeaseLost:
                self._lost = True
                self._pool.changed.set()
                return
            except StorageUnavailable as error:
                log.warning("bundler.lease_not_renewed", network=self._pool.network, reason=str(error))

    # --- one round

    async def _tick(self, lease: Lease) -> None:
        await self._pool.refresh()
        slots = await self._lanes.open_slots()
        pending = sum(entry.state == "pending" for entry in self._pool)
        self._metrics.pool(self._pool.network, pending, len(self._pool) - pending)
        if not slots:
            self._answer_awaited()
            if not self._wants_bundle():
                return
        head = await self._chain.head()
        is_new = head.ref.number != self._last_head
        self._last_head = head.ref.number
        for slot in slots:
            await self._lanes.settle(slot, head, lease, is_new=is_new)
        await self._tidy(head, lease)
        if self._wants_bundle():
            await self._send_bundles(head, {slot.signer for slot in slots}, lease)

    def _wants_bundle(self) -> bool:
        if self.mode == "manual":
            return bool(self._asked)
        return bool(self._asked) or any(entry.state == "pending" for entry in self._pool)

    async def _send_bundles(self, head: HeadBlock, busy: set[bytes], lease: Lease) -> None:
        asked, self._asked = self._asked, []
        sent: list[Slot] = []
        free = [signer for signer in self._signers if signer.address not in busy]
        for entry_point in self._entry_points:
            while free and self._has_pending(entry_point):
                if not await self._can_pay(free[0]):
                    free.pop(0)
                    continue
                slot = await self._lanes.begin(free[0], entry_point, head, lease)
                if slot is None:
                    break
                free.pop(0)
                sent.append(slot)
                self._metrics.sent(self._pool.network)
                if asked:
                    break
        if asked and busy and not sent:
            # All signers are busy: what was asked for is still to be done.
            self._asked += asked
            return
        self._awaited += asked
        if not sent and not busy:
            self._answer_awaited()

    def _has_pending(self, entry_point: EntryPoint) -> bool:
        return any(entry.state == "pending" and entry.entry_point == entry_point for entry in self._pool)

    async def _can_pay(self, signer: Signer) -> bool:
        balance = await self._chain.balance(signer.address)
        self._metrics.balance(self._pool.network, signer.address, balance)
        if balance < self._options.least_balance:
            log.error("bundler.signer_is_poor", network=self._pool.network, signer=repr(signer), balance=balance)
            return False
        return True

    async def _tidy(self, head: HeadBlock, lease: Lease) -> None:
        """Drop what is past its time, and forget what left the pool long ago."""
        is_time = not self._cleaned_at or self._clock.monotonic() - self._cleaned_at >= _TIDY_SECONDS
        if not is_time and not self._pool.has_expired(head.ref.timestamp, head.ref.number):
            return
        async with self._pool.changing(self._leases, lease) as change:
            change.expire(now=head.ref.timestamp, block_number=head.ref.number)
            if is_time:
                self._cleaned_at = self._clock.monotonic()
                before = int((self._clock.now() - self._options.keep_seconds) * 1_000_000)
                await self._pool.store.forget_old(change.connection, before)
                await self._lanes.store.forget_old(change.connection, before)

    def _answer_awaited(self) -> None:
        for future in self._awaited:
            if not future.done():
                future.set_result(None)
        self._awaited = []
