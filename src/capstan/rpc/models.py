"""What the RPC service is given and what it gives back.

The protocols are all the service needs to know of keys, limits, costs and heads; the composition root supplies them.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from capstan.chain.registry import Network

# The units a method costs, by its name and whether it reads state that only archive nodes have.
Cost: TypeAlias = Callable[[str, bool], int]
# The latest block of a network, or None while it is not known.
Head: TypeAlias = Callable[[Network], int | None]
# Give units back, for answers that failed through our own fault.
Refund: TypeAlias = Callable[[int], Awaitable[None]]


class Caller(Protocol):
    """The authenticated sender of a request."""

    @property
    def account_id(self) -> str: ...

    @property
    def key_id(self) -> str: ...

    def has_scope(self, scope: str) -> bool:
        """Whether the key carries `scope`."""
        ...


class Charge(Protocol):
    """Takes requests and units from the caller's limits, or raises `RateLimited`."""

    async def __call__(self, requests: int, units: int) -> None: ...


class RpcReply(msgspec.Struct, frozen=True):
    """The HTTP answer of the gateway."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


class Usage(Protocol):
    """The ledger of what was used."""

    def record(
        self,
        account_id: str,
        key_id: str,
        network: str,
        method: str,
        units: int,
        failed: bool,
        microseconds: int,
        cached: bool = False,
    ) -> None:
        """Count one call."""
        ...
