"""The floor of a collection: about the lowest price for which one of its tokens can be had.

Called by the NFT service. Sources are asked in their order, and the first that knows a floor wins: listings that were
validated on the chain, sales of the last days, an HTTP source. That takes many questions to a node, so it is done in
the background, at most once in a while for a collection; what is known is answered at once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

import msgspec
import structlog

from capstan.chain.calls.models import BlockChanged, BlockRef
from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError
from capstan.core.hexes import to_data
from capstan.core.money import product
from capstan.prices.models import Place, Price
from capstan.prices.service import FindFacts

log = structlog.get_logger(__name__)

# How long the first question about a collection waits. Later ones have the answer.
_PATIENCE_SECONDS = 2.0
_WHOLE_SECONDS = 120.0
_MOST_AT_ONCE = 4
_MOST_KEPT = 10_000
_UNKNOWN_SECONDS = 3600.0


class Floor(msgspec.Struct, frozen=True):
    """A floor in the native coin, in US dollars where the coin has a price, and where it comes from."""

    native: Decimal
    usd: Decimal | None
    source: str


class FloorSource(Protocol):
    """One way to know floors."""

    name: str
    # How long an answer is used.
    seconds: float

    async def floor(self, place: Place, contract: bytes) -> Decimal | None:
        """The floor in the native coin; None when this source knows none. Raises what nodes and contracts do."""
        ...


class NativePrices(Protocol):
    """Knows what the native coin is worth."""

    async def native(self, network: Network, block: BlockRef) -> Price | None: ...


class _Kept(msgspec.Struct, frozen=True):
    native: Decimal | None
    source: str
    until: float


class FloorService:
    """Floors of every network. `close` at the end."""

    def __init__(self, sources: Sequence[FloorSource], prices: NativePrices, facts: FindFacts, clock: Clock) -> None:
        self._sources = sources
        self._prices = prices
        self._facts = facts
        self._clock = clock
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        self._readings: dict[tuple[str, bytes], asyncio.Task[None]] = {}

    async def floor(self, network: Network, block: BlockRef, contract: bytes) -> Floor | None:
        """The floor as it is known now; None while it is not."""
        if not self._sources:
            return None
        key = (network.name, contract)
        kept = self._kept.get(key)
        if kept is None or self._clock.monotonic() >= kept.until:
            reading = self._begin(network, block, contract)
            if kept is None and reading is not None:
                await asyncio.wait([reading], timeout=_PATIENCE_SECONDS)
                kept = self._kept.get(key)
        if kept is None or kept.native is None:
            return None
        price = await self._prices.native(network, block)
        return Floor(kept.native, None if price is None else product(kept.native, price.usd), kept.source)

    @property
    def reading(self) -> int:
        """How many collections are being read now."""
        return len(self._readings)

    async def close(self) -> None:
        """Stop the readings under way."""
        readings = tuple(self._readings.values())
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    def _begin(self, network: Network, block: BlockRef, contract: bytes) -> asyncio.Task[None] | None:
        key = (network.name, contract)
        reading = self._readings.get(key)
        if reading is None and len(self._readings) < _MOST_AT_ONCE:
            reading = asyncio.create_task(self._read(network, block, contract), name="floor price")
            self._readings[key] = reading
            reading.add_done_callback(lambda done: self._finish(key, done))
        return reading

    def _finish(self, key: tuple[str, bytes], reading: asyncio.Task[None]) -> None:
        self._readings.pop(key, None)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("floor.broke", network=key[0], contract=to_data(key[1]), exc_info=error)

    async def _read(self, network: Network, block: BlockRef, contract: bytes) -> None:
        place = Place(network, self._facts(network), block)
        found, name, seconds = None, "", _UNKNOWN_SECONDS
        for source in self._sources:
            try:
                async with asyncio.timeout(_WHOLE_SECONDS):
                    found = await source.floor(place, contract)
            except (ApiError, NodeError, BlockChanged, TimeoutError) as error:
                words = {"network": network.name, "contract": to_data(contract), "source": source.name}
                log.info("floor.not_read", **words, reason=str(error))
            if found is not None:
                name, seconds = source.name, source.seconds
                break
        key = (network.name, contract)
        self._kept[key] = _Kept(found, name, self._clock.monotonic() + seconds)
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
