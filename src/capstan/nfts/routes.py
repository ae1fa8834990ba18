"""The NFT paths: `GET /v1/nfts/{chain}/metadata/…`, `/collection/…` and `/owned/…`."""

from typing import Annotated, Any

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller
from capstan.answers.encoded import ANSWER_HEADERS, encoded
from capstan.answers.parameters import ADDRESS, DATA_OPTIONS, LIST_OPTIONS, Chain, FindNetwork, IfNoneMatch, NetworkName
from capstan.core.schemas import DECIMAL_WORD
from capstan.nfts.models import NftCollection, NftMetadata, OwnedNfts
from capstan.nfts.service import NftService

_TOKEN_ID: dict[str, Any] = {"pattern": f"^(0x[0-9a-fA-F]{{1,64}}|{DECIMAL_WORD})$"}

Contract = Annotated[
    str, Parameter(description="The NFT contract, 0x and 40 hexadecimal digits.", schema_extra=ADDRESS)
]


def nft_routes(service: NftService, find_network: FindNetwork) -> list[HTTPRouteHandler]:
    """The handlers of the NFT paths."""

    @get(
        "/v1/nfts/{chain:str}/metadata/{contract:str}/{token_id:str}",
        opt=DATA_OPTIONS,
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
        opt=LIST_OPTIONS,
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
        opt=LIST_OPTIONS,
        tags=["nfts"],
        summary="NFTs of an address",
        response_headers=ANSWER_HEADERS,
    )
    async def nfts_owned(
        chain: Chain,
        address: Annotated[
            str, Parameter(description="The owner, 0x and 40 hexadecimal digits.", schema_extra=ADDRESS)
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
