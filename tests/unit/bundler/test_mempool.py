"""Who enters the pool and who does not, rule by rule, and that a refusal changes nothing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.bundler.mempool import Mempool, PoolLimits
from capstan.bundler.models import Added, PoolOperation
from capstan.bundler.refusals import (
    DEPOSIT_TOO_LOW,
    INVALID_FIELDS,
    RULE_VIOLATION,
    STAKE_TOO_LOW,
    THROTTLED_OR_BANNED,
    Refusal,
)
from capstan.bundler.reputation import Reputation, ReputationBook, ReputationRules
from tests.unit.bundler.parts import address, entity, pooled

PAYMASTER = entity("paymaster", 900)
STAKED_PAYMASTER = entity("paymaster", 901, staked=True)
FACTORY = entity("factory", 800)
PLENTY = 10**30


def new_pool(**limits: Any) -> Mempool:
    return Mempool(ReputationBook(), PoolLimits(**limits))


def refused(pool: Mempool, operation: PoolOperation, code: int, rule: str, deposit: int = PLENTY) -> Refusal:
    """The refusal, which must have left everything as it was."""
    before = state(pool)
    with pytest.raises(Refusal, match=rule) as caught:
        pool.add(operation, deposit=deposit)
    assert caught.value.code == code
    assert state(pool) == before
    return caught.value


def state(pool: Mempool) -> Any:
    """Everything that can be seen of a pool."""
    senders = {each.sender.address for each in pool}
    return (
        list(pool),
        {sender: pool.of_sender(sender) for sender in senders},
        {each.paymaster.address: pool.reserved(each.paymaster.address) for each in pool if each.paymaster},
        sorted((each.address, each.seen, each.included) for each in pool.reputation),
    )


def test_operations_are_found_again() -> None:
    pool = new_pool()
    first, second, other = pooled(1, 5), pooled(1, 2), pooled(2)
    for each in (first, second, other):
        assert pool.add(each) == Added()
    assert len(pool) == 3
    assert pool.get(first.hash) is first
    assert pool.get(b"") is None
    assert pool.of_sender(address(1)) == [second, first]
    assert pool.remove(first.hash) is first
    assert pool.remove(first.hash) is None
    assert pool.of_sender(address(1)) == [second]


def test_the_same_operation_again_is_refused() -> None:
    pool, operation = new_pool(), pooled()
    pool.add(operation)
    refused(pool, operation, INVALID_FIELDS, "already")


@given(
    old=st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)),
    new=st.tuples(st.integers(0, 2 * 10**12), st.integers(0, 2 * 10**12)),
)
def test_a_replacement_pays_a_tenth_more_of_both_fees(old: tuple[int, int], new: tuple[int, int]) -> None:
    pool = new_pool()
    first = pooled(fee=old[0], tip=old[1])
    pool.add(first)
    second = pooled(fee=new[0], tip=new[1])
    enough = all(offered * 10 >= paid * 11 and offered > paid for offered, paid in zip(new, old, strict=True))
    if enough:
        assert pool.add(second) == Added(replaced=first)
        assert list(pool) == [second]
    else:
        refused(pool, second, INVALID_FIELDS, "replacement underpriced")


def test_a_replacement_is_not_one_more() -> None:
    pool = new_pool()
    for nonce in range(4):
        pool.add(pooled(nonce=nonce))
    assert pool.add(pooled(nonce=3, fee=200)).replaced is not None
    refused(pool, pooled(nonce=4), STAKE_TOO_LOW, "UREP-010")


def test_an_unstaked_sender_has_four_and_a_staked_one_any_number() -> None:
    pool = new_pool()
    for nonce in range(4):
        pool.add(pooled(1, nonce))
    refusal = refused(pool, pooled(1, 4), STAKE_TOO_LOW, "UREP-010")
    assert refusal.data["minimumUnstakeDelay"] == "0x15180"
    assert "account" in refusal.data
    for nonce in range(20):
        pool.add(pooled(2, nonce, staked=True))
    # Another lane of nonces is no way around it.
    refused(pool, pooled(1, 1 << 64), STAKE_TOO_LOW, "UREP-010")


def test_an_unstaked_paymaster_has_ten_and_more_by_merit() -> None:
    pool = new_pool()
    for sender in range(1, 11):
        pool.add(pooled(sender, paymaster=PAYMASTER), deposit=PLENTY)
    refused(pool, pooled(50, paymaster=PAYMASTER), STAKE_TOO_LOW, "UREP-020")
    pool.reputation.restore([Reputation(PAYMASTER.address, 1000, 1000)])
    for sender in range(50, 70):
        pool.add(pooled(sender, paymaster=PAYMASTER), deposit=PLENTY)
    for sender in range(100, 150):
        pool.add(pooled(sender, paymaster=STAKED_PAYMASTER), deposit=PLENTY)


def test_on_0_6_unstaked_factories_have_ten_too_and_each_inclusion_allows_one_more() -> None:
    pool = Mempool(ReputationBook(ReputationRules(early_unstaked_limits=True)))
    pool.reputation.restore([Reputation(FACTORY.address, 10, 1), Reputation(PAYMASTER.address, 10, 1)])
    for sender in range(1, 12):
        pool.add(pooled(sender, factory=FACTORY))
        pool.add(pooled(sender + 100, paymaster=PAYMASTER), deposit=PLENTY)
    refused(pool, pooled(50, factory=FACTORY), STAKE_TOO_LOW, "UREP-020")
    refused(pool, pooled(50, paymaster=PAYMASTER), STAKE_TOO_LOW, "UREP-020")


def test_a_sender_that_is_banned_or_throttled_is_so_without_stake() -> None:
    pool = new_pool()
    pool.add(pooled(1))
    pool.reputation.restore([Reputation(address(1), 100_000, 1), Reputation(address(2), 120, 1)])
    refused(pool, pooled(1, 1), THROTTLED_OR_BANNED, "GREP-010")
    assert [each.sender.address for each in pool.evict_banned(address(1))] == [address(1)]
    for nonce in range(4):
        pool.add(pooled(2, nonce))
    refused(pool, pooled(2, 4), THROTTLED_OR_BANNED, "GREP-020")


def test_a_deposit_covers_all_operations_of_its_paymaster() -> None:
    pool = new_pool()
    pool.add(pooled(1, paymaster=PAYMASTER, prefund=60), deposit=100)
    refusal = refused(pool, pooled(2, paymaster=PAYMASTER, prefund=41), DEPOSIT_TOO_LOW, "EREP-010", deposit=100)
    assert "paymaster" in refusal.data
    pool.add(pooled(2, paymaster=PAYMASTER, prefund=40), deposit=100)
    assert pool.reserved(PAYMASTER.address) == 100
    # What is replaced is not counted with what replaces it.
    pool.add(pooled(2, paymaster=PAYMASTER, prefund=30, fee=200), deposit=100)
    assert pool.reserved(PAYMASTER.address) == 90
    refused(pool, pooled(3, paymaster=entity("paymaster", 902)), DEPOSIT_TOO_LOW, "EREP-010", deposit=0)


def test_a_banned_entity_stays_out_and_its_operations_leave() -> None:
    pool = new_pool()
    first, second, other = pooled(1, paymaster=PAYMASTER), pooled(2, paymaster=PAYMASTER), pooled(3)
    for each in (first, second, other):
        pool.add(each, deposit=PLENTY)
    assert pool.evict_banned(PAYMASTER.address) == []
    pool.reputation.condemn(PAYMASTER.address)
    refused(pool, pooled(4, paymaster=PAYMASTER), THROTTLED_OR_BANNED, "banned")
    assert pool.evict_banned(PAYMASTER.address) == [first, second]
    assert list(pool) == [other]


def test_a_throttled_entity_has_four_for_ten_blocks() -> None:
    pool = new_pool()
    pool.reputation.restore([Reputation(FACTORY.address, 110, 0)])
    made = [pooled(sender, factory=FACTORY, block_number=100) for sender in range(1, 5)]
    for each in made:
        pool.add(each)
    # The counting of these four does not make it worse than throttled.
    refused(pool, pooled(9, factory=FACTORY), THROTTLED_OR_BANNED, "GREP-020")
    assert pool.expire(now=0, block_number=110) == []
    assert pool.expire(now=0, block_number=111) == made


def test_operations_past_their_time_leave() -> None:
    pool = new_pool()
    short, long = pooled(1, valid_until=1000), pooled(2)
    for each in (short, long):
        pool.add(each)
    assert pool.expire(now=1000, block_number=10**6) == []
    assert pool.expire(now=1001, block_number=10**6) == [short]
    assert list(pool) == [long]


def test_an_address_has_one_role() -> None:
    pool = new_pool()
    pool.add(pooled(1, paymaster=entity("paymaster", 2, staked=True)), deposit=PLENTY)
    refused(pool, pooled(2), RULE_VIOLATION, "STO-040")
    refusal = refused(pool, pooled(3, factory=entity("factory", 1)), RULE_VIOLATION, "STO-040")
    assert "factory" in refusal.data
    # It may replace itself with other entities.
    pool.add(pooled(1, fee=200))
    pool.add(pooled(2))


def test_who_uses_storage_of_another_sender_may_wait_beside_it() -> None:
    """STO-041 is for bundles: see `test_choosing`."""
    pool = new_pool()
    pool.add(pooled(1, associated=frozenset({address(5)})))
    pool.add(pooled(5))
    assert len(pool) == 2


def test_one_sender_delegates_to_one_contract() -> None:
    pool = new_pool()
    pool.add(pooled(1, 0, delegate=7))
    refused(pool, pooled(1, 1, delegate=8), RULE_VIOLATION, "AUTH-040")
    pool.add(pooled(1, 1, delegate=7))
    pool.add(pooled(1, 2))
    pool.add(pooled(2, 0, delegate=8))


def test_a_full_pool_lets_the_worst_go_for_a_better_one() -> None:
    pool = new_pool(most_operations=3)
    worst = pooled(2, fee=10, paymaster=STAKED_PAYMASTER)
    for each in (pooled(1, fee=30), worst, pooled(3, fee=20)):
        pool.add(each, deposit=PLENTY)
    refused(pool, pooled(4, fee=10), INVALID_FIELDS, "full")
    better = pooled(4, fee=11)
    assert pool.add(better) == Added(evicted=worst)
    assert len(pool) == 3
    assert list(pool.reputation) == []
    assert pool.reserved(STAKED_PAYMASTER.address) == 0
    assert pool.add(pooled(1, fee=40)).evicted is None


def test_reputation_counts_what_enters_and_lands() -> None:
    pool = new_pool()
    operation = pooled(1, staked=True, paymaster=PAYMASTER, factory=FACTORY)
    pool.add(operation, deposit=PLENTY)
    pool.add(pooled(2, paymaster=PAYMASTER), deposit=PLENTY)
    assert pool.include(operation.hash) is operation
    assert pool.include(operation.hash) is None
    found = {each.address: (each.seen, each.included) for each in pool.reputation}
    assert found == {address(1): (1, 1), FACTORY.address: (1, 1), PAYMASTER.address: (2, 1)}


def test_replaced_entities_are_not_blamed() -> None:
    pool = new_pool()
    pool.add(pooled(1, paymaster=PAYMASTER, factory=FACTORY), deposit=PLENTY)
    pool.add(pooled(1, paymaster=STAKED_PAYMASTER, factory=FACTORY, fee=200), deposit=PLENTY)
    found = {each.address: each.seen for each in pool.reputation}
    assert found == {STAKED_PAYMASTER.address: 1, FACTORY.address: 1}


def test_what_was_accepted_is_restored_without_counting_again() -> None:
    pool, other = new_pool(), new_pool()
    for nonce in range(4):
        pool.add(pooled(1, nonce, paymaster=PAYMASTER, prefund=7), deposit=PLENTY)
    other.restore(pool)
    other.restore(pool)
    assert list(other) == list(pool)
    assert other.reserved(PAYMASTER.address) == 28
    assert list(other.reputation) == []
    other.clear()
    assert state(other) == state(new_pool())


actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "add", "remove", "include", "expire", "condemn"]),
        st.integers(1, 4),
        st.integers(0, 5),
        st.integers(1, 300),
        st.sampled_from([None, PAYMASTER, STAKED_PAYMASTER, entity("paymaster", 2)]),
        st.integers(0, 50),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(actions)
def test_whatever_happens_the_books_are_right(steps: list[tuple[Any, ...]]) -> None:
    pool = new_pool(most_operations=9)
    deposits = {PAYMASTER.address: 120, STAKED_PAYMASTER.address: 90, address(2): 50}
    for turn, (action, sender, nonce, fee, paymaster, prefund) in enumerate(steps):
        present = list(pool)
        if action == "add":
            operation = pooled(sender, nonce, fee=fee, paymaster=paymaster, prefund=prefund, valid_until=turn + 20)
            before = state(pool)
            try:
                pool.add(operation, deposit=deposits[paymaster.address] if paymaster else 0)
            except Refusal:
                assert state(pool) == before
        elif action == "remove" and present:
            pool.remove(present[nonce % len(present)].hash)
        elif action == "include" and present:
            pool.include(present[nonce % len(present)].hash)
        elif action == "expire":
            pool.expire(now=turn, block_number=turn)
        elif action == "condemn" and paymaster is not None:
            pool.reputation.condemn(paymaster.address)
            pool.evict_banned(paymaster.address)
        _check(pool, deposits)


def _check(pool: Mempool, deposits: dict[bytes, int]) -> None:
    present = list(pool)
    assert len(pool) == len(present) <= 9
    assert len({each.place for each in present}) == len(present)
    senders = {each.sender.address for each in present}
    for sender in senders:
        own = pool.of_sender(sender)
        assert sorted(each.hash for each in own) == sorted(
            each.hash for each in present if each.sender.address == sender
        )
        assert len(own) <= 4
    for paymaster, deposit in deposits.items():
        used = [each for each in present if each.paymaster and each.paymaster.address == paymaster]
        assert pool.reserved(paymaster) == sum(each.prefund for each in used) <= deposit
        # STO-040, which speaks of other operations: a sender may pay as its own paymaster.
        sent = [each for each in present if each.sender.address == paymaster]
        assert not [(one, other) for one in used for other in sent if one is not other]


def test_an_operation_is_not_changed_by_the_pool() -> None:
    operation = pooled(1, paymaster=PAYMASTER)
    copy = msgspec.structs.replace(operation)
    pool = new_pool()
    pool.add(operation, deposit=1)
    assert operation == copy
    assert operation.uses(address(1))
    assert operation.uses(PAYMASTER.address)
    assert not operation.uses(address(2))
