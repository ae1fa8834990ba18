"""What `GET /nfts/{chain}/transfers/{address}` shows of ERC-721 and ERC-1155 transfers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from capstan.answers.transfers import ShownTransfer, TransferView, shown_fields
from capstan.index.models import Transfer


class NftTransfer(ShownTransfer, frozen=True, kw_only=True):
    """One transfer of an NFT. A mint comes from the zero address, a burn goes to it."""

    token_id: Annotated[str, Meta(description="The id, in decimal digits.", pattern="^[0-9]+$")]
    last_token_id: Annotated[
        str | None, Meta(description="The last id of a range that moved at once (ERC-2309); null for a single id.")
    ]
    quantity: Annotated[
        str, Meta(description="How many of the id; of ERC721 1, or the ids of a range.", pattern="^[0-9]+$")
    ]


class NftTransfers(msgspec.Struct, frozen=True):
    """A page of transfers, newest first."""

    address: Annotated[str, Meta(description="The address as the request spelled it.")]
    chain: str
    transfers: list[NftTransfer]
    page: Annotated[int, Meta(ge=1)]
    total: Annotated[int, Meta(ge=0, description="How many transfers there are on all pages.")]


def _shown(item: Transfer) -> NftTransfer:
    return NftTransfer(
        **shown_fields(item),
        token_id=str(item.token_id),
        last_token_id=None if item.last_token_id is None else str(item.last_token_id),
        quantity=str(item.amount),
    )


NFT_TRANSFERS = TransferView(
    tag="nfts",
    summary="NFT transfers",
    description="The ERC-721 and ERC-1155 transfers from and to an address, newest first. A batch is several.",
    nft=True,
    things="NFTs of these standards",
    page=NftTransfers,
    show=_shown,
)
