"""An estimate of a collection's floor: the price below which few of its tokens were sold lately.

Called by the NFT service. Most listings are signatures outside the chain, which a node cannot see; sales are on the
chain. So the transfers of the last seven days are looked through for sales of single tokens on Seaport, and the floor
is their lowest tenth. Too few sales give no floor. That takes many questions to a node, so it is done in the
background, at most once an hour for a collection, and an operator can turn it off.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

import msgspec
import structlog

from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import NodeError, is_log_range_error
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError
from capstan.core.hexes import parse_address, to_data, to_quantity
from capstan.core.money import amount, product
from capstan.prices.models import Price
from capstan.prices.seaport import Log, sale_prices
from capstan.prices.service import FindFacts

log = structlog.get_logger(__name__)

_DAYS = 7
_LEAST_SALES = 5
_TENTH = 10
_REFRESH_SECONDS = 3600.0
# How long the first question about a collection waits. Later ones have the answer.
_PATIENCE_SECONDS = 2.0
_WHOLE_SECONDS = 120.0
_MOST_AT_ONCE = 4
_MOST_KEPT = 10_000
_RECEIPTS_AT_ONCE = 8
_WIDEST_WINDOW, _NARROWEST_WINDOW, _MOST_WINDOWS = 2_000, 50, 60
# Transfer of ERC-721, TransferSingle of ERC-1155.
_TRANSFERS = (
    "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef",
    "0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62",
)


class Floor(msgspec.Struct, frozen=True):
    """A floor in the native coin, and in US dollars where the coin has a price."""

    native: Decimal
    usd: Decimal | None


class NativePrices(Protocol):
    """Knows what the native coin is worth."""

    async def native(self, network: Network, block: BlockRef) -> Price | None: ...


class _TransferLog(msgspec.Struct, frozen=True, rename="camel"):
    transaction_hash: str
    topics: list[str]


class _Receipt(msgspec.Struct, frozen=True):
    logs: list[Log]


class _Kept(msgspec.Struct, frozen=True):
    native: Decimal | None
    until: float


class SalesFloors:
    """Floors from sales. `receipts` is how many transactions of a collection are looked at; 0 turns it off."""

    def __init__(self, prices: NativePrices, facts: FindFacts, clock: Clock, *, receipts: int) -> None:
        self._prices = prices
        self._facts = facts
        self._clock = clock
        self._receipts = receipts
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        self._readings: dict[tuple[str, bytes], asyncio.Task[None]] = {}

    async def floor(self, network: Network, block: BlockRef, contract: bytes) -> Floor | None:
        """The floor as it is known now; None while it is not."""
        if not self._receipts:
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
        return Floor(kept.native, None if price is None else product(kept.native, price.usd))

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
            reading.add_done_callback(lambda _: self._readings.pop(key, None))
        return reading

    async def _read(self, network: Network, block: BlockRef, contract: bytes) -> None:
        facts = self._facts(network)
        wrapped = parse_address(facts.wrapped_native) if facts.wrapped_native else None
        native: Decimal | None = None
        try:
            async with asyncio.timeout(_WHOLE_SECONDS):
                transactions = await self._transactions(network, block, contract)
                lowest = lowest_tenth(await self._sales(network, transactions, contract, wrapped))
                native = None if lowest is None else amount(lowest, facts.native_decimals)
        except (ApiError, NodeError, TimeoutError) as error:
            log.info("floor.not_read", network=network.name, contract=to_data(contract), reason=str(error))
        key = (network.name, contract)
        self._kept[key] = _Kept(native, self._clock.monotonic() + _REFRESH_SECONDS)
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    async def _transactions(self, network: Network, block: BlockRef, contract: bytes) -> list[str]:
        """The latest transactions in which tokens of the contract moved."""
        oldest = max(0, block.number - _DAYS * 86_400_000 // max(1, network.spec.block_time_ms))
        window = min(_WIDEST_WINDOW, network.spec.max_log_range or _WIDEST_WINDOW)
        last = block.number
        found: dict[str, None] = {}
        for _ in range(_MOST_WINDOWS):
            first = max(oldest, last - window + 1)
            question = {
                "fromBlock": to_quantity(first),
                "toBlock": to_quantity(last),
                "address": to_data(contract),
                "topics": [list(_TRANSFERS)],
            }
            try:
                logs = await network.pool.request_as(list[_TransferLog], "eth_getLogs", [question])
            except NodeError as error:
                if not is_log_range_error(error) or window <= _NARROWEST_WINDOW:
                    raise
                window = max(_NARROWEST_WINDOW, window // 2)
                continue
            # An ERC-20 transfer has three topics; an NFT moved has four.
            found |= dict.fromkeys(item.transaction_hash for item in reversed(logs) if len(item.topics) == 4)
            if first <= oldest or len(found) >= self._receipts:
                break
            last = first - 1
        return list(found)[: self._receipts]

    async def _sales(
        self, network: Network, transactions: Sequence[str], contract: bytes, wrapped: bytes | None
    ) -> list[int]:
        limit = asyncio.Semaphore(_RECEIPTS_AT_ONCE)

        async def of(transaction: str) -> list[int]:
            async with limit:
                receipt = await network.pool.request("eth_getTransactionReceipt", [transaction])
            try:
                return sale_prices(msgspec.convert(receipt, _Receipt).logs, contract, wrapped)
            except msgspec.ValidationError:
                # None, when the transaction was reverted meanwhile.
                return []

        return [price for prices in await asyncio.gather(*map(of, transactions)) for price in prices]


def lowest_tenth(sales: Sequence[int]) -> int | None:
    """The price at the end of the lowest tenth of the sales; None when there are too few."""
    if len(sales) < _LEAST_SALES:
        return None
    place = math.ceil(len(sales) / _TENTH) - 1
    return sorted(sales)[place]
