"""The arithmetic of gas estimates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.gas.estimates import (
    PERCENTILES,
    Row,
    highest_base_fee,
    next_base_fee,
    offers_with_gas_price,
    offers_with_tips,
)

GWEI = 10**9
WEI = st.integers(min_value=0, max_value=10**15)
TIPS = st.lists(WEI, min_size=len(PERCENTILES), max_size=len(PERCENTILES)).map(lambda tips: tuple(sorted(tips)))
ROWS = st.lists(st.builds(Row, WEI, st.booleans(), st.one_of(st.just(()), TIPS), st.booleans()), max_size=60)


def row(tip: int, *, full: bool = False) -> Row:
    return Row(10 * GWEI, full, (tip,) * len(PERCENTILES))


@pytest.mark.parametrize(
    ("base_fee", "gas_used", "following"),
    [
        # Blocks of Ethereum with a gas limit of 30,000,000.
        (0x52D80A82C, 12_262_585, 0x50F43F659),
        (0x50F43F659, 13_592_557, 0x50012DE8D),
        (0x50012DE8D, 12_275_721, 0x4E30357D6),
        (0x4E30357D6, 29_962_611, 0x57EFFF9E7),
        # At the target, empty, full, and where the change is less than one wei.
        (1_000, 15_000_000, 1_000),
        (1_000, 0, 875),
        (1_000, 30_000_000, 1_125),
        (7, 15_000_001, 8),
        (7, 14_999_999, 7),
    ],
)
def test_the_next_base_fee_is_that_of_eip_1559(base_fee: int, gas_used: int, following: int) -> None:
    assert next_base_fee(base_fee, gas_used, 30_000_000) == following


@given(st.integers(1, 10**15), st.lists(st.integers(0, 30_000_000), min_size=1, max_size=8))
def test_no_base_fee_rises_beyond_the_bound(base_fee: int, used: list[int]) -> None:
    fee = base_fee
    for gas in used:
        fee = next_base_fee(fee, gas, 30_000_000)
    assert fee <= highest_base_fee(base_fee, len(used))


def test_a_tip_is_one_that_its_share_of_blocks_took() -> None:
    slow, standard, fast = offers_with_tips(10 * GWEI, [row(tip) for tip in range(101, 201)])
    assert (slow.max_priority_fee, standard.max_priority_fee, fast.max_priority_fee) == (151, 181, 197)
    # 51 of 100 took it: all of 5 blocks refuse in 2.8 % of all cases, all of 4 in 5.8 %.
    assert (slow.blocks, standard.blocks, fast.blocks) == (5, 2, 1)


def test_where_all_blocks_take_the_same_every_level_is_for_the_next_block() -> None:
    offers = offers_with_tips(10 * GWEI, [row(GWEI)] * 20)
    assert {offer.blocks for offer in offers} == {1}
    assert {offer.max_priority_fee for offer in offers} == {GWEI}
    assert [offer.max_fee for offer in offers] == [highest_base_fee(10 * GWEI, room) + GWEI for room in (2, 4, 6)]


def test_blocks_without_transactions_take_time_where_others_have_some() -> None:
    busy = [row(GWEI)] * 40 + [Row(GWEI, False)] * 20
    assert [offer.blocks for offer in offers_with_tips(GWEI, busy)] == [3, 3, 3]
    quiet = [row(GWEI)] * 2 + [Row(GWEI, False)] * 58
    assert [offer.blocks for offer in offers_with_tips(GWEI, quiet)] == [1, 1, 1]


def test_a_full_block_is_judged_by_more_than_its_cheapest_transactions() -> None:
    tips = (5, 6, 7, 8)
    assert Row(1, False, tips).taken == 5
    assert Row(1, True, tips).taken == 6
    # Who pays nothing has an agreement with the producer.
    assert Row(1, False, (0, 0, 1, 8)).taken == 8
    assert Row(1, False, (0, 0, 0, 0)).taken is None


def test_what_is_paid_where_there_is_room_for_everybody_says_nothing_of_what_is_needed() -> None:
    generous = [Row(10 * GWEI, False, (tip * GWEI,) * len(PERCENTILES), roomy=True) for tip in (100, 1, 100)]
    assert {offer.max_priority_fee for offer in offers_with_tips(GWEI, generous)} == {GWEI}
    # The same on a chain that is mostly empty, also beside a block that was half full.
    quiet = [*[Row(10 * GWEI, False)] * 50, *generous, row(3 * GWEI)]
    slow, standard, fast = offers_with_tips(GWEI, quiet)
    assert (slow.max_priority_fee, standard.max_priority_fee, fast.max_priority_fee) == (GWEI, GWEI, GWEI)
    assert fast.blocks == 1
    # But where blocks are used, they count.
    assert offers_with_tips(GWEI, [row(100 * GWEI), row(GWEI)])[2].max_priority_fee == 100 * GWEI


def test_without_any_tip_the_suggested_one_is_offered() -> None:
    offers = offers_with_tips(GWEI, [Row(GWEI, False)] * 5, suggested=7)
    assert {(offer.max_priority_fee, offer.blocks) for offer in offers} == {(7, 1)}
    assert offers_with_tips(0, [])[0].max_priority_fee == 0


@given(WEI, ROWS)
def test_a_faster_offer_is_never_lower_and_all_cover_the_next_block(base_fee: int, rows: list[Row]) -> None:
    slow, standard, fast = offers_with_tips(base_fee, rows)
    assert slow.max_fee <= standard.max_fee <= fast.max_fee
    assert slow.max_priority_fee <= standard.max_priority_fee <= fast.max_priority_fee
    assert slow.blocks >= standard.blocks >= fast.blocks >= 1
    assert slow.max_fee >= base_fee + slow.max_priority_fee


@given(WEI)
def test_a_gas_price_is_the_least_that_is_offered(gas_price: int) -> None:
    slow, standard, fast = offers_with_gas_price(gas_price)
    assert gas_price == slow.max_fee <= standard.max_fee <= fast.max_fee
    assert slow.max_fee == slow.max_priority_fee
