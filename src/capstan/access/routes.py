"""`GET /v1/account` and `GET /v1/networks`: what a key is, what it may use, and which networks this server serves.

Beyond the specification: callers would otherwise have to find these things out by trial.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Meta

from capstan.access.models import Caller
from capstan.access.plans import PlanBook
from capstan.catalogue.networks import Networks

_CONTROL: dict[str, Any] = {"units": "rest.control"}


class AccountLimits(msgspec.Struct, frozen=True):
    """What the account may use; 0 means no limit."""

    requests_per_second: int
    requests_per_day: int
    units_per_second: int
    deliveries_per_day: int
    webhooks: int
    wallets: int
    policies: int
    keys: int


class KeyView(msgspec.Struct, frozen=True):
    """The key that made the request."""

    id: Annotated[str, Meta(description="Prefix `key_`.")]
    mode: Annotated[str, Meta(description="`live` or `test`.")]
    scopes: Annotated[list[str], Meta(description="The scopes the key has.")]


class AccountView(msgspec.Struct, frozen=True):
    """The account behind the key that made the request."""

    id: Annotated[str, Meta(description="Prefix `acc_`.")]
    plan: Annotated[str, Meta(description="`free`, `growth` or `enterprise`.")]
    key: KeyView
    limits: AccountLimits


class NetworkView(msgspec.Struct, frozen=True):
    """One network."""

    chain: str
    network: str
    chain_id: int
    kind: Annotated[str, Meta(description="`mainnet` or `testnet`.")]
    family: Annotated[str, Meta(description="`evm` or `solana`.")]
    native_symbol: str
    served: Annotated[bool, Meta(description="Whether this server has an upstream for it.")]


class NetworkList(msgspec.Struct, frozen=True):
    """The networks this server knows."""

    networks: list[NetworkView]


def access_routes(plans: PlanBook, networks: Callable[[], Networks]) -> list[HTTPRouteHandler]:
    """The handlers of the two paths."""

    @get("/v1/account", opt=_CONTROL, tags=["account"], summary="The account behind the key")
    async def account(caller: Caller) -> AccountView:
        """What the calling key is and what its account may use."""
        effective = plans.effective(caller.plan, caller.overrides)
        return AccountView(
            id=caller.account_id,
            plan=caller.plan,
            key=KeyView(caller.key_id, caller.mode, sorted(caller.scopes)),
            limits=msgspec.convert(msgspec.structs.asdict(effective), AccountLimits),
        )

    @get("/v1/networks", opt=_CONTROL, tags=["account"], summary="The networks of this server")
    async def listing(
        served: Annotated[bool, Parameter(description="Only those this server has an upstream for.")] = True,
    ) -> NetworkList:
        """The networks this server serves, or with `served=false` every network it knows."""
        known = networks()
        available = {entry.name for entry in known.served}
        return NetworkList(
            [
                NetworkView(
                    chain=entry.chain,
                    network=entry.network,
                    chain_id=entry.chain_id,
                    kind=entry.kind,
                    family=entry.family,
                    native_symbol=entry.native_symbol,
                    served=entry.name in available,
                )
                for entry in known
                if not served or entry.name in available
            ]
        )

    return [account, listing]
