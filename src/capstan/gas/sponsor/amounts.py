"""From wei to money: what an amount of gas is worth, in billionths of a US dollar. Exact, but for one rounding.

Called by sponsoring for the most that an operation can cost, and by the settlement for what it did cost, both with the
price that was recorded when it was sponsored. Rounded up, so that no budget is overdrawn by fractions. Pure.
"""

from decimal import ROUND_CEILING, Decimal

from capstan.core.money import amount, product
from capstan.gas.policies.rules import NANO


def nano_usd(wei: int, price: Decimal, decimals: int = 18) -> int:
    """What `wei` is worth when a whole coin of so many decimals costs `price` US dollars."""
    return int(product(amount(wei, decimals - NANO), price).to_integral_value(rounding=ROUND_CEILING))
