"""The order of a bundle: who pays most first, every lane of nonces in its own order."""

from hypothesis import given
from hypothesis import strategies as st

from capstan.bundler.models import PoolOperation
from capstan.bundler.order import best_first, tip
from tests.unit.bundler.parts import pooled

LANE = 1 << 64


def test_who_pays_most_comes_first() -> None:
    low, high, middle = pooled(1, fee=10), pooled(2, fee=30), pooled(3, fee=20)
    assert list(best_first([low, high, middle], base_fee=5)) == [high, middle, low]


def test_the_base_fee_decides_what_is_left() -> None:
    capped, open_ended = pooled(1, fee=12, tip=10), pooled(2, fee=100, tip=5)
    assert (tip(capped, 0), tip(capped, 10), tip(open_ended, 10)) == (10, 2, 5)
    assert list(best_first([capped, open_ended], base_fee=0)) == [capped, open_ended]
    assert list(best_first([capped, open_ended], base_fee=10)) == [open_ended, capped]
    assert list(best_first([capped, open_ended], base_fee=13)) == [open_ended]


def test_a_nonce_waits_for_the_one_before() -> None:
    first, second, other = pooled(1, 0, fee=10), pooled(1, 1, fee=99), pooled(2, fee=50)
    assert list(best_first([second, other, first], base_fee=0)) == [other, first, second]
    assert list(best_first([second, other, first], base_fee=0, least_tip=11)) == [other]


def test_of_two_that_pay_the_same_the_earlier_comes_first() -> None:
    late, early = pooled(1, created_at=20), pooled(2, created_at=10)
    assert list(best_first([late, early], base_fee=0)) == [early, late]


def test_lanes_of_a_sender_do_not_wait_for_each_other() -> None:
    slow, fast = pooled(1, 0, fee=10), pooled(1, LANE, fee=99)
    assert list(best_first([slow, fast], base_fee=0)) == [fast, slow]


pools = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 1), st.integers(0, 40), st.integers(0, 40)),
    unique_by=lambda row: row[:3],
    max_size=20,
)


def naive(operations: list[PoolOperation], base_fee: int, least_tip: int) -> list[PoolOperation]:
    """The same said in the simplest way."""
    left: list[PoolOperation] = list(operations)
    chosen: list[PoolOperation] = []
    while True:
        ready = [
            each
            for each in left
            if tip(each, base_fee) >= least_tip
            and not any(
                other.sender == each.sender
                and other.operation.nonce_key == each.operation.nonce_key
                and other.operation.nonce < each.operation.nonce
                for other in left
            )
        ]
        if not ready:
            return chosen
        best = min(ready, key=lambda each: (-tip(each, base_fee), each.hash))
        left.remove(best)
        chosen.append(best)


@given(pools, st.integers(0, 30), st.integers(0, 10))
def test_the_order_is_the_greedy_one(rows: list[tuple[int, ...]], base_fee: int, least_tip: int) -> None:
    operations = [
        pooled(sender, lane * LANE + nonce, fee=fee, tip=priority) for sender, nonce, lane, fee, priority in rows
    ]
    expected = naive(operations, base_fee, least_tip)
    assert list(best_first(operations, base_fee=base_fee, least_tip=least_tip)) == expected
    assert list(best_first(reversed(operations), base_fee=base_fee, least_tip=least_tip)) == expected
