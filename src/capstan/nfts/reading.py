"""What contracts say of NFTs at one block: standard, owner, URI; and the same for whole collections.

Called by the NFT service. One reading is one question to an upstream. Nothing is fetched and nothing kept here.
"""

from collections.abc import Sequence

import msgspec

from capstan.chain.calls import decoding
from capstan.chain.calls.models import BlockRef, ContractCall, call
from capstan.chain.calls.reader import HEAVY
from capstan.chain.registry import Network
from capstan.core.errors import NotFound
from capstan.index.models import Coverage
from capstan.nfts.models import OwnedToken, Standard
from capstan.nfts.ports import Contracts, NftIndex
from capstan.nfts.standards import QUESTIONS, declared, questions, shown
from capstan.nfts.uris import LONGEST_URI

# A larger number in JSON loses digits in many a client.
_LARGEST_NUMBER = 2**53 - 1


class TokenReading(msgspec.Struct, frozen=True):
    """What is known of one id."""

    block: BlockRef
    standard: Standard
    uri: str | None
    owner: bytes | None
    coverage: Coverage


class CollectionReading(msgspec.Struct, frozen=True):
    """What is known of one contract."""

    block: BlockRef
    standard: Standard
    name: str | None
    symbol: str | None
    uri: str | None
    total_supply: int | None
    owners: int | None
    coverage: Coverage


class OwnedReading(msgspec.Struct, frozen=True):
    """For each of some tokens its URI and the name of its collection."""

    block: BlockRef
    said: tuple[tuple[str | None, str | None], ...]


class NftReader:
    """Reads NFT contracts."""

    def __init__(self, contracts: Contracts, index: NftIndex) -> None:
        self._contracts = contracts
        self._index = index

    async def token(self, network: Network, block: BlockRef, contract: bytes, token_id: int) -> TokenReading:
        """One id. Raises `NotFound` when the contract has no NFTs or the id does not exist, and `BlockChanged`."""
        asked = [
            *questions(contract),
            call(contract, "tokenURI(uint256)", token_id),
            call(contract, "uri(uint256)", token_id),
            call(contract, "ownerOf(uint256)", token_id),
        ]
        results = await self._contracts.read(network, block, asked, HEAVY)
        token_uri, uri, owner_of = results[QUESTIONS:]
        standard = declared(results[:QUESTIONS]) or await self._shown(network, block, contract)
        if standard == "ERC721":
            owner = decoding.address_bytes(owner_of)
            coverage = Coverage(block.number, True)
            text = _uri(token_uri)
            if owner is None:
                # Reverted, zero, or a contract from before the standard.
                owners = await self._index.owners_of(network, contract, token_id)
                owner = owners.addresses[0] if len(owners.addresses) == 1 else None
                coverage = owners.coverage
                if owner is None and text is None:
                    raise NotFound(f"token {token_id} of this contract does not exist on {network.name}")
            return TokenReading(block, standard, text, owner, coverage)
        owners = await self._index.owners_of(network, contract, token_id)
        only = owners.addresses[0] if len(owners.addresses) == 1 and owners.coverage.complete else None
        return TokenReading(block, standard, _uri(uri), only, owners.coverage)

    async def collection(self, network: Network, block: BlockRef, contract: bytes) -> CollectionReading:
        """One contract. Raises `NotFound` when it has no NFTs, and `BlockChanged`."""
        names = ("name()", "symbol()", "totalSupply()", "contractURI()")
        asked = [*questions(contract), *(call(contract, name) for name in names)]
        results = await self._contracts.read(network, block, asked, HEAVY)
        name, symbol, supply, uri = results[QUESTIONS:]
        standard = declared(results[:QUESTIONS]) or await self._shown(network, block, contract)
        sums = await self._index.collection(network, contract)
        complete = sums.coverage.complete
        total = decoding.unsigned(supply) if standard == "ERC721" else None
        if total is None and complete:
            total = sums.ids
        return CollectionReading(
            block=block,
            standard=standard,
            name=decoding.text(name),
            symbol=decoding.text(symbol),
            uri=_uri(uri),
            total_supply=total if total is not None and total <= _LARGEST_NUMBER else None,
            owners=sums.owners if complete else None,
            coverage=sums.coverage,
        )

    async def owned(self, network: Network, block: BlockRef, tokens: Sequence[OwnedToken]) -> OwnedReading:
        """What contracts say of these tokens. Raises `BlockChanged`."""
        contracts = list(dict.fromkeys(token.contract for token in tokens))
        asked = [_uri_question(token) for token in tokens]
        results = await self._contracts.read(
            network, block, [*asked, *(call(contract, "name()") for contract in contracts)], HEAVY
        )
        names = dict(zip(contracts, map(decoding.text, results[len(tokens) :]), strict=True))
        uris = (_uri(result) for result in results[: len(tokens)])
        said = tuple((uri, names[token.contract]) for token, uri in zip(tokens, uris, strict=True))
        return OwnedReading(block, said)

    async def _shown(self, network: Network, block: BlockRef, contract: bytes) -> Standard:
        """The standard by the contract's transfers, or the 404 that says what is wrong."""
        if not await self._contracts.has_code(network, block, contract):
            raise NotFound(f"there is no contract at this address on {network.name}")
        found = shown((await self._index.collection(network, contract)).standards)
        if found is None:
            raise NotFound(f"the contract is neither ERC721 nor ERC1155 on {network.name}")
        return found


def _uri_question(token: OwnedToken) -> ContractCall:
    signature = "tokenURI(uint256)" if token.standard == "ERC721" else "uri(uint256)"
    return call(token.contract, signature, token.token_id)


def _uri(result: bytes | None) -> str | None:
    found = decoding.text(result, most=LONGEST_URI)
    return found or None
