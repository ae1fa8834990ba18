"""The token paths: `GET /v1/tokens/{chain}/balances/{address}` and `GET /v1/tokens/{chain}/metadata/{contract}`."""

from typing import Annotated

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller
from capstan.answers.encoded import ANSWER_HEADERS, encoded
from capstan.answers.parameters import ADDRESS, DATA_OPTIONS, Chain, FindNetwork, IfNoneMatch, NetworkName
from capstan.tokens.models import TokenBalances, TokenMetadata
from capstan.tokens.service import TokenService


def token_routes(service: TokenService, find_network: FindNetwork) -> list[HTTPRouteHandler]:
    """The handlers of the token paths."""

    @get(
        "/v1/tokens/{chain:str}/balances/{address:str}",
        opt=DATA_OPTIONS,
        tags=["tokens"],
        summary="Token balances",
        response_headers=ANSWER_HEADERS,
    )
    async def token_balances(
        chain: Chain,
        address: Annotated[
            str, Parameter(description="The holder, 0x and 40 hexadecimal digits.", schema_extra=ADDRESS)
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(ge=1, le=1_000_000, description="The page, from 1.")] = 1,
        limit: Annotated[int, Parameter(ge=1, le=100, description="How many tokens a page holds.")] = 50,
        network: NetworkName = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[TokenBalances]:
        """The ERC-20 tokens that an address holds, read from the contracts at the latest block.

        The most valuable come first, those without a known price last. The native coin is not in the list.
        """
        answer = await service.balances(find_network(caller, chain, network), address, page, limit)
        return encoded(answer, if_none_match, TokenBalances)

    @get(
        "/v1/tokens/{chain:str}/metadata/{contract:str}",
        opt=DATA_OPTIONS,
        tags=["tokens"],
        summary="Token metadata",
        response_headers=ANSWER_HEADERS,
    )
    async def token_metadata(
        chain: Chain,
        contract: Annotated[
            str, Parameter(description="The token contract, 0x and 40 hexadecimal digits.", schema_extra=ADDRESS)
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        network: NetworkName = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[TokenMetadata]:
        """What an ERC-20 contract says of itself at the latest block, and what the token is worth."""
        answer = await service.metadata(find_network(caller, chain, network), contract)
        return encoded(answer, if_none_match, TokenMetadata)

    return [token_balances, token_metadata]
