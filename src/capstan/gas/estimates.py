"""From what recent blocks took to what the next transaction should offer. Pure arithmetic on integers of wei.

Called by the market of a network with the blocks it knows, and by the backtest in `bench/gas.py`. A level is a share of
the recent blocks: its tip is one that this share of them would have taken. From that share follows within how many
blocks a transaction lands, and from that how far the base fee can rise meanwhile (EIP-1559).
"""

from collections.abc import Sequence

import msgspec

# eth_feeHistory is asked for these percentiles of the tips in each block, by gas. The first tells what a block took
# that had room left, the second what a full one took; the others are for blocks whose cheapest were not paid in tips.
PERCENTILES = (2, 10, 30, 60)
HISTORY_BLOCKS = 60
# EIP-1559, as on Ethereum. Chains that differ are found out by their blocks, see `market`.
_ELASTICITY = 2
_DENOMINATOR = 8
# A block that has used this much of its gas limit, in percent, may have left somebody out.
FULL_PERCENT = 95
# One that has used no more than this had room for everybody: what was paid in it says nothing of what was needed.
ROOMY_PERCENT = 10
# Nodes leave tips below this out of account: whoever pays nothing has an agreement with the block's producer.
_LEAST_TIP = 2
# A promise is kept so often, if blocks go on as they did.
_PROMISED_PERCENT = 95
_MOST_BLOCKS = 30


class Speed(msgspec.Struct, frozen=True):
    """How one level is estimated."""

    # The share of recent blocks that would have taken the tip.
    percent: int
    # The offer covers base fees that rise in every block, for at least so many blocks after the next, at most so many.
    least_room: int
    most_room: int
    # On a chain of which only the node's gas price is known: that price times this, in hundredths.
    gas_price_percent: int
    # And within how many blocks it is expected to land.
    gas_price_blocks: int


SPEEDS = (
    Speed(percent=50, least_room=2, most_room=4, gas_price_percent=100, gas_price_blocks=6),
    Speed(percent=80, least_room=4, most_room=6, gas_price_percent=110, gas_price_blocks=3),
    Speed(percent=96, least_room=6, most_room=8, gas_price_percent=125, gas_price_blocks=1),
)


class Row(msgspec.Struct, frozen=True):
    """What one block says about fees."""

    base_fee: int
    full: bool
    # At `PERCENTILES`, lowest first; none where the block has no transactions.
    tips: tuple[int, ...] = ()
    roomy: bool = False

    @property
    def taken(self) -> int | None:
        """The tip that sufficed; None when nothing can be said."""
        return next((tip for tip in self.tips[1 if self.full else 0 :] if tip >= _LEAST_TIP), None)


class Offer(msgspec.Struct, frozen=True):
    """A fee to offer, in wei for each unit of gas, and the blocks it should take."""

    max_fee: int
    max_priority_fee: int
    blocks: int


Offers = tuple[Offer, Offer, Offer]


def next_base_fee(base_fee: int, gas_used: int, gas_limit: int) -> int:
    """The base fee of the block after one with these figures, exactly as EIP-1559 has it."""
    target = gas_limit // _ELASTICITY
    if not target or gas_used == target:
        return base_fee
    change = base_fee * abs(gas_used - target) // target // _DENOMINATOR
    return base_fee + max(change, 1) if gas_used > target else base_fee - change


def highest_base_fee(next_fee: int, blocks: int) -> int:
    """The most that the base fee can be so many blocks after the next one, if each is full; 0 where there is none."""
    for _ in range(blocks if next_fee else 0):
        next_fee += max(next_fee // _DENOMINATOR, 1)
    return next_fee


def offers_with_tips(next_fee: int, rows: Sequence[Row], suggested: int = 0) -> Offers:
    """Offers for a chain whose recent blocks are known, oldest first; slow first.

    `suggested` is a node's tip, for when no block says what suffices.
    """
    taken, judged = _taken(rows, suggested)
    offers: list[Offer] = []
    for speed in SPEEDS:
        tip = taken[min(len(taken) - 1, len(taken) * speed.percent // 100)]
        blocks = _promised(sum(each <= tip for each in taken), judged)
        room = min(max(blocks - 1, speed.least_room), speed.most_room)
        offers.append(Offer(highest_base_fee(next_fee, room) + tip, tip, blocks))
    return _in_order(offers)


def _taken(rows: Sequence[Row], suggested: int) -> tuple[list[int], int]:
    """The tips that sufficed, lowest first, and how many blocks that is to be seen against."""
    told = [(tip, row.roomy) for row in rows if (tip := row.taken) is not None]
    if not told:
        return [suggested], 1
    least = min(tip for tip, _ in told)
    # A block with room would have taken the least that any block took.
    taken = sorted(least if roomy else tip for tip, roomy in told)
    if 2 * len(told) > len(rows):
        # Most blocks have transactions: one without took nobody.
        return taken, len(rows)
    # Nobody was there.
    nobody = len(rows) - len(told)
    return [least] * nobody + taken, len(rows)


def offers_with_gas_price(gas_price: int) -> Offers:
    """Offers on a chain of which only the node's gas price is known, slow first; all of it goes to the producer."""
    prices = [(_scaled(gas_price, speed.gas_price_percent, 100), speed.gas_price_blocks) for speed in SPEEDS]
    return _in_order([Offer(price, price, blocks) for price, blocks in prices])


def _promised(good: int, judged: int) -> int:
    """Within how many blocks one of the good ones comes, in `_PROMISED_PERCENT` of all cases."""
    missed, cases = judged - good, judged
    left, scale, blocks = missed, cases, 1
    while left * 100 > scale * (100 - _PROMISED_PERCENT) and blocks < _MOST_BLOCKS:
        left, scale, blocks = left * missed, scale * cases, blocks + 1
    return blocks


def _in_order(offers: Sequence[Offer]) -> Offers:
    """A faster level never offers less, and never promises to take longer."""
    slow, standard, fast = offers
    standard = _at_least(standard, slow)
    return slow, standard, _at_least(fast, standard)


def _at_least(offer: Offer, slower: Offer) -> Offer:
    return Offer(
        max(offer.max_fee, slower.max_fee),
        max(offer.max_priority_fee, slower.max_priority_fee),
        min(offer.blocks, slower.blocks),
    )


def _scaled(amount: int, numerator: int, denominator: int) -> int:
    """`amount` times a fraction, rounded up: an offer must not end below what it was meant to cover."""
    return -(-amount * numerator // denominator)
