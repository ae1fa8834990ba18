"""`POST /v1/bundler/{chain}/{network}`: the way of a JSON-RPC request to the bundler.

Reads the body, finds the network's bundler, hands both to the service and passes its bytes on. What a request costs is
known only after its body was read, so the service charges for it and not the guard.
"""

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Example
from litestar.params import Parameter, SkipValidation

from capstan.access.models import Caller
from capstan.bundler.network import NetworkBundler
from capstan.bundler.service import BundlerService

# The bundler of a path, for a caller who may use its network.
FindBundler = Callable[[Caller, str, str], NetworkBundler]


class Meter(Protocol):
    """The limits of the caller of one request."""

    async def charge(self, requests: int, units: int) -> None:
        """Take from the limits, or raise `RateLimited`."""
        ...

    async def refund(self, units: int) -> None:
        """Give units back."""
        ...


_CALL: dict[str, Any] = {
    "type": "object",
    "required": ["method"],
    "properties": {
        "jsonrpc": {"type": "string", "enum": ["2.0"]},
        "id": {"type": ["string", "integer", "null"], "description": "Echoed in the reply; absent: no reply."},
        "method": {"type": "string", "description": "A method of the bundler, such as `eth_sendUserOperation`."},
        "params": {"type": "array", "items": {}, "description": "The parameters of the method."},
    },
}
_REPLY: dict[str, Any] = {
    "type": "object",
    "required": ["jsonrpc", "id"],
    "properties": {
        "jsonrpc": {"type": "string", "enum": ["2.0"]},
        "id": {"type": ["string", "number", "null"]},
        "result": {"description": "What the bundler answered."},
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
            "description": "Present instead of `result` when the call failed; the codes are those of ERC-7769.",
        },
    },
}
_BATCH: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {"description": "A call as above; anything else is answered with the error -32600."},
}
_OPTIONS: dict[str, Any] = {
    "charged_by_handler": True,
    "errors": ("upstream_error", "upstream_timeout"),
    "request_schema": {"oneOf": [_CALL, _BATCH]},
    "response_schema": {"oneOf": [_REPLY, {"type": "array", "items": _REPLY, "minItems": 1}]},
    "documented_statuses": {"204": "Only notifications were sent, so there is nothing to return."},
}
_OK, _NOTHING = 200, 204


def bundler_routes(service: BundlerService, find_bundler: FindBundler) -> list[HTTPRouteHandler]:
    """The handler of the path."""

    @post(
        "/v1/bundler/{chain:str}/{network:str}",
        opt=_OPTIONS,
        status_code=_OK,
        tags=["bundler"],
        summary="JSON-RPC to the ERC-4337 bundler",
    )
    async def bundler(
        request: Request[Any, Any, Any],
        chain: Annotated[
            str, Parameter(description="The chain, such as `ethereum`.", examples=[Example(value="ethereum")])
        ],
        network: Annotated[
            str, Parameter(description="The network, such as `mainnet`.", examples=[Example(value="mainnet")])
        ],
        caller: NamedDependency[SkipValidation[Caller]],
        meter: NamedDependency[SkipValidation[Meter]],
        request_id: NamedDependency[SkipValidation[str]],
    ) -> Response[bytes]:
        """Takes user operations and tells what became of them. A JSON-RPC failure is HTTP 200 with an `error`.

        `eth_sendUserOperation` needs the scope `bundler:send`, the other methods `bundler:send` or `rpc:read`.
        """
        found = find_bundler(caller, chain, network)
        reply = await service.handle(
            caller,
            found,
            await request.body(),
            charge=meter.charge,
            refund=meter.refund,
            request_id=request_id,
        )
        if reply is None:
            return Response(b"", status_code=_NOTHING)
        return Response(reply, status_code=_OK, media_type="application/json")

    return [bundler]
