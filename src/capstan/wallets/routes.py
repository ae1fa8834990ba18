"""The paths of smart wallets: `POST /v1/wallets/create`, `GET /v1/wallets/{address}`, `GET /v1/wallets`."""

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller, Scope
from capstan.wallets.models import ADDRESS_PATTERN, CreateWallet, WalletDetail, WalletList, WalletView
from capstan.wallets.service import WalletService

_OPTIONS: dict[str, Any] = {
    "units": "rest.control",
    "scopes": (Scope.WALLETS_MANAGE,),
    "errors": ("upstream_error", "upstream_timeout"),
}
_CREATED, _KNOWN = 201, 200

_Chain = Annotated[str | None, Parameter(description="Only wallets on this chain, such as `ethereum`.")]
_Network = Annotated[str | None, Parameter(description="Only wallets on networks of this name, such as `mainnet`.")]


def wallet_routes(wallets: WalletService) -> list[HTTPRouteHandler]:
    """The handlers of the wallet paths."""

    @post(
        "/v1/wallets/create",
        opt=_OPTIONS,
        tags=["wallets"],
        summary="Create a smart wallet",
        status_code=_CREATED,
        responses={
            _KNOWN: ResponseSpec(
                WalletView, generate_examples=False, description="The account has this wallet already; the same body."
            )
        },
    )
    async def create_wallet(
        data: CreateWallet, caller: NamedDependency[SkipValidation[Caller]]
    ) -> Response[WalletView]:
        """The address of a new ERC-4337 account. Nothing is sent to the chain: the first operation deploys it.

        The same owner, chain, network and salt give the same wallet again, with status 200.
        """
        wallet, created = await wallets.create(caller, data)
        return Response(wallet, status_code=_CREATED if created else _KNOWN)

    @get("/v1/wallets/{address:str}", opt=_OPTIONS, tags=["wallets"], summary="Read a smart wallet")
    async def read_wallet(
        address: Annotated[
            str,
            Parameter(
                description="The address of the wallet, in any letter case.",
                examples=[Example(value="0x70997970C51812dc3A010C7d01b50e0d17dc79C8")],
                schema_extra={"pattern": ADDRESS_PATTERN},
            ),
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        chain: _Chain = None,
        network: _Network = None,
    ) -> WalletDetail:
        """One of the account's wallets as the chain has it now; of several at the address, the one created last."""
        return await wallets.read(caller, address, chain, network)

    @get("/v1/wallets", opt=_OPTIONS, tags=["wallets"], summary="List smart wallets")
    async def list_wallets(
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(description="Which page, from 1.", ge=1, le=2**31)] = 1,
        limit: Annotated[int, Parameter(description="How many on a page.", ge=1, le=100)] = 25,
        chain: _Chain = None,
        network: _Network = None,
    ) -> WalletList:
        """The account's wallets, the newest first."""
        return await wallets.page(caller, page=page, limit=limit, chain=chain, network=network)

    return [create_wallet, read_wallet, list_wallets]
