"""What the feed is given and what it is limited to.

The protocols are all the feed needs to know of sockets, the RPC gateway, usage and the canonical stream; the server and
the composition root supply them.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from capstan.access.models import Caller
from capstan.chain.registry import Network
from capstan.core.jsonrpc import Item

PUSH_METHOD = "eth_subscription"
"""The name under which pushed messages stand in the usage ledger."""
PUSH_PRICE = "ws.push"
"""The name of their price in the table of compute units."""

Unsubscribe: TypeAlias = Callable[[], None]
Refund: TypeAlias = Callable[[int], Awaitable[None]]


class FeedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one socket, one key and one subscription may take."""

    sockets: int = 9_000
    sockets_per_key: int = 5_000
    subscriptions_per_socket: int = 1_000
    calls_in_flight: int = 64
    # Calls refused one after the other, because a limit is spent, until the socket is closed.
    refusals: int = 100
    # For how many seconds' worth of compute units pushes may be ahead of the limit.
    grace_seconds: float = 10.0
    # How far back a subscription may begin.
    replay_blocks: int = 1_024
    # A replay pauses while more than this waits to be sent.
    replay_buffer_bytes: int = 262_144


class Late(msgspec.Struct, frozen=True):
    """A reply that had to be waited for, and what begins once it has been sent."""

    reply: bytes
    begin: Callable[[], None]


class Socket(Protocol):
    """The connection of one client, as a session uses it. No method waits."""

    def send_text(self, text: bytes) -> None:
        """Send one message. Does nothing once the socket is closing."""
        ...

    def send_frame(self, frame: bytes) -> None:
        """Send a message that is framed already."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the socket; the session's `end` is called before this returns."""
        ...

    def pause(self) -> None:
        """Stop reading from the client."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    async def drain(self, below: int) -> bool:
        """Wait until less than `below` bytes wait to be sent; false when the socket has closed."""
        ...


class Prepared(Protocol):
    """A JSON-RPC request that was read: its calls and what they cost together. A msgspec struct."""

    @property
    def items(self) -> tuple[Item, ...]: ...

    @property
    def is_batch(self) -> bool: ...

    @property
    def units(self) -> int: ...


class Reply(Protocol):
    """What the gateway answers."""

    @property
    def body(self) -> bytes: ...


class Calls(Protocol):
    """The RPC gateway. The plan that `answer_now` may give is opaque and goes back into `answer`."""

    def prepare(self, network: Network, body: bytes) -> Any: ...

    def answer_now(self, caller: Caller, network: Network, prepared: Any, started: float) -> Any: ...

    async def answer(
        self,
        caller: Caller,
        network: Network,
        prepared: Any,
        *,
        refund: Refund | None,
        request_id: str,
        plan: Any = None,
    ) -> Reply: ...


class Usage(Protocol):
    """The ledger of what was used."""

    def record(
        self,
        *,
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

    def record_pushes(self, *, account_id: str, key_id: str, network: str, method: str, count: int, units: int) -> None:
        """Count messages that were sent unasked."""
        ...
