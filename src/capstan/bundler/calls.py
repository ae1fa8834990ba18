"""What a method of the bundler is, and how it reads its parameters.

The table of methods is open: the composition root puts it together from the modules that offer methods, so that a new
one needs no change here. A handler gets the network's bundler and the decoded parameters, and returns a value that can
be written as JSON. It raises `Refusal` for a JSON-RPC error of its own; failures of the upstreams go through.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from capstan.access.models import Caller, Scope
from capstan.bundler.entries import EntryPoint
from capstan.bundler.refusals import INVALID_FIELDS, Refusal
from capstan.core.hexes import parse_address, parse_data, to_checksum_address

if TYPE_CHECKING:
    from capstan.bundler.network import NetworkBundler

Handler: TypeAlias = "Callable[[NetworkBundler, Sequence[Any]], Awaitable[Any]]"
# One that depends on who asks.
PersonalHandler: TypeAlias = "Callable[[Caller, NetworkBundler, Sequence[Any]], Awaitable[Any]]"

SENDING = (Scope.BUNDLER_SEND,)
READING = (Scope.BUNDLER_SEND, Scope.RPC_READ)


class Method(msgspec.Struct, frozen=True):
    """One method."""

    handler: Handler
    # A key needs any one of these.
    scopes: tuple[Scope, ...] = READING
    # Whether it is there only on networks with `debug_bundler`.
    debug: bool = False

    async def answer(self, _caller: Caller, bundler: "NetworkBundler", params: Sequence[Any]) -> Any:
        """What the handler says."""
        return await self.handler(bundler, params)


class PersonalMethod(msgspec.Struct, frozen=True):
    """One whose answer depends on who asks."""

    handler: PersonalHandler
    scopes: tuple[Scope, ...]
    debug: bool = False

    async def answer(self, caller: Caller, bundler: "NetworkBundler", params: Sequence[Any]) -> Any:
        """What the handler says to this caller."""
        return await self.handler(caller, bundler, params)


AnyMethod: TypeAlias = Method | PersonalMethod
Methods: TypeAlias = Mapping[str, AnyMethod]


def argument(params: Sequence[Any], place: int, name: str) -> Any:
    """The parameter at a place, which must be there."""
    if len(params) <= place or params[place] is None:
        raise Refusal(INVALID_FIELDS, f"{name} is missing: it is parameter {place + 1}")
    return params[place]


def hash_argument(params: Sequence[Any], place: int = 0) -> bytes:
    """The hash of an operation."""
    try:
        found = parse_data(argument(params, place, "the hash of the operation"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Refusal(INVALID_FIELDS, "Missing/invalid userOpHash: the hash of an operation is 0x and 64 hex digits")
    return found


def address_argument(params: Sequence[Any], place: int, name: str) -> bytes:
    """An address."""
    try:
        return parse_address(argument(params, place, name))
    except ValueError as error:
        raise Refusal(INVALID_FIELDS, f"{name}: {error}") from None


def entry_point_argument(bundler: "NetworkBundler", params: Sequence[Any], place: int = 1) -> EntryPoint:
    """One of the network's entry points."""
    address = address_argument(params, place, "the entry point")
    for known in bundler.entry_points:
        if known.address == address:
            return known
    served = ", ".join(to_checksum_address(known.address) for known in bundler.entry_points)
    raise Refusal(
        INVALID_FIELDS,
        f"the entry point {to_checksum_address(address)} is not supported on {bundler.name}; supported: {served}",
    )
