"""What a bundle offers is covered by what its operations pay, at every base fee."""

from hypothesis import given
from hypothesis import strategies as st

from capstan.bundler.fees import Fees, bumped, bundle_fees, covers, offered
from capstan.userops.models import UserOperation

AMOUNTS = st.integers(0, 10**12)
FEES = st.builds(Fees, AMOUNTS, AMOUNTS)


def operation(max_fee: int, tip: int) -> UserOperation:
    return UserOperation(sender=bytes(20), nonce=0, max_fee_per_gas=max_fee, max_priority_fee_per_gas=tip)


def price(fees: Fees, base_fee: int) -> int:
    """What is paid for a unit of gas (EIP-1559)."""
    return min(fees.max_fee, base_fee + fees.max_priority_fee)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=5), AMOUNTS, FEES, FEES, AMOUNTS)
def test_every_operation_pays_at_least_what_the_transaction_pays(
    paid: list[tuple[int, int]], base_fee: int, market: Fees, least: Fees, later_base_fee: int
) -> None:
    operations = [operation(*each) for each in paid]
    fees = bundle_fees(operations, base_fee, market, least)
    for each in operations:
        assert price(offered(each), later_base_fee) >= price(fees, later_base_fee)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=5), AMOUNTS, FEES, FEES)
def test_a_replacement_offers_the_least_where_its_operations_can(
    paid: list[tuple[int, int]], base_fee: int, market: Fees, least: Fees
) -> None:
    operations = [operation(max_fee + least.max_fee, tip + least.max_priority_fee) for max_fee, tip in paid]
    assert covers(bundle_fees(operations, base_fee, market, least), least)


@given(FEES, st.integers(10, 100))
def test_what_is_bumped_replaces_by_the_rule_of_the_nodes(fees: Fees, percent: int) -> None:
    higher = bumped(fees, percent)
    assert higher.max_fee * 100 >= fees.max_fee * 110
    assert higher.max_priority_fee * 100 >= fees.max_priority_fee * 110
    assert higher.max_fee > fees.max_fee
    assert higher.max_priority_fee > fees.max_priority_fee


def test_a_bundle_offers_no_more_than_the_market_asks_for() -> None:
    rich = operation(10**12, 10**11)
    assert bundle_fees([rich], 10**9, Fees(3 * 10**9, 10**9)) == Fees(3 * 10**9, 10**9)
