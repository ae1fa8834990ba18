"""What the head tracker and its two sources, EVM and Solana, agree on: the options and the interface.

Nothing here does input or output.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from capstan.chain.heads.headers import DEFAULT_WINDOW, Header
from capstan.chain.heads.reading import Member
from capstan.chain.models import NetworkSpec


class HeadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How heads are followed. The defaults suit every network."""

    # Headers that are kept.
    window: int = DEFAULT_WINDOW
    # Blocks that are fetched to link a new head to the chain; a wider gap begins the chain anew.
    gap_limit: int = 128
    # Headers below the first head that are fetched, so that an early fork finds its common ancestor.
    backfill: int = 64
    # One question to one upstream.
    call_timeout: float = 3.0
    # All questions that link one head.
    link_timeout: float = 10.0
    # How long upstreams that do not answer keep the first head from being announced.
    startup_seconds: float = 1.0
    # Bounds of the time between two questions to one upstream.
    fastest_interval: float = 0.2
    slowest_interval: float = 4.0
    # A network that nobody has asked about for so long is asked every `idle_interval` only.
    idle_after: float = 60.0
    idle_interval: float = 5.0
    finality_interval: float = 4.0
    idle_finality_interval: float = 60.0
    # Ask for the finalized and safe tags. Never done on a chain that may be rewritten.
    finality_tags: bool = True
    # Blocks behind the head that count as final where upstreams do not know the tag; the network's own number wins.
    finality_depth: int | None = None


class HeadSource(Protocol):
    """Reads heads from upstreams one at a time and keeps what they amount to."""

    # False while the network is idle: then wide gaps are not filled.
    thorough: bool

    @property
    def latest(self) -> Header | None:
        """The announced head's header, where the family has headers."""
        ...

    @property
    def number(self) -> int | None:
        """The announced block or slot."""
        ...

    @property
    def finalized_number(self) -> int | None:
        """The highest final block or slot."""
        ...

    @property
    def safe_number(self) -> int | None:
        """The highest safe (Solana: confirmed) block or slot."""
        ...

    @property
    def adopted_at(self) -> float:
        """When the announced head changed last, on the monotonic clock."""
        ...

    def use(self, spec: NetworkSpec, members: Sequence[Member]) -> None:
        """These are the upstreams from now on; what others have said is dropped."""
        ...

    async def look(self, member: Member) -> None:
        """Ask one upstream for its head. Raises `ChainError` when it does not say."""
        ...

    async def look_at_finality(self, member: Member) -> None:
        """Ask one upstream what is final. Raises `ChainError` when it does not say."""
        ...
