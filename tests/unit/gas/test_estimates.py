"""The arithmetic of gas estimates."""

from hypothesis import given
from hypothesis import strategies as st

from capstan.gas.estimates import offers_with_base_fee, offers_with_gas_price, typical_tips

WEI = st.integers(min_value=0, max_value=10**15)
TIPS = st.lists(st.lists(WEI, min_size=3, max_size=3), min_size=1, max_size=20)


def test_tips_are_medians_over_the_blocks_that_paid() -> None:
    assert typical_tips([[1, 5, 9], [0, 0, 0], [2, 6, 10], [3, 7, 11], [0, 0, 0]]) == (2, 6, 10)
    assert typical_tips([[1, 5, 9], [2, 6, 10]]) == (1, 5, 9)


def test_without_tips_there_is_no_typical_tip() -> None:
    assert typical_tips([]) is None
    assert typical_tips([[0, 0, 0]]) is None
    assert typical_tips([[1, 2]]) is None


@given(TIPS)
def test_tips_are_in_order(rewards: list[list[int]]) -> None:
    tips = typical_tips(rewards)
    assert tips is None or tips[0] <= tips[1] <= tips[2]


def test_offers_cover_the_base_fee_with_room_to_grow() -> None:
    slow, standard, fast = offers_with_base_fee(1_000, (1, 2, 3))
    assert (slow.max_fee, standard.max_fee, fast.max_fee) == (1_251, 2_002, 2_503)
    assert (slow.max_priority_fee, standard.max_priority_fee, fast.max_priority_fee) == (1, 2, 3)


@given(WEI, TIPS)
def test_a_faster_offer_is_never_lower_and_all_cover_the_next_block(base_fee: int, rewards: list[list[int]]) -> None:
    tips = typical_tips(rewards) or (0, 0, 0)
    slow, standard, fast = offers_with_base_fee(base_fee, tips)
    assert slow.max_fee <= standard.max_fee <= fast.max_fee
    assert slow.blocks >= standard.blocks >= fast.blocks >= 1
    assert all(offer.max_fee >= base_fee + offer.max_priority_fee for offer in (slow, standard, fast))


def test_offers_without_base_fee_are_the_gas_price_rounded_up() -> None:
    slow, standard, fast = offers_with_gas_price(101)
    assert [offer.max_fee for offer in (slow, standard, fast)] == [101, 112, 127]
    assert all(offer.max_fee == offer.max_priority_fee for offer in (slow, standard, fast))
