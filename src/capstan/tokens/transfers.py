"""What `GET /tokens/{chain}/transfers/{address}` shows of ERC-20 transfers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from capstan.answers.transfers import ShownTransfer, TransferView, shown_fields
from capstan.index.models import Transfer


class TokenTransfer(ShownTransfer, frozen=True, kw_only=True):
    """One transfer of an ERC-20 token. A mint comes from the zero address, a burn goes to it."""

    value: Annotated[str, Meta(description="Whole number of the smallest unit.", pattern="^[0-9]+$")]


class TokenTransfers(msgspec.Struct, frozen=True):
    """A page of transfers, newest first."""

    address: Annotated[str, Meta(description="The address as the request spelled it.")]
    chain: str
    transfers: list[TokenTransfer]
    page: Annotated[int, Meta(ge=1)]
    total: Annotated[int, Meta(ge=0, description="How many transfers there are on all pages.")]


def _shown(item: Transfer) -> TokenTransfer:
    return TokenTransfer(**shown_fields(item), value=str(item.amount))


TOKEN_TRANSFERS = TransferView(
    tag="tokens",
    summary="Token transfers",
    description="The ERC-20 transfers from and to an address, newest first.",
    nft=False,
    things="ERC-20 tokens",
    page=TokenTransfers,
    show=_shown,
)
