"""Who answers for a failure, and whose reputation it touches."""

import msgspec
import pytest

from capstan.bundler.blame import accountable, settle_failed_bundle, settle_second_validation
from capstan.bundler.models import PoolOperation, Role
from capstan.bundler.reputation import ReputationBook
from tests.unit.bundler.parts import address, entity, pooled

FACTORY, STAKED_FACTORY = entity("factory", 800), entity("factory", 801, staked=True)
PAYMASTER, AGGREGATOR = entity("paymaster", 900), entity("aggregator", 950, staked=True)


def operation(*, staked: bool = False, factory_staked: bool = False) -> PoolOperation:
    made = pooled(1, staked=staked, factory=STAKED_FACTORY if factory_staked else FACTORY, paymaster=PAYMASTER)
    return msgspec.structs.replace(made, aggregator=AGGREGATOR)


@pytest.mark.parametrize(
    ("role", "staked", "factory_staked", "guilty"),
    [
        ("factory", False, False, "factory"),
        ("factory", True, True, "factory"),
        ("account", False, False, "account"),
        ("account", True, False, "account"),
        ("account", False, True, "factory"),
        ("account", True, True, "factory"),
        ("paymaster", False, True, "paymaster"),
        ("paymaster", True, True, "account"),
        ("aggregator", False, False, "aggregator"),
        ("aggregator", True, False, "account"),
    ],
)
def test_the_staked_answer_for_others(role: Role, staked: bool, factory_staked: bool, guilty: str) -> None:
    assert accountable(operation(staked=staked, factory_staked=factory_staked), role).role == guilty


def test_an_operation_without_the_part_is_its_senders() -> None:
    alone = pooled(1)
    for role in ("factory", "account", "paymaster", "aggregator"):
        assert accountable(alone, role) == alone.sender


def counted(failed: PoolOperation) -> ReputationBook:
    book = ReputationBook()
    for each in failed.counted():
        book.add_seen(each.address)
    return book


def seen(book: ReputationBook) -> dict[bytes, int]:
    return {each.address: each.seen for each in book}


def test_a_paymaster_is_not_held_back_for_an_account() -> None:
    failed = operation()
    book = counted(failed)
    settle_second_validation(book, failed, "account")
    assert seen(book) == {FACTORY.address: 1}


def test_a_paymaster_that_fails_itself_keeps_its_count() -> None:
    failed = operation()
    book = counted(failed)
    settle_second_validation(book, failed, "paymaster")
    assert seen(book) == {FACTORY.address: 1, PAYMASTER.address: 1, AGGREGATOR.address: 1}


def test_who_breaks_a_bundle_is_banned_and_nobody_else() -> None:
    failed = operation(factory_staked=True)
    book = counted(failed)
    assert settle_failed_bundle(book, failed, "account") == STAKED_FACTORY
    assert book.standing(STAKED_FACTORY.address) == "banned"
    assert book.standing(PAYMASTER.address) == "ok"
    assert PAYMASTER.address not in seen(book)
    failed = operation()
    book = counted(failed)
    assert settle_failed_bundle(book, failed, "paymaster") == PAYMASTER
    assert book.standing(PAYMASTER.address) == "banned"
    assert seen(book)[AGGREGATOR.address] == 1


def test_a_sender_without_stake_is_not_remembered() -> None:
    failed = pooled(1, paymaster=PAYMASTER)
    book = counted(failed)
    assert settle_failed_bundle(book, failed, "account") == failed.sender
    assert address(1) not in seen(book)
    assert book.standing(PAYMASTER.address) == "ok"
