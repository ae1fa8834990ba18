"""From what recent blocks paid to what the next transaction should offer. Pure arithmetic on integers of wei.

Called by the gas price service with the answers of a node. The rules are simple and fixed: tips are medians over recent
blocks, and the base fee is given room to grow. Projection from the trend of blocks, and backtesting of the estimated
times against what happened, come later.
"""

import msgspec

# eth_feeHistory is asked for these percentiles of the tips in each block: one for each speed, slow first.
PERCENTILES = (10, 50, 90)
HISTORY_BLOCKS = 20


class Speed(msgspec.Struct, frozen=True):
    """How one speed is estimated. The base fee grows by at most an eighth each block (EIP-1559)."""

    # The fee offered covers the next base fee times this fraction.
    base_fee_numerator: int
    base_fee_denominator: int
    # On a chain without base fee: the node's gas price times this, in hundredths.
    gas_price_percent: int
    # Inclusion is expected within so many blocks.
    blocks: int


# Room for about two, six and eight full blocks in a row.
SPEEDS = (
    Speed(base_fee_numerator=5, base_fee_denominator=4, gas_price_percent=100, blocks=6),
    Speed(base_fee_numerator=2, base_fee_denominator=1, gas_price_percent=110, blocks=3),
    Speed(base_fee_numerator=5, base_fee_denominator=2, gas_price_percent=125, blocks=1),
)


class Offer(msgspec.Struct, frozen=True):
    """A fee to offer, in wei for each unit of gas, and the blocks it should take."""

    max_fee: int
    max_priority_fee: int
    blocks: int


def typical_tips(rewards: list[list[int]]) -> tuple[int, int, int] | None:
    """The median tip for each percentile, or None when no recent block paid any.

    Blocks without tips are left out: an empty block says nothing about what inclusion costs.
    """
    paid = [row for row in rewards if len(row) == len(PERCENTILES) and any(row)]
    if not paid:
        return None
    slow, standard, fast = (_median([row[place] for row in paid]) for place in range(len(PERCENTILES)))
    # Medians of different columns need not be in order; what is offered must be.
    standard = max(slow, standard)
    return slow, standard, max(standard, fast)


def offers_with_base_fee(next_base_fee: int, tips: tuple[int, int, int]) -> tuple[Offer, Offer, Offer]:
    """Offers on a chain with EIP-1559, slow first."""
    slow, standard, fast = (
        Offer(_scaled(next_base_fee, speed.base_fee_numerator, speed.base_fee_denominator) + tip, tip, speed.blocks)
        for speed, tip in zip(SPEEDS, tips, strict=True)
    )
    return slow, standard, fast


def offers_with_gas_price(gas_price: int) -> tuple[Offer, Offer, Offer]:
    """Offers on a chain without base fee, slow first: there the whole price goes to the block's producer."""
    prices = [(_scaled(gas_price, speed.gas_price_percent, 100), speed.blocks) for speed in SPEEDS]
    slow, standard, fast = (Offer(price, price, blocks) for price, blocks in prices)
    return slow, standard, fast


def _scaled(amount: int, numerator: int, denominator: int) -> int:
    """`amount` times a fraction, rounded up: an offer must not end below what it was meant to cover."""
    return -(-amount * numerator // denominator)


def _median(values: list[int]) -> int:
    """The middle value; of two, the lower, so that the result is one that was paid."""
    return sorted(values)[(len(values) - 1) // 2]
