"""Pages of transfers of an address: one path for ERC-20 tokens and one for NFTs, which differ only in what they show.

Tokens and NFTs each say with a `TransferView` what their path is called and what a transfer looks like; the rest is
here. Everything comes from the transfer index; nothing is asked of the contracts.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

import msgspec
from litestar import Request, Response, get
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, SkipValidation
from msgspec import Meta

from capstan.access.models import Caller
from capstan.answers.encoded import ANSWER_HEADERS, Answer, answer_of, encoded
from capstan.answers.parameters import ADDRESS, DATA_OPTIONS, Chain, FindNetwork, IfNoneMatch, NetworkName
from capstan.answers.reading import evm_address
from capstan.chain.registry import Network
from capstan.core.clock import iso
from capstan.core.hexes import to_checksum_address
from capstan.core.links import next_link
from capstan.index.models import Transfer, TransferPage

# Every page before the one asked for is read too. Whoever needs older ones asks for those up to an earlier block.
_LAST_PAGE = 10_000
_MOST = 2**53 - 1
# The framework forgets the bounds of what may be left out.
_BLOCK: dict[str, Any] = {"minimum": 0, "maximum": _MOST}
_STABLE = (
    "Pages stay as they are while blocks arrive if `to_block` is the X-Index-Block of the first page, as in the header "
    "Link."
)
_HEADERS = [
    *ANSWER_HEADERS,
    ResponseHeader(
        name="Link",
        description="The next page, if there is one, with the `to_block` that keeps pages as they are.",
        documentation_only=True,
    ),
]


class ShownTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """What every transfer has. A mint comes from the zero address, a burn goes to it."""

    contract: Annotated[str, Meta(description="The token contract.")]
    standard: Annotated[str, Meta(description="`ERC20`, `ERC721` or `ERC1155`.")]
    from_: Annotated[str, Meta(description="Who sent it.")] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="Who received it.")]
    tx_hash: Annotated[str, Meta(pattern="^0x[0-9a-f]{64}$")]
    log_index: Annotated[int, Meta(ge=0, description="The position of the event in its block.")]
    block_number: Annotated[int, Meta(ge=0)]
    block_hash: Annotated[str, Meta(pattern="^0x[0-9a-f]{64}$")]
    timestamp: Annotated[str | None, Meta(description="The time of the block; null when no node tells it.")]


def shown_fields(item: Transfer) -> dict[str, Any]:
    """The values of the fields of `ShownTransfer`."""
    return {
        "contract": to_checksum_address(item.contract),
        "standard": item.standard.name,
        "from_": to_checksum_address(item.sender),
        "to": to_checksum_address(item.receiver),
        "tx_hash": "0x" + item.transaction_hash.hex(),
        "log_index": item.log_index,
        "block_number": item.block_number,
        "block_hash": "0x" + item.block_hash.hex(),
        "timestamp": None if item.timestamp is None else iso(datetime.fromtimestamp(item.timestamp, UTC)),
    }


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """What one of the two paths is called, and what it shows."""

    # The first part of the path, and the name of the group in the API description.
    tag: str
    summary: str
    description: str
    nft: bool
    # What a network of another family does not have.
    things: str
    # A struct with the fields address, chain, transfers, page, total.
    page: type[msgspec.Struct]
    show: Callable[[Transfer], ShownTransfer]


class TransferAnswer(msgspec.Struct, frozen=True):
    """An answer, and whether another page follows."""

    answer: Answer
    more: bool


class AddressTransfers(Protocol):
    """Knows the transfers of an address; the transfer index does."""

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


class TransferService:
    """The transfers of every EVM network, of one kind."""

    def __init__(self, index: AddressTransfers, view: TransferView) -> None:
        self._index = index
        self._view = view

    async def transfers(
        self, network: Network, address: str, *, page: int, limit: int, first_block: int | None, last_block: int | None
    ) -> TransferAnswer:
        """A page of the transfers from and to an address. Raises `InvalidRequest` and `NotFound`."""
        holder = evm_address(network, address, "address", self._view.things)
        found = await self._index.transfers(
            network.name,
            holder,
            nft=self._view.nft,
            first_block=first_block,
            last_block=last_block,
            page=page,
            limit=limit,
        )
        shown = self._view.page(
            address=address,
            chain=network.spec.chain,
            transfers=[self._view.show(item) for item in found.transfers],
            page=page,
            total=found.total,
        )
        return TransferAnswer(answer_of(shown, found.coverage), more=page * limit < found.total)


def transfer_route(index: AddressTransfers, view: TransferView, find_network: FindNetwork) -> HTTPRouteHandler:
    """The handler of the path."""
    service = TransferService(index, view)

    async def transfers(
        request: Request[Any, Any, Any],
        chain: Chain,
        address: Annotated[
            str, Parameter(description="The sender or receiver, 0x and 40 hexadecimal digits.", schema_extra=ADDRESS)
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(ge=1, le=_LAST_PAGE, description="The page, from 1.")] = 1,
        limit: Annotated[int, Parameter(ge=1, le=100, description="How many transfers a page holds.")] = 50,
        from_block: Annotated[
            int | None, Parameter(ge=0, le=_MOST, description="The first block to look at.", schema_extra=_BLOCK)
        ] = None,
        to_block: Annotated[
            int | None, Parameter(ge=0, le=_MOST, description="The last block to look at.", schema_extra=_BLOCK)
        ] = None,
        network: NetworkName = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[Any]:
        found = await service.transfers(
            find_network(caller, chain, network),
            address,
            page=page,
            limit=limit,
            first_block=from_block,
            last_block=to_block,
        )
        link: list[tuple[bytes, bytes]] = []
        if found.more and page < _LAST_PAGE:
            pinned = (found.answer.coverage.block or 0) if to_block is None else to_block
            query = request.scope["query_string"].decode("latin-1")
            following = next_link(request.scope["path"], query, {"page": page + 1, "to_block": pinned})
            link = [(b"link", following.encode("latin-1"))]
        return encoded(found.answer, if_none_match, view.page, link)

    # What the framework reads for the API description.
    transfers.__name__ = f"{view.tag.removesuffix('s')}_transfers"
    transfers.__annotations__["return"] = Response[view.page]  # type: ignore[name-defined]  # known at run time
    return get(
        f"/v1/{view.tag}/{{chain:str}}/transfers/{{address:str}}",
        opt=DATA_OPTIONS,
        tags=[view.tag],
        summary=view.summary,
        description=f"{view.description}\n\n{_STABLE}",
        response_headers=_HEADERS,
    )(transfers)
