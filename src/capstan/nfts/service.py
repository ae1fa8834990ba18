"""NFT metadata, collections, and what an address owns, at the latest block.

Called by the NFT routes. What contracts say is kept until there is a newer block; documents come from the library. A
document that cannot be had leaves its fields null and is never an error.
"""

import msgspec

from capstan.answers.encoded import Answer, answer_of
from capstan.answers.reading import Blocks, evm_address, reaches, read_at
from capstan.answers.sharing import Shared
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import InvalidRequest
from capstan.core.hexes import to_checksum_address
from capstan.core.money import plain
from capstan.core.weighted import WeightedMemory
from capstan.nfts.library import Library, Wanted
from capstan.nfts.models import (
    Document,
    NftCollection,
    NftMetadata,
    OwnedNft,
    OwnedNfts,
    OwnedPage,
    OwnedToken,
)
from capstan.nfts.ports import Floors, NftIndex
from capstan.nfts.reading import CollectionReading, NftReader, OwnedReading, TokenReading
from capstan.nfts.uris import Gateways

_THINGS = "ERC721 or ERC1155 tokens"
# For each of the three kinds of readings.
_MEMORY_BYTES = 16 * 1024 * 1024
# How long a list of owned NFTs waits for documents that were never fetched. They are there the next time.
_LIST_PATIENCE_SECONDS = 4.0
# How long later pages of a list are those of the list as it was at its first page, and how long a list may be for that.
_STABLE_SECONDS = 30.0
_MOST_LISTED = 5_000
_NO_DOCUMENT = Document()


class _List(msgspec.Struct, frozen=True):
    """What an address owned when the first page was asked for, as far as it is kept."""

    whole: OwnedPage
    read_at: float


class NftService:
    """NFTs of every EVM network. `close` at the end."""

    def __init__(
        self,
        blocks: Blocks,
        reader: NftReader,
        index: NftIndex,
        library: Library,
        floors: Floors,
        gateways: Gateways,
        clock: Clock,
    ) -> None:
        self._blocks = blocks
        self._reader = reader
        self._index = index
        self._library = library
        self._floors = floors
        self._gateways = gateways
        self._clock = clock
        # Readings by network and what was read, each good for its block.
        self._tokens: WeightedMemory[tuple[str, bytes, int], TokenReading] = WeightedMemory(_MEMORY_BYTES)
        self._collections: WeightedMemory[tuple[str, bytes], CollectionReading] = WeightedMemory(_MEMORY_BYTES)
        self._owned: WeightedMemory[tuple[str, tuple[OwnedToken, ...]], OwnedReading] = WeightedMemory(_MEMORY_BYTES)
        self._lists: WeightedMemory[tuple[str, bytes], _List] = WeightedMemory(_MEMORY_BYTES)
        # Those under way, by the same and the hash of the block.
        self._token_readings: Shared[tuple[str, bytes, int, str], TokenReading] = Shared("NFT")
        self._collection_readings: Shared[tuple[str, bytes, str], CollectionReading] = Shared("NFT collection")
        self._owned_readings: Shared[tuple[str, tuple[OwnedToken, ...], str], OwnedReading] = Shared("owned NFTs")

    async def close(self) -> None:
        """Stop the readings under way."""
        await self._token_readings.close()
        await self._collection_readings.close()
        await self._owned_readings.close()

    async def metadata(self, network: Network, contract: str, token_id: str) -> Answer:
        """What is known of one NFT, encoded. Raises `InvalidRequest`, `NotFound`, and the failures of the pool."""
        address, number = evm_address(network, contract, "contract", _THINGS), _token_id(token_id)
        reading = await self._token(network, address, number)
        document = await self._document(network, address, number, reading)
        shown = NftMetadata(
            contract=contract,
            token_id=str(number),
            name=document.name,
            description=document.description,
            image_url=document.image,
            image_gateway_url=self._gateways.image(document.image),
            standard=reading.standard,
            owner=None if reading.owner is None else to_checksum_address(reading.owner),
            traits=list(document.traits),
        )
        return answer_of(shown, reading.coverage)

    async def collection(self, network: Network, contract: str) -> Answer:
        """What is known of a collection, encoded. Raises as `metadata` does."""
        address = evm_address(network, contract, "contract", _THINGS)
        reading = await self._collection(network, address)
        document = await self._document(network, address, None, reading)
        floor = await self._floors.floor(network, reading.block, address)
        shown = NftCollection(
            contract=contract,
            chain=network.spec.chain,
            name=reading.name or document.name,
            symbol=reading.symbol,
            standard=reading.standard,
            total_supply=reading.total_supply,
            num_owners=reading.owners,
            floor_price_eth=None if floor is None else plain(floor.native),
            floor_price_usd=None if floor is None or floor.usd is None else plain(floor.usd),
            banner_url=document.banner,
            image_url=document.image,
            description=document.description,
        )
        return answer_of(shown, reading.coverage)

    async def owned(self, network: Network, address: str, page: int, limit: int) -> Answer:
        """A page of what an address owns, encoded. Raises as `metadata` does."""
        holder = evm_address(network, address, "address", _THINGS)
        found = await self._page(network, holder, page, limit)
        nfts = await self._shown(network, found) if found.tokens else []
        shown = OwnedNfts(address=address, chain=network.spec.chain, nfts=nfts, page=page, total=found.total)
        return answer_of(shown, found.coverage)

    async def _page(self, network: Network, holder: bytes, page: int, limit: int) -> OwnedPage:
        """A page of the list. Later pages are of the same list as the first for a little while."""
        key, begin, end = (network.name, holder), (page - 1) * limit, page * limit
        kept = self._lists.get(key)
        if page > 1 and kept is not None and self._clock.monotonic() - kept.read_at < _STABLE_SECONDS:
            whole = kept.whole
            if end <= len(whole.tokens) or len(whole.tokens) == whole.total:
                return OwnedPage(whole.tokens[begin:end], whole.total, whole.coverage)
        found = await self._index.owned(network, holder, page=page, limit=limit)
        if page == 1 and found.total > limit:
            whole = await self._index.owned(network, holder, page=1, limit=_MOST_LISTED)
            self._lists.put(key, _List(whole, self._clock.monotonic()), 200 * len(whole.tokens))
            found = OwnedPage(whole.tokens[:limit], whole.total, whole.coverage)
        return found

    async def _document(
        self, network: Network, contract: bytes, token_id: int | None, reading: TokenReading | CollectionReading
    ) -> Document:
        """The document of an id, or with None of the collection."""
        if reading.uri is None:
            return _NO_DOCUMENT
        self._index.follow(network)
        wanted = Wanted(contract, token_id, reading.uri, reading.standard)
        return await self._library.document(network.name, wanted) or _NO_DOCUMENT

    async def _shown(self, network: Network, found: OwnedPage) -> list[OwnedNft]:
        said = (await self._said(network, found.tokens)).said
        places = {place: uri for place, (uri, _) in enumerate(said) if uri is not None}
        wanted = [
            Wanted(found.tokens[place].contract, found.tokens[place].token_id, uri, found.tokens[place].standard)
            for place, uri in places.items()
        ]
        fetched = await self._library.documents(network.name, wanted, patience=_LIST_PATIENCE_SECONDS)
        documents = dict(zip(places, fetched, strict=True))
        nfts = []
        for place, (token, (_, name)) in enumerate(zip(found.tokens, said, strict=True)):
            document = documents.get(place) or _NO_DOCUMENT
            nfts.append(
                OwnedNft(
                    contract=to_checksum_address(token.contract),
                    token_id=str(token.token_id),
                    name=document.name,
                    collection_name=name,
                    image_url=document.image,
                    standard=token.standard,
                )
            )
        return nfts

    async def _token(self, network: Network, contract: bytes, token_id: int) -> TokenReading:
        block = await self._blocks.latest(network)
        key = (network.name, contract, token_id)
        kept = self._tokens.get(key)
        if kept is not None and kept.block.hash == block.hash and reaches(kept.coverage, block):
            return kept
        reading = await self._token_readings.read(
            (*key, block.hash),
            lambda: read_at(
                self._blocks, network, block, lambda at: self._reader.token(network, at, contract, token_id)
            ),
        )
        self._tokens.put(key, reading, _weight(reading.uri))
        return reading

    async def _collection(self, network: Network, contract: bytes) -> CollectionReading:
        block = await self._blocks.latest(network)
        key = (network.name, contract)
        kept = self._collections.get(key)
        if kept is not None and kept.block.hash == block.hash and reaches(kept.coverage, block):
            return kept
        reading = await self._collection_readings.read(
            (*key, block.hash),
            lambda: read_at(self._blocks, network, block, lambda at: self._reader.collection(network, at, contract)),
        )
        self._collections.put(key, reading, _weight(reading.uri))
        return reading

    async def _said(self, network: Network, tokens: tuple[OwnedToken, ...]) -> OwnedReading:
        block = await self._blocks.latest(network)
        key = (network.name, tokens)
        kept = self._owned.get(key)
        if kept is not None and kept.block.hash == block.hash:
            return kept
        reading = await self._owned_readings.read(
            (*key, block.hash),
            lambda: read_at(self._blocks, network, block, lambda at: self._reader.owned(network, at, tokens)),
        )
        self._owned.put(key, reading, sum(_weight(uri) for uri, _ in reading.said))
        return reading


def _weight(uri: str | None) -> int:
    """About the bytes that a reading takes in memory. A URI can hold a whole picture."""
    return 1000 + len(uri or "")


def _token_id(text: str) -> int:
    """An id in decimal or, with 0x, in hexadecimal digits."""
    is_hex = text[:2].lower() == "0x"
    digits = text[2:] if is_hex else text
    allowed = "0123456789abcdefABCDEF" if is_hex else "0123456789"
    if 0 < len(digits) <= (64 if is_hex else 78) and all(digit in allowed for digit in digits):
        number = int(digits, 16 if is_hex else 10)
        if number < 2**256:
            return number
    raise InvalidRequest("token_id: an id is a decimal number, or 0x and hexadecimal digits, below 2^256")
