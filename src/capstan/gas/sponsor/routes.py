"""The paths of sponsorship: `POST /v1/gas/sponsor`, and the ledger of a policy."""

from typing import Annotated, Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import Parameter, SkipValidation
from msgspec import UnsetType

from capstan.access.models import Caller, Scope
from capstan.core.schemas import inlined_schema
from capstan.gas.sponsor.history import SponsorshipHistory
from capstan.gas.sponsor.models import Sponsored, SponsorRequest, SponsorshipList
from capstan.gas.sponsor.service import SponsorService

_SPONSOR: dict[str, Any] = {
    "units": "rest.sponsor",
    "scopes": (Scope.GAS_MANAGE,),
    "errors": ("upstream_error", "upstream_timeout"),
    "request_schema": inlined_schema(SponsorRequest),
    "response_schema": inlined_schema(Sponsored),
}
_LIST: dict[str, Any] = {"units": "rest.control", "scopes": (Scope.GAS_MANAGE,)}


def sponsor_routes(sponsor: SponsorService, history: SponsorshipHistory) -> list[HTTPRouteHandler]:
    """The handlers of the paths."""

    @post("/v1/gas/sponsor", opt=_SPONSOR, tags=["gas"], summary="Sponsor a user operation", status_code=200)
    async def sponsor_operation(data: SponsorRequest, caller: NamedDependency[SkipValidation[Caller]]) -> Sponsored:
        """The paymaster's data for an operation, if the policy allows it. What it can cost is reserved.

        The signature covers the operation with its gas limits and fees: change any, and ask again. A refusal is 403;
        its message names the rule.
        """
        case = await sponsor.open_case(
            caller,
            data.policy_id,
            data.user_operation,
            chain=data.chain,
            network=None if isinstance(data.network, UnsetType) else data.network,
            entry_point=None if isinstance(data.entry_point, UnsetType) else data.entry_point,
        )
        return await sponsor.sponsor(case)

    @get(
        "/v1/gas/policies/{policy_id:str}/sponsorships", opt=_LIST, tags=["gas"], summary="List a policy's sponsorships"
    )
    async def list_sponsorships(
        policy_id: Annotated[
            str, Parameter(description="The id of the policy.", examples=[Example(value="gp_3sKf9QmX2LrT7vB1cN8dYz")])
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(description="Which page, from 1.", ge=1, le=2**31)] = 1,
        limit: Annotated[int, Parameter(description="How many on a page.", ge=1, le=100)] = 25,
    ) -> SponsorshipList:
        """What was sponsored under the policy, the newest first, and what became of it."""
        return await history.page(caller, policy_id, page=page, limit=limit)

    return [sponsor_operation, list_sponsorships]
