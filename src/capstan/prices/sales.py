"""A floor from sales: the price below which few tokens of a collection were sold lately.

A source of the floor service. Most listings are signatures outside the chain, which a node cannot see; sales are on the
chain. So the transfers of the last seven days are looked through for sales of single tokens on Seaport, and the floor
is their lowest tenth. Two addresses that sold to each other both ways traded with themselves and do not count. Too few
sales give no floor.
"""

import asyncio
import math
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from capstan.chain.registry import Network
from capstan.core.hexes import parse_address, to_data
from capstan.core.money import amount
from capstan.prices.models import Place
from capstan.prices.past import Past
from capstan.prices.seaport import Log, Sale, sales_in

_DAYS = 7
_LEAST_SALES = 5
_TENTH = 10
_RECEIPTS_AT_ONCE = 8
# Transfer of ERC-721, TransferSingle of ERC-1155.
_TRANSFERS = (
    "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef",
    "0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62",
)


class _TransferLog(msgspec.Struct, frozen=True, rename="camel"):
    transaction_hash: str
    topics: list[str]


class _Receipt(msgspec.Struct, frozen=True):
    logs: list[Log]


class SalesFloors:
    """Floors from sales. `receipts` is how many transactions of a collection are looked at."""

    name = "sales"
    seconds = 3600.0

    def __init__(self, *, receipts: int) -> None:
        self._receipts = receipts

    async def floor(self, place: Place, contract: bytes) -> Decimal | None:
        """See `FloorSource`."""
        wrapped = parse_address(place.facts.wrapped_native) if place.facts.wrapped_native else None
        transactions = await self._transactions(place, contract)
        sales = await self._sales(place.network, transactions, contract, wrapped)
        lowest = lowest_tenth(honest_prices(sales))
        return None if lowest is None else amount(lowest, place.facts.native_decimals)

    async def _transactions(self, place: Place, contract: bytes) -> list[str]:
        """The latest transactions in which tokens of the contract moved."""
        past = Past(place.network, place.block.number, days=_DAYS)
        found: dict[str, None] = {}
        async for logs in past.logs(_TransferLog, {"address": to_data(contract), "topics": [list(_TRANSFERS)]}):
            # An ERC-20 transfer has three topics; an NFT moved has four.
            found |= dict.fromkeys(item.transaction_hash for item in reversed(logs) if len(item.topics) == 4)
            if len(found) >= self._receipts:
                break
        return list(found)[: self._receipts]

    async def _sales(
        self, network: Network, transactions: Sequence[str], contract: bytes, wrapped: bytes | None
    ) -> list[Sale]:
        limit = asyncio.Semaphore(_RECEIPTS_AT_ONCE)

        async def of(transaction: str) -> list[Sale]:
            async with limit:
                receipt = await network.pool.request("eth_getTransactionReceipt", [transaction])
            try:
                return sales_in(msgspec.convert(receipt, _Receipt).logs, contract, wrapped)
            except msgspec.ValidationError:
                # None, when the transaction was reverted meanwhile.
                return []

        return [sale for sales in await asyncio.gather(*map(of, transactions)) for sale in sales]


def honest_prices(sales: Sequence[Sale]) -> list[int]:
    """What was paid, without the trades of two addresses that sold to each other both ways."""
    ways = {(sale.seller, sale.buyer) for sale in sales}
    return [sale.price for sale in sales if (sale.buyer, sale.seller) not in ways]


def lowest_tenth(sales: Sequence[int]) -> int | None:
    """The price at the end of the lowest tenth of the sales; None when there are too few."""
    if len(sales) < _LEAST_SALES:
        return None
    place = math.ceil(len(sales) / _TENTH) - 1
    return sorted(sales)[place]
