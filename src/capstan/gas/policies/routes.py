"""The paths of gas policies: `POST`, `GET` and `PATCH` under `/v1/gas/policies`."""

from typing import Annotated, Any

from litestar import get, patch, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller, Scope
from capstan.core.schemas import inlined_schema
from capstan.gas.policies.models import ChangePolicy, CreatedPolicy, CreatePolicy, PolicyList, PolicyView
from capstan.gas.policies.service import PolicyService

_OPTIONS: dict[str, Any] = {"units": "rest.control", "scopes": (Scope.GAS_MANAGE,)}
_CREATE = {
    **_OPTIONS,
    "errors": ("upstream_error", "upstream_timeout"),
    "request_schema": inlined_schema(CreatePolicy),
}
_CHANGE = {**_OPTIONS, "errors": ("conflict",), "request_schema": inlined_schema(ChangePolicy)}

_PolicyId = Annotated[
    str, Parameter(description="The id of the policy.", examples=[Example(value="gp_3sKf9QmX2LrT7vB1cN8dYz")])
]


def policy_routes(policies: PolicyService) -> list[HTTPRouteHandler]:
    """The handlers of the policy paths."""

    @post("/v1/gas/policies", opt=_CREATE, tags=["gas"], summary="Create a gas policy", status_code=201)
    async def create_policy(data: CreatePolicy, caller: NamedDependency[SkipValidation[Caller]]) -> CreatedPolicy:
        """A policy says which operations are sponsored, for whom and for how much. It is active at once."""
        return await policies.create(caller, data)

    @get("/v1/gas/policies/{policy_id:str}", opt=_OPTIONS, tags=["gas"], summary="Read a gas policy")
    async def read_policy(policy_id: _PolicyId, caller: NamedDependency[SkipValidation[Caller]]) -> PolicyView:
        """One of the account's policies, with what it has spent."""
        return await policies.read(caller, policy_id)

    @get("/v1/gas/policies", opt=_OPTIONS, tags=["gas"], summary="List gas policies")
    async def list_policies(
        caller: NamedDependency[SkipValidation[Caller]],
        page: Annotated[int, Parameter(description="Which page, from 1.", ge=1, le=2**31)] = 1,
        limit: Annotated[int, Parameter(description="How many on a page.", ge=1, le=100)] = 25,
    ) -> PolicyList:
        """The account's policies, the newest first."""
        return await policies.page(caller, page=page, limit=limit)

    @patch("/v1/gas/policies/{policy_id:str}", opt=_CHANGE, tags=["gas"], summary="Change a gas policy")
    async def change_policy(
        policy_id: _PolicyId, data: ChangePolicy, caller: NamedDependency[SkipValidation[Caller]]
    ) -> CreatedPolicy:
        """Change the name, the rules, the status or the hook. It holds from the next sponsor call on."""
        return await policies.change(caller, policy_id, data)

    return [create_policy, read_policy, list_policies, change_policy]
