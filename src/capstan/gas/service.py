"""Current gas prices of a network, read from its nodes.

Called by the route of `GET /gas/{chain}/prices`. Prices come from eth_feeHistory over recent blocks, or from
eth_gasPrice where blocks have no base fee. An answer is kept until a newer block is known, at most for a block time,
and callers who ask at the same moment share one reading. This is a simple estimate: projection of the trend and
backtesting come later.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.clock import Clock, iso, utc
from capstan.core.decimals import wei_to_gwei
from capstan.core.errors import NotFound, UpstreamError
from capstan.core.hexes import parse_quantity, to_quantity
from capstan.gas.estimates import (
    HISTORY_BLOCKS,
    PERCENTILES,
    Offer,
    offers_with_base_fee,
    offers_with_gas_price,
    typical_tips,
)
from capstan.gas.models import GasEstimate, GasEstimates, GasPrices

# The latest block of a network, or None while it is not known.
Head: TypeAlias = Callable[[Network], int | None]


class _Block(msgspec.Struct, frozen=True, rename="camel"):
    number: str
    base_fee_per_gas: str | None = None


class _FeeHistory(msgspec.Struct, frozen=True, rename="camel"):
    """Without gasUsedRatio, which holds floats and is not needed."""

    oldest_block: str
    base_fee_per_gas: list[str]
    reward: list[list[str]] | None = None


class _Kept(msgspec.Struct, frozen=True):
    prices: GasPrices
    until: float


class GasPriceService:
    """Gas prices of every EVM network."""

    def __init__(self, *, clock: Clock, head: Head | None = None) -> None:
        self._clock = clock
        self._head = head
        self._kept: dict[str, _Kept] = {}
        self._readings: dict[str, asyncio.Task[GasPrices]] = {}

    async def prices(self, network: Network) -> GasPrices:
        """The prices now. Raises `NotFound` for a network that has no gas price, and the failures of the pool."""
        if network.spec.family != "evm":
            raise NotFound(f"Network {network.name} has no gas prices: only EVM chains do.")
        kept = self._kept.get(network.name)
        if kept is not None and self._is_current(kept, network):
            return kept.prices
        reading = self._readings.get(network.name)
        if reading is None:
            reading = asyncio.create_task(self._read(network), name=f"gas prices of {network.name}")
            self._readings[network.name] = reading
            reading.add_done_callback(lambda done: self._finish(network.name, done))
        # Shielded, so that a caller who goes away does not take the answer from the others.
        return await asyncio.shield(reading)

    async def close(self) -> None:
        """Stop the readings under way."""
        readings = tuple(self._readings.values())
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    def _finish(self, name: str, reading: asyncio.Task[GasPrices]) -> None:
        self._readings.pop(name, None)
        if not reading.cancelled():
            # Looked at here, because all who asked may be gone by now.
            reading.exception()

    def _is_current(self, kept: _Kept, network: Network) -> bool:
        head = self._head(network) if self._head is not None else None
        return self._clock.monotonic() < kept.until and (head is None or head <= kept.prices.block_number)

    async def _read(self, network: Network) -> GasPrices:
        started_at = self._clock.monotonic()
        try:
            if network.spec.eip1559:
                number, base_fee, offers = await _read_base_fee_market(network)
            else:
                number, base_fee, offers = await _read_gas_price(network)
        except NodeError as error:
            raise UpstreamError(f"The nodes of {network.name} do not answer questions about gas.") from error
        except ValueError as error:
            raise UpstreamError(f"A node of {network.name} answered a question about gas with nonsense.") from error
        slow, standard, fast = (_estimate(offer, network.spec.block_time_ms) for offer in offers)
        prices = GasPrices(
            chain=network.spec.chain,
            block_number=number,
            base_fee_gwei=wei_to_gwei(base_fee),
            estimates=GasEstimates(slow, standard, fast),
            updated_at=iso(utc(self._clock)),
        )
        self._kept[network.name] = _Kept(prices, started_at + network.spec.block_time_ms / 1000)
        return prices


_Reading: TypeAlias = tuple[int, int, tuple[Offer, Offer, Offer]]


async def _read_base_fee_market(network: Network) -> _Reading:
    """Block number, its base fee and the offers, on a chain that should have EIP-1559."""
    percentiles = list(PERCENTILES)
    try:
        history = await network.pool.request_as(
            _FeeHistory, "eth_feeHistory", [to_quantity(HISTORY_BLOCKS), "latest", percentiles]
        )
    except NodeError:
        return await _read_gas_price(network)
    base_fees = [_wei(fee) for fee in history.base_fee_per_gas]
    if len(base_fees) < 2 or not any(base_fees):
        # A node from before EIP-1559 answers with zeros, or with nothing.
        return await _read_gas_price(network)
    # The list has one fee more than blocks: the last is that of the block to come.
    number = _wei(history.oldest_block) + len(base_fees) - 2
    rewards = [[_wei(tip) for tip in row] for row in history.reward or []]
    tips = typical_tips(rewards) or await _suggested_tips(network)
    return number, base_fees[-2], offers_with_base_fee(base_fees[-1], tips)


async def _suggested_tips(network: Network) -> tuple[int, int, int]:
    """The node's own suggestion, for when recent blocks are empty. Zero where the chain has no such method."""
    try:
        tip = _wei(await network.pool.request_as(str, "eth_maxPriorityFeePerGas", []))
    except NodeError:
        tip = 0
    return tip, tip, tip


async def _read_gas_price(network: Network) -> _Reading:
    """The same on a chain without base fee, where it is 0."""
    block = await network.pool.request_as(_Block, "eth_getBlockByNumber", ["latest", False])
    gas_price = _wei(await network.pool.request_as(str, "eth_gasPrice", []))
    return _wei(block.number), _wei(block.base_fee_per_gas or "0x0"), offers_with_gas_price(gas_price)


def _estimate(offer: Offer, block_time_ms: int) -> GasEstimate:
    milliseconds = offer.blocks * block_time_ms
    return GasEstimate(
        max_fee_gwei=wei_to_gwei(offer.max_fee),
        max_priority_fee_gwei=wei_to_gwei(offer.max_priority_fee),
        estimated_seconds=max(1, -(-milliseconds // 1000)),
    )


def _wei(quantity: str) -> int:
    return parse_quantity(quantity, lenient=True)
