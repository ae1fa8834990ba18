"""How often the levels of the gas prices keep their promise, and what they pay beyond what was needed.

At every block, each level is estimated from the blocks before it, as the service does, and played against the blocks
that follow: landed means within its promised blocks. A full block takes a tip that is at least its lowest, a block
with room left takes any, one without transactions takes none. What is paid beyond the block's base fee and its lowest
tip is overpaid; beside it stands a transaction with the node's eth_gasPrice, as geth computes it: the base fee of the
last block and the 60th percentile of the three lowest tips in each of 20 blocks, all of which is paid. Goals: 90 % land
in time, and each level overpays less than eth_gasPrice.

RECORDED: the base fees of 340 consecutive blocks of Ethereum (`recorded/ethereum-base-fees.json`, which names its
source), and so how full each block was. Their tips are NOT recorded: they are drawn from a distribution whose quarters
are those of public samples of eth_feeHistory (a twentieth to a tenth of a gwei, and 0.3 to 1.5 gwei). GENERATED: all of
it, under a demand that wanders and bursts. Recorded tips would be the better judge. Run it with `make bench`, or alone:
`python bench/gas_prices.py`.
"""

import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from capstan.core.decimals import GWEI_DECIMALS, parse_units
from capstan.gas.estimates import HISTORY_BLOCKS, PERCENTILES, Row, offers_with_tips

RECORDED = Path(__file__).parent / "recorded" / "ethereum-base-fees.json"
GENERATED_BLOCKS = 5_000
GWEI = 10**9
LEVELS = ("slow", "standard", "fast")
GOAL = 0.9
# The block that is played last must have this many after it.
FOLLOWING = 30
# Transactions in a block at its target; twice as many fill it.
TARGET_TRANSACTIONS = 150
# geth: the last blocks, the lowest tips of each, and the percentile of all of them.
NODE_BLOCKS, NODE_TIPS, NODE_PERCENT = 20, 3, 60


class Block(msgspec.Struct, frozen=True):
    """A block that was, or could have been."""

    base_fee: int
    # How much of the gas target it used: 2 is full.
    used: float
    # The tips of what was included, lowest first.
    tips: Sequence[int]

    @property
    def row(self) -> Row:
        """What eth_feeHistory would tell of it."""
        shown = tuple(self.tips[len(self.tips) * share // 100] for share in PERCENTILES) if self.tips else ()
        return Row(self.base_fee, self.used >= 1.9, shown, self.used <= 0.2)

    def price(self, max_fee: int, max_tip: int) -> tuple[int, int] | None:
        """What an offer pays here, and what was needed; None when it is not taken."""
        if not self.tips:
            return None
        tip, needed = min(max_tip, max_fee - self.base_fee), self.tips[0] if self.used >= 1.95 else 1
        return (self.base_fee + tip, self.base_fee + needed) if tip >= needed else None


class Account(msgspec.Struct):
    """How one kind of offer fared."""

    tried: int = 0
    landed: int = 0
    blocks: int = 0
    overpaid: int = 0

    def play(self, following: Sequence[Block], max_fee: int, max_tip: int) -> None:
        """One offer, against the blocks in which it should land."""
        self.tried += 1
        self.blocks += len(following)
        for block in following:
            price = block.price(max_fee, max_tip)
            if price is not None:
                self.landed += 1
                self.overpaid += price[0] - price[1]
                return

    @property
    def share(self) -> float:
        return self.landed / self.tried

    @property
    def overpaid_gwei(self) -> float:
        return self.overpaid / max(1, self.landed) / GWEI


def tips(dice: random.Random, used: float, wanted: float) -> list[int]:
    """What was paid in a block: the dearest of those who wanted to be in it."""
    market = 1.0 + max(0.0, wanted - 2.0)
    offered = sorted(
        int(GWEI * market * dice.lognormvariate(-1.3, 1.9)) + 1 for _ in range(int(TARGET_TRANSACTIONS * wanted))
    )
    count = int(TARGET_TRANSACTIONS * used)
    return offered[-count:] if count else []


def recorded(seed: int) -> list[Block]:
    """The base fees that were, with tips that are drawn."""
    dice = random.Random(seed)
    texts = msgspec.json.decode(RECORDED.read_bytes())["base_fee_gwei"]
    fees = [parse_units(text, GWEI_DECIMALS) for text in texts]
    blocks = []
    for fee, following in pairwise(fees):
        # EIP-1559 the other way round.
        used = min(2.0, max(0.0, 1.0 + 8 * (following - fee) / fee))
        wanted = used if used < 1.95 else 2.0 + abs(dice.gauss(0, 0.6))
        blocks.append(Block(fee, used, tips(dice, used, wanted)))
    return blocks


def generated(seed: int, count: int) -> list[Block]:
    """A chain under a demand that wanders around the target and bursts; one block in a hundred is empty."""
    dice = random.Random(seed)
    base_fee, demand, blocks = 20 * GWEI, 1.0, []
    for _ in range(count):
        demand += 0.15 * (1.0 - demand) + dice.gauss(0, 0.15) + (dice.random() < 0.01) * dice.uniform(0, 3)
        # Those who would pay less than the base fee stay away.
        wanted = max(0.0, demand * (20 * GWEI / base_fee) ** 0.7)
        used = min(2.0, wanted) if dice.random() >= 0.01 else 0.0
        blocks.append(Block(base_fee, used, tips(dice, used, wanted)))
        base_fee = max(GWEI // 100, base_fee + int(base_fee * (used - 1.0) / 8))
    return blocks


def node_price(blocks: Sequence[Block]) -> int:
    """What geth answers to eth_gasPrice after these blocks."""
    lowest = sorted(tip for block in blocks[-NODE_BLOCKS:] for tip in block.tips[:NODE_TIPS])
    return blocks[-1].base_fee + (lowest[(len(lowest) - 1) * NODE_PERCENT // 100] if lowest else 0)


def backtest(name: str, blocks: Sequence[Block]) -> bool:
    """Print how the levels fared; whether they reached their goals."""
    levels, node = [Account() for _ in LEVELS], Account()
    rows = [block.row for block in blocks]
    for place in range(HISTORY_BLOCKS, len(blocks) - FOLLOWING):
        offers = offers_with_tips(blocks[place].base_fee, rows[place - HISTORY_BLOCKS : place])
        for account, offer in zip(levels, offers, strict=True):
            account.play(blocks[place : place + offer.blocks], offer.max_fee, offer.max_priority_fee)
        price = node_price(blocks[:place])
        node.play(blocks[place : place + FOLLOWING], price, price)
    print(f"{name}: {node.tried} blocks")
    for level, account in zip(LEVELS, levels, strict=True):
        print(
            f"  {level:9} landed in time {account.share:6.1%} (goal {GOAL:.0%}), promised in"
            f" {account.blocks / account.tried:4.1f} blocks, overpaid {account.overpaid_gwei:6.3f} gwei,"
            f" {account.overpaid / max(1, account.landed) / (node.overpaid / node.landed):4.2f} of eth_gasPrice"
        )
    print(f"  the node  landed in {FOLLOWING} blocks {node.share:6.1%}, overpaid {node.overpaid_gwei:6.3f} gwei")
    return all(each.share >= GOAL and each.overpaid_gwei < node.overpaid_gwei for each in levels)


if __name__ == "__main__":
    kept = [
        backtest("Ethereum, recorded base fees and drawn tips", recorded(1)),
        backtest("generated", generated(1, GENERATED_BLOCKS)),
    ]
    print("goals reached" if all(kept) else "GOALS MISSED")
    sys.exit(not all(kept))
