"""A floor from listings that were validated on the chain: the cheapest one that could be bought at this block.

A source of the floor service. Most listings are signatures that only a marketplace has, and no node can see them. Some
were put on the chain with Seaport's `validate`; their orders are in its events, whole. Those of the last days are
remembered for each network, and of a collection the cheapest are checked at the block, until one holds: Seaport has it
as valid, not cancelled and not filled, the offerer has not raised the counter, still has the token, and lets Seaport
take it. That an order was seen says nothing; only the check does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from capstan.chain.calls import decoding
from capstan.chain.calls.models import ContractCall, call, selector
from capstan.core.hexes import parse_address
from capstan.core.money import amount
from capstan.prices.models import Place, Reader
from capstan.prices.orders import ORDER_VALIDATED, Listing, listing_in
from capstan.prices.past import Past
from capstan.prices.seaport import SEAPORT, Log

_MOST_LISTINGS = 20_000
_CHECKED_AT_ONCE = 20
_MOST_CHECKED = 200
# Blocks that are read again, because they may have been replaced since.
_REREAD_BLOCKS = 256


class _Book:
    """The listings of one network, oldest first, and up to which block they were read."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.read_to = -1
        self.listings: OrderedDict[tuple[bytes, bytes], Listing] = OrderedDict()


class _Candidate(msgspec.Struct, frozen=True):
    listing: Listing
    price: int


class ListingFloors:
    """Floors from listings on the chain. `days` is how far back they are looked for."""

    name = "listings"
    seconds = 300.0

    def __init__(self, reader: Reader, *, days: int) -> None:
        self._reader = reader
        self._days = days
        self._books: dict[str, _Book] = {}

    async def floor(self, place: Place, contract: bytes) -> Decimal | None:
        """See `FloorSource`."""
        book = self._books.setdefault(place.network.name, _Book())
        async with book.lock:
            await self._read(place, book)
        candidates = sorted(
            (
                _Candidate(listing, price)
                for listing in book.listings.values()
                if listing.contract == contract and (price := listing.price_at(place.block.timestamp))
            ),
            key=lambda candidate: candidate.price,
        )
        for begin in range(0, min(len(candidates), _MOST_CHECKED), _CHECKED_AT_ONCE):
            some = candidates[begin : begin + _CHECKED_AT_ONCE]
            good = await self._fulfillable(place, [candidate.listing for candidate in some])
            for candidate, holds in zip(some, good, strict=True):
                if holds:
                    return amount(candidate.price, place.facts.native_decimals)
        return None

    async def _read(self, place: Place, book: _Book) -> None:
        """Take in the listings since the last time."""
        wrapped = parse_address(place.facts.wrapped_native) if place.facts.wrapped_native else None
        past = Past(place.network, place.block.number, days=self._days, first=book.read_to + 1 - _REREAD_BLOCKS)
        found: list[Listing] = []
        async for logs in past.logs(Log, {"address": sorted(SEAPORT), "topics": [[ORDER_VALIDATED]]}):
            found += [listing for log in reversed(logs) if (listing := listing_in(log, wrapped)) is not None]
        for listing in reversed(found):
            book.listings[listing.seaport, listing.hash] = listing
        while len(book.listings) > _MOST_LISTINGS:
            book.listings.popitem(last=False)
        book.read_to = max(book.read_to, place.block.number)

    async def _fulfillable(self, place: Place, listings: Sequence[Listing]) -> list[bool]:
        """Which of the listings could be bought at the block."""
        operators = await self._operators(place, listings)
        asked: list[ContractCall] = []
        for listing, operator in zip(listings, operators, strict=True):
            asked += _questions(listing, operator or bytes(20))
        results = await self._reader.read(place.network, place.block, asked)
        width = len(asked) // len(listings)
        answers = [results[begin : begin + width] for begin in range(0, len(results), width)]
        counters = [decoding.unsigned(answer[1]) for answer in answers]
        hashes = await self._reader.read(
            place.network,
            place.block,
            [_hash_question(listing, counter or 0) for listing, counter in zip(listings, counters, strict=True)],
        )
        return [
            operator is not None and counter is not None and order_hash == listing.hash and _holds(listing, answer)
            for listing, operator, counter, order_hash, answer in zip(
                listings, operators, counters, hashes, answers, strict=True
            )
        ]

    async def _operators(self, place: Place, listings: Sequence[Listing]) -> list[bytes | None]:
        """Who takes the token from the offerer: Seaport, or the conduit that the order names; None for nobody."""
        seaports = sorted({listing.seaport for listing in listings if any(listing.conduit_key)})
        said = await self._reader.read(place.network, place.block, [call(each, "information()") for each in seaports])
        controllers = {
            seaport: result[76:96]
            for seaport, result in zip(seaports, said, strict=True)
            if result and len(result) >= 96
        }
        pairs = sorted({(item.seaport, item.conduit_key) for item in listings if item.seaport in controllers})
        pairs = [pair for pair in pairs if any(pair[1])]
        found = await self._reader.read(
            place.network, place.block, [call(controllers[pair[0]], "getConduit(bytes32)", pair[1]) for pair in pairs]
        )
        conduits = {
            pair: conduit
            for pair, result in zip(pairs, found, strict=True)
            if decoding.unsigned_at(result, 1) == 1 and (conduit := decoding.address_bytes(result)) is not None
        }
        asked = [
            call(controllers[pair[0]], "getChannelStatus(address,address)", conduit, pair[0])
            for pair, conduit in conduits.items()
        ]
        open_ones = await self._reader.read(place.network, place.block, asked)
        conduits = {
            pair: conduit
            for (pair, conduit), result in zip(conduits.items(), open_ones, strict=True)
            if decoding.boolean(result)
        }
        return [
            conduits.get((item.seaport, item.conduit_key)) if any(item.conduit_key) else item.seaport
            for item in listings
        ]


def _questions(listing: Listing, operator: bytes) -> list[ContractCall]:
    contract, token_id, offerer = listing.contract, listing.token_id, listing.offerer
    owner = (
        call(contract, "ownerOf(uint256)", token_id)
        if listing.unique
        else call(contract, "balanceOf(address,uint256)", offerer, token_id)
    )
    return [
        call(listing.seaport, "getOrderStatus(bytes32)", listing.hash),
        call(listing.seaport, "getCounter(address)", offerer),
        owner,
        call(contract, "isApprovedForAll(address,address)", offerer, operator),
        # Only of ERC-721; others revert, which is no approval.
        call(contract, "getApproved(uint256)", token_id),
    ]


_ORDER = "(address,address,(uint8,address,uint256,uint256,uint256)[],(uint8,address,uint256,uint256,uint256,address)[],"
_HASH = f"getOrderHash({_ORDER}uint8,uint256,uint256,bytes32,uint256,bytes32,uint256))"


def _hash_question(listing: Listing, counter: int) -> ContractCall:
    """The hash of the order with this counter: another one, if the offerer has raised it since."""
    return ContractCall(listing.seaport, selector(_HASH) + listing.components(counter))


def _holds(listing: Listing, answers: Sequence[bytes | None]) -> bool:
    """Whether the answers to `_questions` say that it can be bought."""
    status, _, owner, for_all, approved = answers
    validated, cancelled, filled, size = (decoding.unsigned_at(status, place) for place in range(4))
    if validated != 1 or cancelled != 0 or filled is None or size is None or (size and filled >= size):
        return False
    has = decoding.address_bytes(owner) == listing.offerer if listing.unique else bool(decoding.unsigned(owner))
    return has and (
        decoding.boolean(for_all) or (listing.unique and approved is not None and _names(approved, listing))
    )


def _names(approved: bytes, listing: Listing) -> bool:
    """Whether the token alone is approved, to Seaport itself."""
    return not any(listing.conduit_key) and decoding.address_bytes(approved) == listing.seaport
