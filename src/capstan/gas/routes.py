"""`GET /v1/gas/{chain}/prices`: the path of the gas prices."""

from collections.abc import Callable
from typing import Annotated, Any

from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller, Scope
from capstan.chain.registry import Network
from capstan.gas.models import GasPrices
from capstan.gas.service import GasPriceService

# The network of a path that names only the chain, for a caller who may use it.
FindNetwork = Callable[[Caller, str, str | None], Network]

_OPTIONS: dict[str, Any] = {
    "units": "rest.gas_prices",
    "scopes": (Scope.RPC_READ, Scope.DATA_READ, Scope.GAS_MANAGE),
    "errors": ("upstream_error", "upstream_timeout"),
}


def gas_routes(prices: GasPriceService, find_network: FindNetwork) -> list[HTTPRouteHandler]:
    """The handlers of the gas paths."""

    @get("/v1/gas/{chain:str}/prices", opt=_OPTIONS, tags=["gas"], summary="Gas prices")
    async def gas_prices(
        chain: Annotated[
            str, Parameter(description="The chain, such as `ethereum`.", examples=[Example(value="ethereum")])
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        network: Annotated[
            str | None, Parameter(description="The network; without it the key decides: main or default test network.")
        ] = None,
    ) -> GasPrices:
        """Present base fee and three estimates of what a transaction should offer."""
        return await prices.prices(find_network(caller, chain, network))

    return [gas_prices]
