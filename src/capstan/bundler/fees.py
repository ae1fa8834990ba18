"""What a bundle's transaction offers for its gas. Integers of wei only. Pure.

The rule that keeps the signer whole: a transaction offers no more than each of its operations does, in both fees, so
that whatever the base fee becomes, every operation pays at least what the transaction pays.
"""

from collections.abc import Iterable

import msgspec

from capstan.userops.models import UserOperation


class Fees(msgspec.Struct, frozen=True):
    """The most that is paid for a unit of gas, and the most of it for the block's producer."""

    max_fee: int
    max_priority_fee: int


NO_FEES = Fees(0, 0)


def offered(operation: UserOperation) -> Fees:
    """What an operation pays."""
    return Fees(operation.max_fee_per_gas, operation.max_priority_fee_per_gas)


def covers(paid: Fees, wanted: Fees) -> bool:
    """Whether who pays `paid` pays at least `wanted`, at every base fee."""
    return paid.max_fee >= wanted.max_fee and paid.max_priority_fee >= wanted.max_priority_fee


def bundle_fees(operations: Iterable[UserOperation], base_fee: int, market: Fees, least: Fees = NO_FEES) -> Fees:
    """What a transaction with these operations should offer: the market's price, at least `least`, and never more than
    each of the operations."""
    paid = [offered(operation) for operation in operations]
    tip = min(min(each.max_priority_fee for each in paid), max(market.max_priority_fee, least.max_priority_fee))
    # Room for the base fee to double before the transaction is stuck.
    most = max(2 * base_fee + tip, market.max_fee, least.max_fee)
    return Fees(min(min(each.max_fee for each in paid), most), tip)


def bumped(fees: Fees, percent: int) -> Fees:
    """The least that replaces a transaction with these fees: nodes ask for a tenth more on both."""
    return Fees(_more(fees.max_fee, percent), _more(fees.max_priority_fee, percent))


def _more(amount: int, percent: int) -> int:
    return max(amount + 1, -(-amount * (100 + percent) // 100))
