"""What a durable consumer of the stream is, and where it stands.

Read by whoever writes rows for blocks: the token index, webhook matching. Plain values and one Protocol; nothing here
does input or output.
"""

from typing import Protocol

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Block, Delta, Demand
from capstan.chain.follower.walk import Position


class DurableConsumer(Protocol):
    """Writes what a block means to it. One consumer serves one network."""

    @property
    def demand(self) -> Demand:
        """How much of each block it needs."""
        ...

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        """Write what the delta changes, on this connection and in its transaction, and nothing anywhere else.

        The block of an `Applied` has what was demanded. That of a `Reverted` has its header alone: what it wrote, the
        consumer finds by the block's hash in its own rows. Must not wait for anything but the database. When it
        raises, nothing of the block is written, and it is tried again.
        """
        ...

    async def reset(self, connection: AsyncConnection) -> None:
        """The chain is another one (a development chain that was begun anew): delete everything of this network."""
        ...


class Standing(msgspec.Struct, frozen=True):
    """Where a stream stands, as it is stored."""

    position: Position
    # The first block ever applied.
    first: int
    # The highest block known to be final.
    final: int | None
    # The blocks that may still be taken back, lowest first, without their content.
    blocks: tuple[Block, ...]

    @property
    def floor(self) -> Position | None:
        """The block below those that are kept, if it was applied too; None when they are all there ever were."""
        if not self.blocks:
            return self.position if self.position.number >= self.first else None
        lowest = self.blocks[0]
        return None if lowest.number <= self.first else Position(lowest.number - 1, lowest.parent_hash)
