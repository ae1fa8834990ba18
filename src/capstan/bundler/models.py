"""What the pool of the bundler holds: operations with what validation found out about them.

Made by validation, read by the pool and by bundling. Plain values.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from capstan.userops.models import UserOperation

Role = Literal["account", "factory", "paymaster", "aggregator"]


class Entity(msgspec.Struct, frozen=True):
    """An address that takes part in the validation of an operation, and whether its stake counts (SREP-010)."""

    role: Role
    address: bytes
    staked: bool


class PoolOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that passed validation."""

    hash: bytes
    operation: UserOperation
    sender: Entity
    factory: Entity | None = None
    paymaster: Entity | None = None
    aggregator: Entity | None = None
    # The most it can cost, in wei: see `Codec.required_prefund`.
    prefund: int
    # The time range that account and paymaster gave, in seconds since 1970; None is no end.
    valid_after: int = 0
    valid_until: int | None = None
    # The block after which it was added.
    block_number: int
    # The contracts, other than its own sender, in which it used storage associated with an entity (STO-041).
    associated: frozenset[bytes] = frozenset()
    # When it came, in microseconds since 1970. Of two that pay the same, the earlier goes first.
    created_at: int = 0

    @property
    def place(self) -> tuple[bytes, int]:
        """What it competes for: a nonce of a sender. Another operation for the same place can only replace it."""
        return self.sender.address, self.operation.nonce

    def others(self) -> Iterator[Entity]:
        """Its entities besides the sender."""
        for entity in (self.factory, self.paymaster, self.aggregator):
            if entity is not None:
                yield entity

    def counted(self) -> Iterator[Entity]:
        """The entities whose reputation it touches: a sender only if it is staked (ERC-7562, definition of entity)."""
        if self.sender.staked:
            yield self.sender
        yield from self.others()

    def uses(self, address: bytes) -> bool:
        """Whether the address takes part in it, in any role."""
        return self.sender.address == address or any(entity.address == address for entity in self.others())


class Added(msgspec.Struct, frozen=True):
    """What left the pool when an operation entered it."""

    # The operation for the same place, which offered less.
    replaced: PoolOperation | None = None
    # The operation that pays least, when the pool was full.
    evicted: PoolOperation | None = None
