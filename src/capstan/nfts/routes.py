"""The NFT paths: `GET /v1/nfts/{chain}/metadata/…`, `/collection/…` and `/owned/…`."""

from collections.abc import Callable
from typing import Annotated, Any

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, Parameter, SkipValidation

from capstan.access.models import Caller, Scope
from capstan.answers import ANSWER_HEADERS, NOT_MODIFIED, encoded
from capstan.chain.registry import Network
from capstan.nfts.models import NftCollection, NftMetadata, OwnedNfts
from capstan.nfts.service import NftService

# The network of a path that names only the chain, for a caller who may use it.
FindNetwork = Callable[[Caller, str, str | None], Network]

_OPTIONS: dict[str, Any] = {
    "units": "rest.data_read",
    "scopes": (Scope.DATA_READ,),
    "errors": ("upstream_error", "upstream_timeout"),
    "documented_statuses": NOT_MODIFIED,
}
_LIST_OPTIONS: dict[str, Any] = {**_OPTIONS, "units": "rest.list"}
# For the description only: the service refuses what does not match in words of its own.
_ADDRESS: dict[str, Any] = {"pattern": "^0x[0-9a-fA-F]{40}$"}
_TOKEN_ID: dict[str, Any] = {"pattern": "^(0x[0-9a-fA-F]{1,64}|[0-9]{1,77}|1[01][0-9]{76})$"}

Chain = Annotated[str, Parameter(description="The chain, such as `ethereum`.", examples=[Example(value="ethereum")])]
Contract = Annotated[
    str, Parameter(description="The NFT contract, 0x and 40 hexadecimal digits.", schema_extra=_ADDRESS)
]
NetworkName = Annotated[
    str | None, Parameter(description="The network; without it the key decides: main or default test network.")
]
IfNoneMatch = Annotated[
    str | None, HeaderParameter(name="If-None-Match", description="The tag of the answer that you have.")
]


def nft_routes(service: NftService, find_network: FindNetwork) -> list[HTTPRouteHandler]:
    """The handlers of the NFT paths."""

    @get(
        "/v1/nfts/{chain:str}/metadata/{contract:str}/{token_id:str}",
        opt=_OPTIONS,
        tags=["nfts"],
        summary="NFT metadata",
        response_headers=ANSWER_HEADERS,
    )
    async def nft_metadata(
        chain: Chain,
        contract: Contract,
        token_id: Annotated[
            str, Parameter(description="The id: decimal, or 0x and hexadecimal digits.", schema_extra=_TOKEN_ID)
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        network: NetworkName = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[NftMetadata]:
        """Owner, standard and metadata of one NFT. Metadata that cannot be fetched leaves its fields null."""
        answer = await service.metadata(find_network(caller, chain, network), contract, token_id)
        return encoded(answer, if_none_match, NftMetadata)

    @get(
        "/v1/nfts/{chain:str}/collection/{contract:str}",
        opt=_LIST_OPTIONS,
        tags=["nfts"],
        summary="NFT collection",
        response_headers=ANSWER_HEADERS,
    )
    async def nft_collection(
        chain: Chain,
        contract: Contract,
        caller: NamedDependency[SkipValidation[Caller]],
        network: NetworkName = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[NftCollection]:
        """Name, supply, owners and metadata of a whole collection."""
        answer = await service.collection(find_network(caller, chain, network), contract)
        return encoded(answer, if_none_match, NftCollection)

    @get(
        "/v1/nfts/{chain:str}/owned/{address:str}",
        opt=_LIST_OPTIONS,
        tags=["nfts"],
        summary="NFTs of an address",
        response_headers=ANSWER_HEADERS,
    )
    async def nfts_owned(
        chain: Chain,
        address: Annotated[
            str, Parameter(description="The owner, 0x and 40 hexadecimal digits.", schema_extra=_ADDRESS)
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(ge=1, le=1_000_000, description="The page, from 1.")] = 1,
        limit: Annotated[int, Parameter(ge=1, le=100, description="How many NFTs a page holds.")] = 50,
        network: NetworkName = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[OwnedNfts]:
        """The NFTs that an address owns, by contract and id."""
        answer = await service.owned(find_network(caller, chain, network), address, page, limit)
        return encoded(answer, if_none_match, OwnedNfts)

    return [nft_metadata, nft_collection, nfts_owned]
