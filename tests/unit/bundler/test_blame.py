"""Who answers for a failure, and whose reputation it touches."""

import msgspec
import pytest

from capstan.bundler.blame import (
    accountable,
    changed_context,
    saving_entities,
    settle_failed_bundle,
    settle_second_validation,
)
from capstan.bundler.models import PoolOperation, Role
from capstan.bundler.reputation import ReputationBook
from capstan.bundler.validating import Validated
from capstan.chain.calls.models import BlockRef
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


def found(*, context: int = 0, gas: dict[Role, int] | None = None) -> Validated:
    staked = entity("paymaster", 901, staked=True)
    used: dict[Role, int] = gas or {}
    return Validated(
        block=BlockRef(1, "0x", 1),
        sender=entity("account", 1),
        factory=STAKED_FACTORY,
        paymaster=staked,
        context_bytes=context,
        gas=used,
    )


def test_erep_055_a_context_of_another_length_is_found_out() -> None:
    assert changed_context(found(context=32), found(context=32)) == ""
    for context in (0, 31, 33):
        assert "EREP-055" in changed_context(found(context=32), found(context=context))


def test_erep_070_staked_entities_may_use_a_tenth_less_and_no_more() -> None:
    before = found(gas={"account": 1000, "factory": 1000, "paymaster": 1000})
    same = found(gas={"account": 10, "factory": 900, "paymaster": 5000})
    assert saving_entities(before, same) == []
    less = found(gas={"account": 10, "factory": 899, "paymaster": 899})
    assert [each.role for each in saving_entities(before, less)] == ["factory", "paymaster"]
    book = ReputationBook()
    assert book.throttle(FACTORY.address)
    assert not book.throttle(FACTORY.address)
    assert book.standing(FACTORY.address) == "throttled"
    # Until an operation of it lands.
    book.add_included(FACTORY.address)
    assert book.standing(FACTORY.address) == "ok"


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
