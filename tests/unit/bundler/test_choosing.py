"""Which operations share a bundle: not those whose validations meet in storage (ERC-7562)."""

from collections.abc import Mapping

from capstan.bundler.choosing import BundleLimits, Situation, choose
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.models import Entity
from capstan.bundler.reputation import ReputationBook
from capstan.bundler.validating import Validated
from capstan.chain.calls.models import BlockRef
from capstan.userops.models import UserOperation
from tests.unit.bundler.parts import address

SLOT, OTHER = bytes(32), b"\1" * 32
_ENTRY_POINT = EntryPoint(b"\x43" * 20, "0.7")


def entry(
    sender: int,
    *,
    reads: Mapping[int, bytes] | None = None,
    writes: Mapping[int, bytes] | None = None,
    paymaster: Entity | None = None,
) -> Entry:
    """An operation of a sender whose validation touched these slots of these contracts."""
    touched = {**(reads or {}), **(writes or {})}
    return Entry(
        hash=bytes([sender]) * 32,
        entry_point=_ENTRY_POINT,
        operation=UserOperation(sender=address(sender), nonce=0, max_fee_per_gas=10, max_priority_fee_per_gas=10),
        validated=Validated(
            block=BlockRef(1, "0x" + "00" * 32, 0),
            sender=Entity("account", address(sender), False),
            paymaster=paymaster,
            storage={address(contract): frozenset({slot}) for contract, slot in touched.items()},
            written={address(contract): frozenset({slot}) for contract, slot in (writes or {}).items()},
        ),
        created_at=sender,
    )


def chosen(*entries: Entry) -> list[int]:
    found = choose(entries, ReputationBook(), BundleLimits(gas=10_000_000), Situation(base_fee=1, now=0))
    return [int.from_bytes(each.operation.sender, "big") for each in found]


def test_operations_that_do_not_meet_share_a_bundle() -> None:
    assert chosen(entry(1, writes={9: SLOT}), entry(2, writes={9: OTHER}), entry(3)) == [1, 2, 3]
    assert chosen(entry(1, reads={9: SLOT}), entry(2, reads={9: SLOT})) == [1, 2]


def test_storage_of_another_sender_is_left_alone() -> None:
    """STO-041: whoever came first goes, the other waits."""
    assert chosen(entry(1), entry(2, reads={1: SLOT})) == [1]
    assert chosen(entry(1, reads={2: SLOT}), entry(2)) == [1]


def test_what_one_writes_another_does_not_use() -> None:
    assert chosen(entry(1, writes={9: SLOT}), entry(2, reads={9: SLOT}), entry(3, reads={9: OTHER})) == [1, 3]
    assert chosen(entry(1, reads={9: SLOT}), entry(2, writes={9: SLOT})) == [1]


def test_a_staked_entity_answers_for_what_its_operations_do_to_each_other() -> None:
    staked, plain = (Entity("paymaster", address(9), stake) for stake in (True, False))
    assert chosen(*(entry(sender, writes={9: SLOT}, paymaster=staked) for sender in (1, 2, 3))) == [1, 2, 3]
    assert chosen(*(entry(sender, writes={9: SLOT}, paymaster=plain) for sender in (1, 2, 3))) == [1]
    assert chosen(entry(1, writes={9: SLOT}, paymaster=staked), entry(2, reads={9: SLOT})) == [1]
