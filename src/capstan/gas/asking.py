"""What the market of a network asks its nodes about fees, once for each block: never for each request.

Called by the market. It reads answers and checks that they are some; what they mean is in `window` and `estimates`.
"""

from typing import TypeAlias

import msgspec

from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.hexes import parse_quantity, to_quantity
from capstan.gas.estimates import FULL_PERCENT, PERCENTILES, ROOMY_PERCENT, Row
from capstan.gas.window import History

# A node that offers nothing about the pending block is asked about it again after so long.
_AGAIN_SECONDS = 600.0


class _Block(msgspec.Struct, frozen=True, rename="camel"):
    number: str
    base_fee_per_gas: str | None = None


class _FeeHistory(msgspec.Struct, frozen=True, rename="camel"):
    oldest_block: str
    base_fee_per_gas: list[str]
    # Compared only with whether a block is full; no amount is computed of it.
    gas_used_ratio: list[float] | None = None
    reward: list[list[str]] | None = None


# The number and base fee of a block, and what a node wants for gas.
Asked: TypeAlias = tuple[int, int, int]


class FeeQuestions:
    """The questions about one network."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._no_pending_until = float("-inf")

    async def history(self, network: Network, number: int | None, count: int) -> History | None:
        """So many blocks up to this one and, where nodes offer it, the pending one. None: the chain has no such fees.

        Without a number, up to the latest. Raises `NodeError`, `ValueError` and the failures of the pool.
        """
        newest = "latest" if number is None else to_quantity(number)
        if number is not None and self._clock.monotonic() >= self._no_pending_until:
            try:
                found = await self._ask(network, "pending", count + 1)
                if found is not None and found.base_fee_of(number) is not None:
                    return found
            except NodeError:
                self._no_pending_until = self._clock.monotonic() + _AGAIN_SECONDS
        return await self._ask(network, newest, count)

    async def suggested_tip(self, network: Network) -> int:
        """A node's own suggestion, for when recent blocks are empty. Zero where the chain has no such method."""
        try:
            return _wei(await network.pool.request_as(str, "eth_maxPriorityFeePerGas", []))
        except NodeError:
            return 0

    async def gas_price(self, network: Network) -> Asked:
        """The latest block and the node's gas price. Raises `NodeError`, `ValueError` and the failures of the pool."""
        block = await network.pool.request_as(_Block, "eth_getBlockByNumber", ["latest", False])
        price = _wei(await network.pool.request_as(str, "eth_gasPrice", []))
        return _wei(block.number), _wei(block.base_fee_per_gas or "0x0"), price

    async def _ask(self, network: Network, newest: str, count: int) -> History | None:
        params = [to_quantity(count), newest, list(PERCENTILES)]
        answer = await network.pool.request_as(_FeeHistory, "eth_feeHistory", params)
        base_fees = [_wei(fee) for fee in answer.base_fee_per_gas]
        rewards = [tuple(_wei(tip) for tip in row) for row in answer.reward or []]
        if len(base_fees) < 2 or not (any(base_fees) or any(map(any, rewards))):
            # A node from before EIP-1559 answers with zeros, or with nothing.
            return None
        # Where a node does not tell it, a block is taken to be neither full nor roomy.
        ratios = [ratio * 100 for ratio in answer.gas_used_ratio or []]
        rows = [
            Row(
                fee,
                place < len(ratios) and ratios[place] >= FULL_PERCENT,
                # Some nodes leave out rewards; blocks without transactions have zeros.
                rewards[place] if place < len(rewards) and len(rewards[place]) == len(PERCENTILES) else (),
                place < len(ratios) and ratios[place] <= ROOMY_PERCENT,
            )
            for place, fee in enumerate(base_fees[:-1])
        ]
        # The list has one fee more than blocks: the last is that of the block to come.
        return History(_wei(answer.oldest_block), tuple(rows), base_fees[-1])


def _wei(quantity: str) -> int:
    return parse_quantity(quantity, lenient=True)
