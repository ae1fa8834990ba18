"""The pool of operations of one entry point that wait for a bundle, and the rules of who may enter (ERC-7562).

Owned by the bundler's service, which validates an operation first and stores what the pool accepted. The pool decides
by what it holds: replacement by fee, limits for each sender and entity, deposits of paymasters over all their
operations, addresses that are one thing here and another there. `add` either changes the pool as a whole or raises
`Refusal` and changes nothing. No I/O.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from capstan.bundler.models import Added, Entity, PoolOperation
from capstan.bundler.refusals import (
    DEPOSIT_TOO_LOW,
    INVALID_FIELDS,
    RULE_VIOLATION,
    STAKE_TOO_LOW,
    THROTTLED_OR_BANNED,
    Refusal,
)
from capstan.bundler.reputation import ReputationBook
from capstan.core.hexes import to_checksum_address, to_quantity


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large the pool may be, and by how much a replacement must pay more."""

    most_operations: int = 10_000
    # In percent of the fees of the operation that is replaced.
    replacement_percent: int = 10


class Mempool:
    """Operations by hash, by place and by entity."""

    def __init__(self, reputation: ReputationBook, limits: PoolLimits | None = None) -> None:
        self.reputation = reputation
        self._limits = limits or PoolLimits()
        self._by_hash: dict[bytes, PoolOperation] = {}
        self._by_place: dict[tuple[bytes, int], PoolOperation] = {}
        self._by_sender: dict[bytes, dict[bytes, PoolOperation]] = {}
        # Operations that use an address as factory, paymaster or aggregator.
        self._by_entity: dict[bytes, dict[bytes, PoolOperation]] = {}
        self._reserved: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def __iter__(self) -> Iterator[PoolOperation]:
        return iter(self._by_hash.values())

    def get(self, operation_hash: bytes) -> PoolOperation | None:
        """The operation with this hash."""
        return self._by_hash.get(operation_hash)

    def at(self, place: tuple[bytes, int]) -> PoolOperation | None:
        """The operation for this place."""
        return self._by_place.get(place)

    def of_sender(self, sender: bytes) -> list[PoolOperation]:
        """The operations of one sender, by nonce."""
        return sorted(self._by_sender.get(sender, {}).values(), key=lambda each: each.operation.nonce)

    def reserved(self, paymaster: bytes) -> int:
        """What all operations of a paymaster can cost together, in wei."""
        return self._reserved.get(paymaster, 0)

    def add(self, new: PoolOperation, *, deposit: int = 0) -> Added:
        """Take an operation in. Returns what left the pool for it. `deposit` is that of its paymaster, in wei.

        Raises `Refusal`; then nothing has changed.
        """
        if new.hash in self._by_hash:
            raise Refusal(INVALID_FIELDS, "the operation is in the pool already")
        old = self._by_place.get(new.place)
        if old is not None:
            self._check_replacement(old, new)
        self._check_roles(old, new)
        self._check_delegation(old, new)
        self._check_entity(new.sender, old)
        for entity in new.others():
            self._check_entity(entity, old)
        self._check_deposit(old, new, deposit)
        worst = self._room_for(old, new)
        for leaving in (old, worst):
            if leaving is not None:
                self._drop(leaving)
                # GREP-050: whoever was replaced out did nothing wrong.
                for entity in leaving.counted():
                    self.reputation.take_back_seen(entity.address)
        self._insert(new)
        for entity in new.counted():
            self.reputation.add_seen(entity.address)
        return Added(old, worst)

    def remove(self, operation_hash: bytes) -> PoolOperation | None:
        """Take an operation out: it landed, failed or was dropped. Reputation is the caller's to settle."""
        found = self._by_hash.get(operation_hash)
        if found is not None:
            self._drop(found)
        return found

    def include(self, operation_hash: bytes) -> PoolOperation | None:
        """An operation landed: take it out, to the credit of its entities."""
        found = self.remove(operation_hash)
        if found is not None:
            for entity in found.counted():
                self.reputation.add_included(entity.address)
        return found

    def restore(self, operations: Iterable[PoolOperation]) -> None:
        """Put back what was accepted before a restart or a reorganisation, without judging it again."""
        for each in operations:
            if each.hash not in self._by_hash and each.place not in self._by_place:
                self._insert(each)

    def clear(self) -> None:
        """Forget all operations."""
        for each in list(self):
            self._drop(each)

    def evict_banned(self, address: bytes) -> list[PoolOperation]:
        """Take out everything that uses a banned address (GREP-010)."""
        if self.reputation.standing(address) != "banned":
            return []
        return self._evict(lambda each: each.uses(address))

    def expire(self, *, now: int, block_number: int) -> list[PoolOperation]:
        """Take out what is past its time, and what has a throttled entity and waited too long (GREP-020)."""
        return self._evict(lambda each: self._is_over(each, now, block_number))

    def has_expired(self, *, now: int, block_number: int) -> bool:
        """Whether there is anything for `expire` to take out."""
        return any(self._is_over(each, now, block_number) for each in self)

    # --- the rules

    def _is_over(self, each: PoolOperation, now: int, block_number: int) -> bool:
        if each.valid_until is not None and each.valid_until < now:
            return True
        return block_number - each.block_number > self.reputation.rules.throttled_live_blocks and any(
            self.reputation.standing(entity.address) == "throttled" for entity in each.counted()
        )

    def _check_replacement(self, old: PoolOperation, new: PoolOperation) -> None:
        percent = 100 + self._limits.replacement_percent
        before, after = old.operation, new.operation
        pairs = (
            ("maxPriorityFeePerGas", before.max_priority_fee_per_gas, after.max_priority_fee_per_gas),
            ("maxFeePerGas", before.max_fee_per_gas, after.max_fee_per_gas),
        )
        for name, paid, offered in pairs:
            least = max(paid + 1, -(-paid * percent // 100))
            if offered < least:
                raise Refusal(
                    INVALID_FIELDS,
                    f"replacement underpriced: {name} must be at least {least} to replace the operation with this"
                    f" nonce, not {offered}",
                )

    def _check_roles(self, old: PoolOperation | None, new: PoolOperation) -> None:
        """STO-040: an address is the sender of operations, or something else of others, never both.

        Operations that use storage inside another's sender (STO-041) may wait here together; bundles keep them apart.
        """
        sender = new.sender.address
        if _any_other(self._by_entity, sender, old):
            raise Refusal(
                RULE_VIOLATION,
                f"the sender {to_checksum_address(sender)} is used as a different entity in another UserOperation"
                " currently in mempool (STO-040)",
            )
        for entity in new.others():
            if _any_other(self._by_sender, entity.address, old):
                raise Refusal(
                    RULE_VIOLATION,
                    f"the {entity.role} {to_checksum_address(entity.address)} is used as a sender entity in another"
                    " UserOperation currently in mempool (STO-040)",
                    {entity.role: to_checksum_address(entity.address)},
                )

    def _check_delegation(self, old: PoolOperation | None, new: PoolOperation) -> None:
        """AUTH-040: the tuples of one sender name one delegate."""
        given = new.operation.authorization
        if given is None:
            return
        for each in self._by_sender.get(new.sender.address, {}).values():
            other = each.operation.authorization
            if each is not old and other is not None and other.address != given.address:
                raise Refusal(
                    RULE_VIOLATION,
                    f"another operation of this sender in the pool delegates to {to_checksum_address(other.address)}"
                    " (AUTH-040)",
                )

    def _check_entity(self, entity: Entity, old: PoolOperation | None) -> None:
        """GREP-010, GREP-020, UREP-010, UREP-020."""
        rules, address = self.reputation.rules, entity.address
        shown = to_checksum_address(address)
        is_sender = entity.role == "account"
        # That of a sender without stake is not kept, but it may have one from when it was staked, or was paymaster.
        standing = self.reputation.standing(address)
        if standing == "banned":
            raise Refusal(THROTTLED_OR_BANNED, f"{entity.role} {shown} is banned (GREP-010)", {entity.role: shown})
        used = self._by_sender if is_sender else self._by_entity
        count = sum(each is not old for each in used.get(address, {}).values())
        if standing == "throttled" and count >= rules.throttled_count:
            raise Refusal(
                THROTTLED_OR_BANNED,
                f"{entity.role} {shown} is throttled: {count} operations in the pool use it (GREP-020)",
                {entity.role: shown},
            )
        if entity.staked:
            return
        if entity.role == "factory" and not rules.early_unstaked_limits:
            return
        allowed = rules.same_sender_count if is_sender else self.reputation.allowed_unstaked(address)
        if count >= allowed:
            rule = "UREP-010" if is_sender else "UREP-020"
            raise Refusal(
                STAKE_TOO_LOW,
                f"{entity.role} {shown} is unstaked: {count} operations in the pool use it, and {allowed} may ({rule})",
                {
                    entity.role: shown,
                    "minimumStake": to_quantity(rules.min_stake),
                    "minimumUnstakeDelay": to_quantity(rules.min_unstake_delay),
                },
            )

    def _check_deposit(self, old: PoolOperation | None, new: PoolOperation, deposit: int) -> None:
        """EREP-010: the deposit of a paymaster covers all its operations in the pool together."""
        if new.paymaster is None:
            return
        address = new.paymaster.address
        reserved = self.reserved(address) + new.prefund
        if old is not None and old.paymaster is not None and old.paymaster.address == address:
            reserved -= old.prefund
        if reserved > deposit:
            shown = to_checksum_address(address)
            raise Refusal(
                DEPOSIT_TOO_LOW,
                f"the deposit of paymaster {shown} is too low: {deposit} wei, and with this operation those in the pool"
                f" can cost {reserved} (EREP-010)",
                {"paymaster": shown},
            )

    def _room_for(self, old: PoolOperation | None, new: PoolOperation) -> PoolOperation | None:
        """What must leave so that the new one fits. Raises `Refusal` when nothing in the pool pays less."""
        if old is not None or len(self) < self._limits.most_operations:
            return None
        worst = min(self, key=_price)
        if _price(worst) >= _price(new):
            raise Refusal(INVALID_FIELDS, "the pool is full, and every operation in it pays more; offer higher fees")
        return worst

    # --- the books

    def _evict(self, condition: Callable[[PoolOperation], bool]) -> list[PoolOperation]:
        leaving = [each for each in self if condition(each)]
        for each in leaving:
            self._drop(each)
        return leaving

    def _insert(self, new: PoolOperation) -> None:
        self._by_hash[new.hash] = new
        self._by_place[new.place] = new
        self._by_sender.setdefault(new.sender.address, {})[new.hash] = new
        for entity in new.others():
            self._by_entity.setdefault(entity.address, {})[new.hash] = new
        if new.paymaster is not None:
            self._reserved[new.paymaster.address] = self.reserved(new.paymaster.address) + new.prefund

    def _drop(self, gone: PoolOperation) -> None:
        del self._by_hash[gone.hash]
        del self._by_place[gone.place]
        _discard(self._by_sender, gone.sender.address, gone.hash)
        for address in {entity.address for entity in gone.others()}:
            _discard(self._by_entity, address, gone.hash)
        if gone.paymaster is not None:
            left = self.reserved(gone.paymaster.address) - gone.prefund
            if self._by_entity.get(gone.paymaster.address):
                self._reserved[gone.paymaster.address] = left
            else:
                self._reserved.pop(gone.paymaster.address, None)


def _any_other(table: dict[bytes, dict[bytes, PoolOperation]], key: bytes, old: PoolOperation | None) -> bool:
    return any(each is not old for each in table.get(key, {}).values())


def _discard(table: dict[bytes, dict[bytes, PoolOperation]], key: bytes, operation_hash: bytes) -> None:
    rows = table[key]
    del rows[operation_hash]
    if not rows:
        del table[key]


def _price(each: PoolOperation) -> tuple[int, int]:
    return each.operation.max_priority_fee_per_gas, each.operation.max_fee_per_gas
