"""NFT transfers of an address as the API shows them.

Called by the route of `GET /nfts/{chain}/transfers/{address}`. Everything comes from the transfer index; nothing is
asked of the contracts.
"""

from datetime import UTC, datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from capstan.chain.registry import Network
from capstan.core.clock import iso
from capstan.core.errors import InvalidRequest, NotFound
from capstan.core.etags import etag_of
from capstan.core.hexes import parse_address, to_checksum_address
from capstan.index.models import Coverage, Transfer, TransferPage


class NftTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """One transfer. A mint comes from the zero address, a burn goes to it."""

    contract: Annotated[str, Meta(description="The NFT contract.")]
    standard: Annotated[str, Meta(description="`ERC721` or `ERC1155`.")]
    token_id: Annotated[str, Meta(description="The id, in decimal digits.", pattern="^[0-9]+$")]
    from_: Annotated[str, Meta(description="Who sent it.")] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="Who received it.")]
    last_token_id: Annotated[
        str | None, Meta(description="The last id of a range that moved at once (ERC-2309); null for a single id.")
    ]
    quantity: Annotated[
        str, Meta(description="How many of the id; of ERC721 1, or the ids of a range.", pattern="^[0-9]+$")
    ]
    tx_hash: Annotated[str, Meta(pattern="^0x[0-9a-f]{64}$")]
    log_index: Annotated[int, Meta(ge=0, description="The position of the event in its block.")]
    block_number: Annotated[int, Meta(ge=0)]
    block_hash: Annotated[str, Meta(pattern="^0x[0-9a-f]{64}$")]
    timestamp: Annotated[str | None, Meta(description="The time of the block; null when no node tells it.")]


class NftTransfers(msgspec.Struct, frozen=True):
    """A page of transfers, newest first."""

    address: Annotated[str, Meta(description="The address as the request spelled it.")]
    chain: str
    transfers: list[NftTransfer]
    page: Annotated[int, Meta(ge=1)]
    total: Annotated[int, Meta(ge=0, description="How many transfers there are on all pages.")]


class TransferAnswer(msgspec.Struct, frozen=True):
    """An answer as bytes, with what its headers say."""

    body: bytes
    etag: str
    coverage: Coverage
    # Whether another page follows.
    more: bool


class NftTransferIndex(Protocol):
    """Knows the transfers of an address."""

    async def transfers(
        self,
        network: str,
        address: bytes,
        *,
        nft: bool,
        first_block: int | None,
        last_block: int | None,
        page: int,
        limit: int,
    ) -> TransferPage: ...


class NftTransferService:
    """NFT transfers of every EVM network."""

    def __init__(self, index: NftTransferIndex) -> None:
        self._index = index

    async def transfers(
        self, network: Network, address: str, *, page: int, limit: int, first_block: int | None, last_block: int | None
    ) -> TransferAnswer:
        """A page of the transfers from and to an address. Raises `InvalidRequest` and `NotFound`."""
        if network.spec.family != "evm":
            raise NotFound(f"network {network.name} has no NFTs of these standards: only EVM chains do")
        try:
            holder = parse_address(address)
        except ValueError as error:
            raise InvalidRequest(f"address: {error}") from None
        found = await self._index.transfers(
            network.name,
            holder,
            nft=True,
            first_block=first_block,
            last_block=last_block,
            page=page,
            limit=limit,
        )
        shown = NftTransfers(
            address=address,
            chain=network.spec.chain,
            transfers=[_shown(item) for item in found.transfers],
            page=page,
            total=found.total,
        )
        body = msgspec.json.encode(shown)
        return TransferAnswer(body, etag_of(body), found.coverage, more=page * limit < found.total)


def _shown(item: Transfer) -> NftTransfer:
    return NftTransfer(
        contract=to_checksum_address(item.contract),
        standard=item.standard.name,
        token_id=str(item.token_id),
        from_=to_checksum_address(item.sender),
        to=to_checksum_address(item.receiver),
        last_token_id=None if item.last_token_id is None else str(item.last_token_id),
        quantity=str(item.amount),
        tx_hash="0x" + item.transaction_hash.hex(),
        log_index=item.log_index,
        block_number=item.block_number,
        block_hash="0x" + item.block_hash.hex(),
        timestamp=None if item.timestamp is None else iso(datetime.fromtimestamp(item.timestamp, UTC)),
    )
