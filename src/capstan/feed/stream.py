"""The canonical stream of one network, as far as the feed uses it.

The follower of the chain package is one; tests have a scripted one. The rule that the feed relies on: all consumers are
called for a delta before anything else runs.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from capstan.chain.follower.models import Block, Delta, Demand, PendingTransaction
from capstan.feed.models import Unsubscribe


class PendingStream(Protocol):
    """The mempools of the upstreams as one."""

    def subscribe(self, consumer: Callable[[PendingTransaction], None], full: bool) -> Unsubscribe:
        """Call `consumer` for every transaction from now on; with its content, as far as it can be had, if `full`."""
        ...


class Stream(Protocol):
    """One ordered, gapless, reorg-aware stream of blocks."""

    @property
    def head(self) -> Block | None:
        """The tip, or None while it is not known."""
        ...

    @property
    def halted(self) -> str | None:
        """Why the stream has stopped, or None while it goes on."""
        ...

    def subscribe(self, consumer: Callable[[Delta], None], demand: Demand) -> Unsubscribe:
        """Call `consumer` for every change from now on, with at least as much of each block as demanded."""
        ...

    @property
    def pending(self) -> PendingStream:
        """The transactions that are not in a block yet."""
        ...

    async def replay(
        self,
        number: int,
        consumer: Callable[[Delta], None],
        demand: Demand,
        *,
        pace: Callable[[], Awaitable[None]] | None = None,
    ) -> Unsubscribe:
        """Call `consumer` for every block from this number to the tip, then for every change, exactly once.

        Returns when the consumer is live. `pace` is awaited between two blocks.
        """
        ...
