"""Which operations of the pool go into the next bundle, by what is in memory. Pure.

Called by the worker. Best fee first, one operation of each sender, within the limits of gas and bytes; operations whose
validation touches the same storage, or the storage of another's sender, are kept apart (ERC-7562).
"""

from collections.abc import Collection, Iterable

import msgspec

from capstan.bundler.entries import Entry
from capstan.bundler.fees import NO_FEES, Fees, covers, offered
from capstan.bundler.models import PoolOperation
from capstan.bundler.order import best_first
from capstan.bundler.reputation import ReputationBook
from capstan.bundler.validating import Validated
from capstan.userops.codec import codec_for
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

# What handleOps needs besides the operations, and for each of them beyond its limits.
_BUNDLE_GAS = 60_000
_OPERATION_GAS = 20_000


class BundleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a bundle may be."""

    gas: int
    # LIM-040.
    bytes: int = 262_144
    operations: int = 100
    # LIM-050: of the contexts that paymasters return.
    context_bytes: int = 65_536


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice depends on besides the operations."""

    base_fee: int
    # The time of the latest block.
    now: int
    least_tip: int = 0
    # What each operation must pay, where a transaction is replaced.
    least: Fees = NO_FEES
    # Operations that are not to share a bundle with any other.
    alone: Collection[bytes] = frozenset()


def operation_gas(version: Version, operation: UserOperation) -> int:
    """The most gas that the operation can use in a bundle, its share of the transaction included."""
    verification = operation.verification_gas_limit
    if not codec_for(version).release.packed and operation.paymaster is not None:
        # 0.6 takes the limit of postOp from it, and may call that twice.
        verification *= 3
    return (
        operation.pre_verification_gas
        + verification
        + operation.call_gas_limit
        + operation.paymaster_verification_gas_limit
        + operation.paymaster_post_op_gas_limit
    )


def bundle_gas(version: Version, operations: Iterable[UserOperation]) -> int:
    """The gas limit of a transaction that carries these operations."""
    needed = unused = 0
    for each in operations:
        needed += operation_gas(version, each) + _OPERATION_GAS
        unused = max(unused, _unused_gas(version, each))
    return _transaction_gas(needed, unused)


def _unused_gas(version: Version, operation: UserOperation) -> int:
    """What must be left when its call begins, though nothing uses it: 0.6 asks for the verification limit again.

    A bundle needs it once. Where postOp may use it, it is in what the operation can use.
    """
    return 0 if codec_for(version).release.packed or operation.paymaster else operation.verification_gas_limit


def _transaction_gas(needed: int, unused: int) -> int:
    # A 64th of what is left stays behind at every call (EIP-150).
    return _BUNDLE_GAS + -(-(needed + unused) * 64 // 63)


def first_of_lanes(entries: Iterable[Entry]) -> set[bytes]:
    """The hashes of those operations that no other of the same sender and nonce key comes before."""
    first: dict[tuple[bytes, bytes, int], Entry] = {}
    for entry in entries:
        lane = entry.entry_point.address, entry.operation.sender, entry.operation.nonce_key
        if lane not in first or entry.operation.nonce < first[lane].operation.nonce:
            first[lane] = entry
    return {entry.hash for entry in first.values()}


def choose(
    entries: Iterable[Entry],
    reputation: ReputationBook,
    limits: BundleLimits,
    situation: Situation,
    flying: Iterable[Entry] = (),
) -> list[Entry]:
    """The operations of the next bundle, in its order. All must be of one entry point.

    `flying` are those in bundles on their way: nobody knows which bundle lands first, so the new one has none that
    meets them.
    """
    known = {entry.hash: entry for entry in entries}
    bundle = _Bundle(reputation, limits, flying)
    ordered = best_first(
        (entry.pooled() for entry in known.values()), base_fee=situation.base_fee, least_tip=situation.least_tip
    )
    for pooled in ordered:
        if not _is_due(pooled, situation) or not covers(offered(pooled.operation), situation.least):
            continue
        entry = known[pooled.hash]
        if entry.hash in situation.alone:
            if not bundle.chosen:
                return [entry]
            continue
        if bundle.is_full:
            break
        bundle.offer(entry, pooled)
    return bundle.chosen


def _is_due(pooled: PoolOperation, situation: Situation) -> bool:
    after, until = pooled.valid_after, pooled.valid_until
    return after <= situation.now and (until is None or until > situation.now)


class _Bundle:
    """A bundle that is being filled."""

    def __init__(self, reputation: ReputationBook, limits: BundleLimits, flying: Iterable[Entry]) -> None:
        self.chosen: list[Entry] = []
        self._flying = tuple(flying)
        self._reputation = reputation
        self._limits = limits
        self._needed = 0
        self._unused = 0
        self._bytes = 0
        self._context_bytes = 0
        self._senders = {entry.operation.sender for entry in self._flying}
        self._uses: dict[bytes, int] = {}
        # The contracts whose storage validations touched.
        self._touched = {contract for entry in self._flying for contract in entry.validated.storage}

    @property
    def is_full(self) -> bool:
        return len(self.chosen) >= self._limits.operations

    def offer(self, entry: Entry, pooled: PoolOperation) -> None:
        """Take the operation if it fits."""
        version = entry.entry_point.version
        needed = self._needed + operation_gas(version, entry.operation) + _OPERATION_GAS
        unused = max(self._unused, _unused_gas(version, entry.operation))
        size = len(codec_for(version).encode(entry.operation))
        if _transaction_gas(needed, unused) > self._limits.gas or self._bytes + size > self._limits.bytes:
            return
        if self._context_bytes + entry.validated.context_bytes > self._limits.context_bytes:
            return
        if pooled.sender.address in self._senders or not self._may_join(pooled) or self._meets(entry):
            return
        self.chosen.append(entry)
        self._needed, self._unused = needed, unused
        self._bytes += size
        self._context_bytes += entry.validated.context_bytes
        self._senders.add(pooled.sender.address)
        for entity in pooled.counted():
            self._uses[entity.address] = self._uses.get(entity.address, 0) + 1
        self._touched.update(entry.validated.storage)

    def _may_join(self, pooled: PoolOperation) -> bool:
        """GREP-010, GREP-020: nothing of a banned entity, a few of a throttled one."""
        for entity in pooled.counted():
            standing = self._reputation.standing(entity.address)
            if standing == "banned":
                return False
            count = self._uses.get(entity.address, 0)
            if standing == "throttled" and count >= self._reputation.rules.throttled_bundle_count:
                return False
        return True

    def _meets(self, entry: Entry) -> bool:
        """Whether its validation uses the storage of another's sender (STO-041), or what another's writes.

        The latter does not count for two that share a staked entity: that answers for what goes wrong between them
        (EREP-020, EREP-030), and one that counts its operations could else have but one in each bundle.
        """
        storage = entry.validated.storage
        if entry.operation.sender in self._touched or not self._senders.isdisjoint(storage):
            return True
        staked = _staked(entry)
        return any(
            _overlap(entry.validated, other.validated)
            for other in (*self._flying, *self.chosen)
            if not staked or staked.isdisjoint(_staked(other))
        )


def _staked(entry: Entry) -> frozenset[bytes]:
    found = entry.validated
    others = (found.factory, found.paymaster, found.aggregator)
    return frozenset(entity.address for entity in others if entity is not None and entity.staked)


def _overlap(one: Validated, other: Validated) -> bool:
    """Whether one writes what the other reads or writes."""
    return _writes_into(one, other) or _writes_into(other, one)


def _writes_into(one: Validated, other: Validated) -> bool:
    return any(not slots.isdisjoint(other.storage.get(contract, ())) for contract, slots in one.written.items())
