"""What it means to validate an operation: the promise that the pool asks for and every backend keeps.

The service of the bundler validates an operation before it enters the pool, and again before it goes into a bundle.
How that is done is not its affair: by a simulation alone, by the node's own tracer, or in an EVM of ours. Types only.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from capstan.bundler.models import Entity, Role
from capstan.chain.calls.models import BlockRef
from capstan.userops.models import UserOperation


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    """What one validation found out."""

    # The block whose state it ran on.
    block: BlockRef
    sender: Entity
    factory: Entity | None = None
    paymaster: Entity | None = None
    aggregator: Entity | None = None
    # What each entity used of the gas, and how long the paymaster's context is. Nothing where nothing was traced.
    gas: Mapping[Role, int] = {}
    context_bytes: int = 0
    # What the validation phase used, with preVerificationGas, as the entry point reports it; 0 where it does not.
    pre_operation_gas: int = 0
    # The time range that account and paymaster gave, in seconds since 1970; None is no end.
    valid_after: int = 0
    valid_until: int | None = None
    # Contracts other than the sender in which it used storage associated with an entity (STO-041).
    associated: frozenset[bytes] = frozenset()
    # The code hash of every contract the validation ran or looked at (COD-010). Empty where nothing was traced.
    code_hashes: Mapping[bytes, bytes] = {}
    # The slots it read or wrote, by contract: two operations that meet here do not share a bundle. Empty untraced.
    storage: Mapping[bytes, frozenset[bytes]] = {}
    # Of those, the slots it wrote: two operations that only read a slot do not disturb each other.
    written: Mapping[bytes, frozenset[bytes]] = {}


class Validator(Protocol):
    """Validates operations of one entry point on one network."""

    async def validate(
        self, operation: UserOperation, *, earlier: Validated | None = None, queued: bool = False
    ) -> Validated:
        """Validate at the latest block. `earlier` is what the first validation found: its code must not have changed.

        `queued` says that the operations before it in its lane of nonces wait in the pool: it is validated as the next.
        Raises `Refusal` for an operation that breaks a rule, and what the upstreams raise when none can answer.
        """
        ...
