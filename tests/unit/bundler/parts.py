"""Operations for the tests of the pool, with as little as a rule needs."""

import itertools
from typing import Any

import msgspec

from capstan.bundler.models import Entity, PoolOperation, Role
from capstan.userops.models import Authorization, UserOperation

_numbers = itertools.count(1)


def address(number: int) -> bytes:
    """The address with this number."""
    return number.to_bytes(20, "big")


def entity(role: Role, number: int, *, staked: bool = False) -> Entity:
    return Entity(role, address(number), staked)


def pooled(
    sender: int = 1,
    nonce: int = 0,
    *,
    fee: int = 100,
    tip: int | None = None,
    staked: bool = False,
    paymaster: Entity | None = None,
    factory: Entity | None = None,
    delegate: int | None = None,
    prefund: int = 1,
    **changes: Any,
) -> PoolOperation:
    """A new operation, different from all others."""
    authorization = None if delegate is None else Authorization(1, address(delegate), 0, 0, 1, 1)
    operation = UserOperation(
        sender=address(sender),
        nonce=nonce,
        max_fee_per_gas=fee,
        max_priority_fee_per_gas=fee if tip is None else tip,
        authorization=authorization,
    )
    made = PoolOperation(
        hash=next(_numbers).to_bytes(32, "big"),
        operation=operation,
        sender=entity("account", sender, staked=staked),
        factory=factory,
        paymaster=paymaster,
        prefund=prefund,
        block_number=0,
    )
    return msgspec.structs.replace(made, **changes)
