"""How many operations share a bundle, and which come first. `test_choosing` has those that meet in storage."""

from collections.abc import Sequence
from typing import Any

import msgspec

from capstan.bundler.choosing import BundleLimits, Situation, bundle_gas, choose, first_of_lanes
from capstan.bundler.entries import Entry, EntryPoint
from capstan.bundler.fees import Fees
from capstan.bundler.models import Entity
from capstan.bundler.reputation import Reputation, ReputationBook
from capstan.bundler.validating import Validated
from capstan.chain.calls.models import BlockRef
from capstan.userops.codec import codec_for
from capstan.userops.models import UserOperation
from tests.unit.bundler.parts import address, entity

ENTRY_POINT = EntryPoint(address(4337), "0.7")
LIMITS = BundleLimits(gas=10**9)


def entry(number: int, *, sender: int | None = None, tip: int = 100, nonce: int | None = None, **found: Any) -> Entry:
    """An operation with this number in its hash, of a sender with the same number unless told."""
    who = address(number if sender is None else sender)
    operation = UserOperation(
        sender=who,
        nonce=number << 64 if nonce is None else nonce,
        call_gas_limit=1000,
        max_fee_per_gas=tip + 1000,
        max_priority_fee_per_gas=tip,
        pre_verification_gas=1000,
    )
    validated = Validated(block=BlockRef(1, "0x", 1), sender=Entity("account", who, False))
    return Entry(
        hash=number.to_bytes(32, "big"),
        entry_point=ENTRY_POINT,
        operation=operation,
        validated=msgspec.structs.replace(validated, **found),
        created_at=number,
    )


def chosen(
    *entries: Entry,
    book: ReputationBook | None = None,
    limits: BundleLimits = LIMITS,
    flying: Sequence[Entry] = (),
    **situation: Any,
) -> list[int]:
    """The numbers of those that are chosen, in order."""
    given = Situation(**{"base_fee": 10, "now": 1000, **situation})
    found = choose(entries, book or ReputationBook(), limits, given, flying)
    return [int.from_bytes(each.hash, "big") for each in found]


def test_who_pays_most_comes_first() -> None:
    assert chosen(entry(1, tip=1), entry(2, tip=3), entry(3, tip=2)) == [2, 3, 1]


def test_a_sender_has_one_operation_in_a_bundle() -> None:
    assert chosen(entry(1, sender=9, tip=1), entry(2, sender=9, tip=2), entry(3)) == [3, 2]


def test_what_meets_a_bundle_on_its_way_waits_for_it() -> None:
    shared = {address(50): frozenset({bytes(32)})}
    flying = entry(1, sender=9, storage=shared, written=shared)
    assert chosen(entry(2, sender=9), entry(3, storage=shared), entry(4), flying=[flying]) == [4]
    # Nor may it touch the storage of that one's sender, or be a sender whose storage that one touched.
    assert chosen(entry(5, storage={address(9): frozenset()}), entry(6, sender=50), flying=[flying]) == []


def test_the_first_of_each_lane_of_nonces_is_found() -> None:
    lane = [entry(number, sender=9, nonce=5 + number) for number in (3, 1, 2)]
    other = entry(4, sender=9, nonce=(1 << 64) + 7)
    assert first_of_lanes([*lane, other, entry(5)]) == {each.hash for each in (lane[1], other, entry(5))}


def test_a_bundle_has_limits() -> None:
    entries = [entry(number) for number in range(1, 6)]
    gas = bundle_gas("0.7", [each.operation for each in entries[:3]]) + 100
    assert len(chosen(*entries, limits=BundleLimits(gas=gas))) == 3
    size = len(codec_for("0.7").encode(entries[0].operation))
    assert len(chosen(*entries, limits=BundleLimits(gas=10**9, bytes=2 * size))) == 2
    assert len(chosen(*entries, limits=BundleLimits(gas=10**9, operations=4))) == 4
    contexts = [entry(number, context_bytes=2048) for number in range(1, 40)]
    # LIM-050.
    assert len(chosen(*contexts)) == 65_536 // 2048


def test_the_gas_of_a_bundle_is_within_the_limit_by_which_it_was_chosen() -> None:
    entries = [entry(number) for number in range(1, 40)]
    for gas in range(100_000, 1_500_000, 77_777):
        numbers = chosen(*entries, limits=BundleLimits(gas=gas))
        assert bundle_gas("0.7", [entries[number - 1].operation for number in numbers]) <= gas or not numbers


def test_what_0_6_wants_left_over_is_needed_once_in_a_bundle() -> None:
    operation = UserOperation(sender=address(1), nonce=0, verification_gas_limit=5_000_000, call_gas_limit=300_000)
    alone, two = bundle_gas("0.6", [operation]), bundle_gas("0.6", [operation] * 2)
    # The verification limit again must be left when the call begins, and is left still for the next.
    assert alone > 2 * 5_000_000
    assert 3 * 5_000_000 < two < 3 * 5_000_000 + 1_000_000
    sponsored = msgspec.structs.replace(operation, paymaster=address(2))
    assert bundle_gas("0.6", [sponsored] * 2) > 6 * 5_000_000
    assert bundle_gas("0.7", [operation]) < 5_500_000


def test_what_is_not_due_or_over_waits() -> None:
    early, late, due = entry(1, valid_after=1001), entry(2, valid_until=1000), entry(3, valid_after=1000)
    assert chosen(early, late, due) == [3]


def test_what_does_not_pay_the_base_fee_or_the_least_tip_waits() -> None:
    assert chosen(entry(1, tip=5), entry(2, tip=50), least_tip=6) == [2]
    assert chosen(entry(1), base_fee=1101) == []


def test_a_replacement_takes_only_what_pays_enough() -> None:
    assert chosen(entry(1, tip=5), entry(2, tip=50), least=Fees(1010, 20)) == [2]


def test_a_throttled_entity_has_few_operations_and_a_banned_one_none() -> None:
    book = ReputationBook()
    book.restore([Reputation(address(50), 120, 1), Reputation(address(51), 10_000, 0)])
    throttled = [entry(number, paymaster=entity("paymaster", 50)) for number in range(1, 8)]
    banned = entry(9, paymaster=entity("paymaster", 51))
    assert len(chosen(*throttled, banned, book=book)) == 4
    assert chosen(banned, book=book) == []


def test_a_suspect_is_alone_in_its_bundle() -> None:
    suspect = frozenset({(2).to_bytes(32, "big")})
    assert chosen(entry(1, tip=1), entry(2, tip=5), alone=suspect) == [2]
    assert chosen(entry(1, tip=9), entry(2, tip=5), entry(3, tip=1), alone=suspect) == [1, 3]
