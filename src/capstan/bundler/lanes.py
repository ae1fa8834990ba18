"""The nonce lanes of a network's signers: opening a nonce with a bundle, and bringing it to its end.

Called by the worker alone, while it leads. The order of things is the whole point: a signed transaction is committed to
the database before any node sees it, and a signer gets no new nonce before its last one is used. Operations stay tied
to a nonce until it is used, even when a later transaction for it leaves them out: the earlier one may still be mined.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from capstan.bundler.chain import BundlerChain, HeadBlock, Receipt
from capstan.bundler.choosing import Situation, bundle_gas
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.fees import NO_FEES, Fees, bumped, bundle_fees
from capstan.bundler.making import BundleMaker
from capstan.bundler.pool import OperationPool
from capstan.bundler.signers import Signer
from capstan.bundler.slots import Attempt, Mined, Slot, SlotStore
from capstan.chain.errors import NodeError
from capstan.core.clock import Clock
from capstan.core.hexes import to_data
from capstan.storage.database import Database
from capstan.stream.lease import Lease, LeaseStore
from capstan.userops.codec import encode_handle_ops

log = structlog.get_logger(__name__)

_CANCEL_GAS = 21_000
_MICROSECONDS = 1_000_000


class LaneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How transactions are sent."""

    chain_id: int
    eip1559: bool = True
    # Who gets what the operations pay; None: the signer.
    beneficiary: bytes | None = None
    # After so many blocks without inclusion a transaction is replaced, with fees that are so much higher.
    stuck_blocks: int = 3
    bump_percent: int = 15
    # What operations must leave for the bundler for each unit of gas, in wei.
    least_tip: int = 0


class Lanes:
    """The lanes of all signers of one network."""

    def __init__(
        self,
        pool: OperationPool,
        chain: BundlerChain,
        maker: BundleMaker,
        database: Database,
        leases: LeaseStore,
        clock: Clock,
        *,
        signers: Sequence[Signer],
        market: Callable[[], Awaitable[Fees]],
        options: LaneOptions,
    ) -> None:
        """`market` tells what a transaction should offer now."""
        self.store = SlotStore(pool.network)
        self._pool = pool
        self._chain = chain
        self._maker = maker
        self._database = database
        self._leases = leases
        self._clock = clock
        self._signers = {signer.address: signer for signer in signers}
        self._market = market
        self._options = options
        # Operations that were in a bundle that failed on the chain, and nobody knows which of them was it.
        self._suspects: set[bytes] = set()
        # Nonces that are used on the chain by something that is none of ours, and the block when that was seen.
        self._foreign: dict[tuple[bytes, int], int] = {}

    async def open_slots(self) -> list[Slot]:
        """The nonces that are open."""
        async with self._database.read() as connection:
            return await self.store.open_slots(connection)

    async def begin(self, signer: Signer, entry_point: EntryPoint, head: HeadBlock, lease: Lease) -> Slot | None:
        """Send a bundle with the next nonce of a signer; None when there is nothing to send, or it must wait."""
        nonce = await self._chain.nonce(signer.address)
        async with self._database.read() as connection:
            if nonce <= await self.store.highest(connection, signer.address):
                # The node we asked does not have the last transaction yet.
                return None
        bundle = await self._make(signer, entry_point, self._situation(head, NO_FEES), lease)
        if not bundle:
            return None
        slot = Slot(signer=signer.address, nonce=nonce, entry_point=entry_point.address)
        fees = bundle_fees([each.operation for each in bundle], head.base_fee, await self._market())
        attempt = await self._sign(signer, slot, entry_point, bundle, fees, head)
        if not await self._record(slot, attempt, lease, is_new=True):
            return None
        await self._broadcast(slot, attempt)
        return slot

    async def settle(self, slot: Slot, head: HeadBlock, lease: Lease, *, is_new: bool) -> None:
        """See what became of an open nonce, and do what it needs. `is_new` says that there is a new head."""
        if not slot.attempts:
            await self._close(slot, None, lease)
            return
        for attempt in reversed(slot.attempts):
            receipt = await self._chain.receipt(attempt.hash)
            if receipt is not None:
                self._foreign.pop(slot.place, None)
                await self._mined(slot, attempt, receipt, lease)
                return
        if not is_new:
            return
        if await self._used_by_another(slot, head):
            log.error("bundler.nonce_used_elsewhere", network=self._pool.network, nonce=slot.nonce)
            await self._close(slot, None, lease)
            return
        signer = self._signers.get(slot.signer)
        stuck = head.ref.number - slot.last.created_block >= self._options.stuck_blocks
        if signer is not None and (stuck or self._is_spoilt(slot)):
            if not await self._still_open(slot, lease):
                return
            if (stuck or self._is_spoilt(slot)) and await self._replace(signer, slot, head, lease):
                return
        await self._broadcast(slot, slot.last)

    # --- the end of a nonce

    async def _mined(self, slot: Slot, attempt: Attempt, receipt: Receipt, lease: Lease) -> None:
        if receipt.success and attempt.operations:
            # The consumer of the stream sees its events, and closes the nonce with them.
            return
        if not receipt.success:
            log.error(
                "bundler.bundle_reverted",
                network=self._pool.network,
                transaction=to_data(attempt.hash),
                operations=len(attempt.operations),
            )
            await self._find_guilty(slot, attempt, receipt, lease)
        await self._close(slot, Mined(attempt.hash, receipt.block_number, receipt.block_hash), lease)

    async def _find_guilty(self, slot: Slot, attempt: Attempt, receipt: Receipt, lease: Lease) -> None:
        known = {entry.hash: entry for entry in self._pool}
        bundle = [known[each] for each in attempt.operations if each in known]
        if not bundle:
            return
        entry_point = bundle[0].entry_point
        failed = await self._maker.guilty_of(entry_point, bundle, slot.signer, receipt.block_number)
        if failed:
            await self._maker.drop(entry_point, failed, self._leases, lease)
        else:
            self._suspects.update(entry.hash for entry in bundle)

    async def _close(self, slot: Slot, mined: Mined | None, lease: Lease) -> None:
        """The nonce is used up; operations that wait for it are free again."""
        async with self._pool.changing(self._leases, lease) as change:
            if await self.store.close(change.connection, slot.signer, slot.nonce, mined):
                for entry in self._waiting_for(slot):
                    change.release(entry.hash)
        self._foreign.pop(slot.place, None)

    async def _used_by_another(self, slot: Slot, head: HeadBlock) -> bool:
        """Whether the nonce is used by a transaction that is none of ours, seen at two different heads."""
        if await self._chain.nonce(slot.signer) <= slot.nonce:
            self._foreign.pop(slot.place, None)
            return False
        return self._foreign.setdefault(slot.place, head.ref.number) < head.ref.number

    async def _still_open(self, slot: Slot, lease: Lease) -> bool:
        """Whether the nonce is open, and what waits for it up to date: the stream writes both in one transaction, and
        they were read one after the other."""
        async with self._pool.changing(self._leases, lease) as change:
            return await self.store.is_open(change.connection, slot.signer, slot.nonce)

    # --- replacing

    def _is_spoilt(self, slot: Slot) -> bool:
        """Whether an operation of the last transaction is gone: the bundle would fail, or has nothing to do."""
        waiting = {entry.hash for entry in self._waiting_for(slot)}
        return any(each not in waiting for each in slot.last.operations)

    async def _replace(self, signer: Signer, slot: Slot, head: HeadBlock, lease: Lease) -> bool:
        """Sign another transaction for the nonce, with higher fees. False when there is none that pays."""
        least = bumped(slot.last.fees, self._options.bump_percent)
        tied = frozenset(entry.hash for entry in self._waiting_for(slot))
        entry_point = next(
            (each.entry_point for each in self._pool if each.entry_point.address == slot.entry_point), None
        )
        bundle: list[Entry] = []
        if entry_point is not None:
            bundle = await self._make(signer, entry_point, self._situation(head, least), lease, also=tied)
        if bundle and entry_point is not None:
            operations = [each.operation for each in bundle]
            fees = bundle_fees(operations, head.base_fee, await self._market(), least)
            attempt = await self._sign(signer, slot, entry_point, bundle, fees, head)
        elif not any(entry.state == "submitted" for entry in self._waiting_for(slot)):
            attempt = await self._cancel(signer, slot, least, head)
        else:
            return False
        log.info(
            "bundler.replaces",
            network=self._pool.network,
            nonce=slot.nonce,
            transaction=to_data(attempt.hash),
            operations=len(attempt.operations),
        )
        if await self._record(slot, attempt, lease, is_new=False):
            await self._broadcast(slot, attempt)
        return True

    async def _cancel(self, signer: Signer, slot: Slot, least: Fees, head: HeadBlock) -> Attempt:
        """A transaction to ourselves that does nothing but use up the nonce."""
        market = await self._market()
        fees = Fees(max(least.max_fee, market.max_fee), max(least.max_priority_fee, market.max_priority_fee))
        signed = await signer.sign(
            chain_id=self._options.chain_id,
            nonce=slot.nonce,
            to=signer.address,
            data=b"",
            gas=_CANCEL_GAS,
            fees=fees,
            eip1559=self._options.eip1559,
        )
        return self._attempt(signed.hash, signed.raw, (), fees, head)

    # --- making and sending

    async def _make(
        self,
        signer: Signer,
        entry_point: EntryPoint,
        situation: Situation,
        lease: Lease,
        also: frozenset[bytes] = frozenset(),
    ) -> list[Entry]:
        return await self._maker.make(
            entry_point,
            situation,
            sender=signer.address,
            beneficiary=self._beneficiary(signer),
            leases=self._leases,
            lease=lease,
            also=also,
        )

    async def _sign(
        self,
        signer: Signer,
        slot: Slot,
        entry_point: EntryPoint,
        bundle: Sequence[Entry],
        fees: Fees,
        head: HeadBlock,
    ) -> Attempt:
        operations = [entry.operation for entry in bundle]
        signed = await signer.sign(
            chain_id=self._options.chain_id,
            nonce=slot.nonce,
            to=entry_point.address,
            data=encode_handle_ops(entry_point.version, operations, self._beneficiary(signer)),
            gas=bundle_gas(entry_point.version, operations),
            fees=fees,
            eip1559=self._options.eip1559,
            authorizations=[each.authorization for each in operations if each.authorization is not None],
        )
        return self._attempt(signed.hash, signed.raw, tuple(entry.hash for entry in bundle), fees, head)

    def _attempt(
        self, transaction: bytes, raw: bytes, operations: tuple[bytes, ...], fees: Fees, head: HeadBlock
    ) -> Attempt:
        return Attempt(
            hash=transaction,
            raw=raw,
            operations=operations,
            fees=fees,
            created_at=int(self._clock.now() * _MICROSECONDS),
            created_block=head.ref.number,
        )

    async def _record(self, slot: Slot, attempt: Attempt, lease: Lease, *, is_new: bool) -> bool:
        """Write the transaction down with what it carries. False when an operation has left the pool meanwhile."""
        async with self._pool.changing(self._leases, lease) as change:
            for each in attempt.operations:
                entry = change.get(each)
                if entry is None or (entry.state == "submitted" and (entry.signer, entry.signer_nonce) != slot.place):
                    return False
            if is_new:
                await self.store.open(change.connection, slot, change.now)
            elif not await self.store.is_open(change.connection, slot.signer, slot.nonce):
                return False
            await self.store.record(change.connection, slot, attempt)
            for each in attempt.operations:
                change.submit(each, slot.signer, slot.nonce)
        return True

    async def _broadcast(self, slot: Slot, attempt: Attempt) -> None:
        """Give the transaction to the nodes. If they refuse, it is given to them again at the next block."""
        try:
            await self._chain.send(attempt.raw)
        except NodeError as error:
            log.warning(
                "bundler.not_taken",
                network=self._pool.network,
                nonce=slot.nonce,
                transaction=to_data(attempt.hash),
                reason=error.message[:300],
            )

    # --- small things

    def _situation(self, head: HeadBlock, least: Fees) -> Situation:
        return Situation(
            base_fee=head.base_fee,
            now=head.ref.timestamp,
            least_tip=self._options.least_tip,
            least=least,
            alone=frozenset(self._suspects),
        )

    def _waiting_for(self, slot: Slot) -> list[Entry]:
        return [entry for entry in self._pool if (entry.signer, entry.signer_nonce) == slot.place]

    def _beneficiary(self, signer: Signer) -> bytes:
        return self._options.beneficiary or signer.address
