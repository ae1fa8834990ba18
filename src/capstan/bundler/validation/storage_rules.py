"""The storage rules of ERC-7562, from STO-010 to STO-033; transient storage counts as storage (OP-070).

Called by the service with the calls of each entity. Rules that compare operations with each other (STO-040, STO-041)
are the pool's; what it needs for them is collected here. Pure.
"""

from collections.abc import Callable, Iterable, Iterator

from capstan.bundler.models import Role
from capstan.bundler.validation.phases import Phases
from capstan.bundler.validation.rules import Subject, Violation
from capstan.bundler.validation.trace import Frame
from capstan.core.hexes import keccak256

# How far behind a hash a member of a struct may be: keccak(A || x) + n (ERC-7562, definition of associated storage).
_LARGEST_OFFSET = 128


class Associations:
    """Which slots belong to which address: its own number, and what comes of hashing something that begins with it."""

    def __init__(self, addresses: Iterable[bytes], hashed: Iterable[bytes]) -> None:
        own = {address.rjust(32, b"\0"): address for address in addresses}
        self._starts: dict[bytes, list[int]] = {address: [] for address in own.values()}
        for source in hashed:
            address = own.get(source[:32])
            if address is not None:
                self._starts[address].append(int.from_bytes(keccak256(source), "big"))

    def holds(self, slot: bytes, address: bytes) -> bool:
        """Whether the slot is associated with the address."""
        if slot == address.rjust(32, b"\0"):
            return True
        number = int.from_bytes(slot, "big")
        return any(0 <= number - start <= _LARGEST_OFFSET for start in self._starts.get(address, ()))


class StorageUse:
    """What storage an operation used, and whether it might."""

    def __init__(self, subject: Subject, phases: Phases, hashed: Iterable[bytes]) -> None:
        entities = (subject.sender, subject.factory, subject.paymaster)
        self._subject = subject
        self._associations = Associations((each for each in entities if each is not None), hashed)
        self._phases = phases

    def violations(self) -> Iterator[Violation]:
        """What it broke, in the order of the calls."""
        for role, top in self._phases.by_role():
            for frame in top.walk():
                yield from self._judge(role, frame)

    def touched(self) -> dict[bytes, frozenset[bytes]]:
        """All slots it read or wrote, by contract, but for those of the entry point."""
        return self._collect(lambda frame: frame.reads | frame.writes)

    def written(self) -> dict[bytes, frozenset[bytes]]:
        """Those it wrote."""
        return self._collect(lambda frame: frame.writes)

    def associated(self) -> frozenset[bytes]:
        """The contracts, other than the sender, in which it used storage associated with an entity (STO-041)."""
        found = set()
        for role, top in self._phases.by_role():
            owners = {self._subject.sender, self._subject.address(role) or self._subject.sender}
            for frame in top.walk():
                if frame.context in (self._subject.sender, self._subject.entry_point):
                    continue
                if any(self._associations.holds(slot, owner) for slot in _slots(frame) for owner in owners):
                    found.add(frame.context)
        return frozenset(found)

    def _judge(self, role: Role, frame: Frame) -> Iterator[Violation]:
        subject = self._subject
        # The account's own storage is free (STO-010); what the entry point does in its own is its affair.
        if frame.context in (subject.sender, subject.entry_point):
            return
        for slot in sorted(_slots(frame)):
            is_write = slot in frame.writes or slot in frame.transient_writes
            if self._may_use(role, frame.context, slot, is_write=is_write):
                continue
            name = subject.name(frame.context)
            if role not in subject.staked and self._stake_would_do(role, frame.context, slot, is_write=is_write):
                message = f"unstaked {role} accessed {name} slot 0x{slot.hex()}"
                yield Violation(rule="STO-031", role=role, message=message, stake_helps=True)
                continue
            access = "write to" if is_write else "read from"
            transient = "transient " if slot in frame.transient_reads | frame.transient_writes else ""
            message = f"{role} has forbidden {access} {transient}{name} slot 0x{slot.hex()}"
            yield Violation(rule="STO-010", role=role, message=message)

    def _may_use(self, role: Role, contract: bytes, slot: bytes, *, is_write: bool) -> bool:
        subject = self._subject
        if role in subject.staked and self._stake_would_do(role, contract, slot, is_write=is_write):
            return True
        if self._is_entity(contract) or not self._associations.holds(slot, subject.sender):
            return False
        if subject.factory is None:
            # STO-021.
            return True
        # STO-022: the account itself, or another entity that is staked as well.
        return "factory" in subject.staked and (role == "account" or role in subject.staked)

    def _stake_would_do(self, role: Role, contract: bytes, slot: bytes, *, is_write: bool) -> bool:
        """STO-031, STO-032, STO-033: what is allowed to an entity that is staked."""
        own = self._subject.address(role)
        if own is None or contract == own:
            return own is not None
        return not self._is_entity(contract) and (self._associations.holds(slot, own) or not is_write)

    def _is_entity(self, contract: bytes) -> bool:
        """Whether the contract is a factory or paymaster: outside of them only, slots may be used by association."""
        return contract in (self._subject.factory, self._subject.paymaster)

    def _collect(self, slots_of: Callable[[Frame], frozenset[bytes]]) -> dict[bytes, frozenset[bytes]]:
        found: dict[bytes, frozenset[bytes]] = {}
        for _, top in self._phases.by_role():
            for frame in top.walk():
                slots = slots_of(frame)
                if slots and frame.context != self._subject.entry_point:
                    found[frame.context] = found.get(frame.context, frozenset()) | slots
        return found


def _slots(frame: Frame) -> frozenset[bytes]:
    return frame.reads | frame.writes | frame.transient_reads | frame.transient_writes
