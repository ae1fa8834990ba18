"""`GET /v1/tokens/{chain}/transfers/{address}`: the path of ERC-20 transfers."""

from collections.abc import Callable
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, Parameter, SkipValidation

from capstan.access.models import Caller, Scope
from capstan.answers import ANSWER_HEADERS, NOT_MODIFIED, encoded
from capstan.chain.registry import Network
from capstan.core.links import next_link
from capstan.tokens.transfers import TokenTransfers, TokenTransferService

# The network of a path that names only the chain, for a caller who may use it.
FindNetwork = Callable[[Caller, str, str | None], Network]

# Every page before the one asked for is read too. Whoever needs older ones asks for those up to an earlier block.
_LAST_PAGE = 10_000
_MOST = 2**53 - 1

_OPTIONS: dict[str, Any] = {
    "units": "rest.data_read",
    "scopes": (Scope.DATA_READ,),
    "errors": ("upstream_error", "upstream_timeout"),
    "documented_statuses": NOT_MODIFIED,
}
# For the description only: the service refuses what does not match in words of its own.
_ADDRESS: dict[str, Any] = {"pattern": "^0x[0-9a-fA-F]{40}$"}
# The framework forgets the bounds of what may be left out.
_BLOCK: dict[str, Any] = {"minimum": 0, "maximum": _MOST}
_HEADERS = [
    *ANSWER_HEADERS,
    ResponseHeader(
        name="Link",
        description="The next page, if there is one, with the `to_block` that keeps pages as they are.",
        documentation_only=True,
    ),
]


def token_transfer_routes(service: TokenTransferService, find_network: FindNetwork) -> list[HTTPRouteHandler]:
    """The handler of the path."""

    @get(
        "/v1/tokens/{chain:str}/transfers/{address:str}",
        opt=_OPTIONS,
        tags=["tokens"],
        summary="Token transfers",
        response_headers=_HEADERS,
    )
    async def token_transfers(
        request: Request[Any, Any, Any],
        chain: Annotated[
            str, Parameter(description="The chain, such as `ethereum`.", examples=[Example(value="ethereum")])
        ],
        address: Annotated[
            str, Parameter(description="The sender or receiver, 0x and 40 hexadecimal digits.", schema_extra=_ADDRESS)
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
        network: Annotated[
            str | None, Parameter(description="The network; without it the key decides: main or default test network.")
        ] = None,
        if_none_match: Annotated[
            str | None, HeaderParameter(name="If-None-Match", description="The tag of the answer that you have.")
        ] = None,
    ) -> Response[TokenTransfers]:
        """The ERC-20 transfers from and to an address, newest first.

        Pages stay as they are while blocks arrive if `to_block` is the X-Index-Block of the first page, as in the
        header Link.
        """
        answer = await service.transfers(
            find_network(caller, chain, network),
            address,
            page=page,
            limit=limit,
            first_block=from_block,
            last_block=to_block,
        )
        link: list[tuple[bytes, bytes]] = []
        if answer.more and page < _LAST_PAGE:
            pinned = (answer.coverage.block or 0) if to_block is None else to_block
            query = request.scope["query_string"].decode("latin-1")
            following = next_link(request.scope["path"], query, {"page": page + 1, "to_block": pinned})
            link = [(b"link", following.encode("latin-1"))]
        return encoded(answer, if_none_match, TokenTransfers, link)

    return [token_transfers]
