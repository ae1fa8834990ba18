"""The events by which entry points tell what became of operations. The same in all versions.

Called by whatever reads logs: the bundler for inclusion and receipts, the wallets for deployment. A log of another
event, or one that only looks like ours, is None.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from capstan.core.hexes import keccak256
from capstan.userops.abi import Malformed, Reader


class OperationHandled(msgspec.Struct, frozen=True):
    """UserOperationEvent: the operation was executed and paid for."""

    hash: bytes
    sender: bytes
    # None when the sender paid itself.
    paymaster: bytes | None
    nonce: int
    success: bool
    actual_gas_cost: int
    actual_gas_used: int


class OperationReverted(msgspec.Struct, frozen=True):
    """UserOperationRevertReason: what the call of the account reverted with."""

    hash: bytes
    sender: bytes
    nonce: int
    reason: bytes


class PostOperationReverted(msgspec.Struct, frozen=True):
    """PostOpRevertReason: what the paymaster's postOp reverted with."""

    hash: bytes
    sender: bytes
    nonce: int
    reason: bytes


class PrefundTooLow(msgspec.Struct, frozen=True):
    """UserOperationPrefundTooLow: the operation used more than it had paid, and was reverted."""

    hash: bytes
    sender: bytes
    nonce: int


class AccountDeployed(msgspec.Struct, frozen=True):
    """AccountDeployed: the operation created its sender."""

    hash: bytes
    sender: bytes
    factory: bytes
    paymaster: bytes | None


class BeforeExecution(msgspec.Struct, frozen=True):
    """BeforeExecution: all operations of the bundle are validated; what follows is their execution."""


class AggregatorChanged(msgspec.Struct, frozen=True):
    """SignatureAggregatorChanged: the aggregator of the operations that follow; None ends it."""

    aggregator: bytes | None


Event: TypeAlias = (
    OperationHandled
    | OperationReverted
    | PostOperationReverted
    | PrefundTooLow
    | AccountDeployed
    | BeforeExecution
    | AggregatorChanged
)


def _topic(signature: str) -> bytes:
    return keccak256(signature.encode())


OPERATION_HANDLED_TOPIC = _topic("UserOperationEvent(bytes32,address,address,uint256,bool,uint256,uint256)")
OPERATION_REVERTED_TOPIC = _topic("UserOperationRevertReason(bytes32,address,uint256,bytes)")
POST_OPERATION_REVERTED_TOPIC = _topic("PostOpRevertReason(bytes32,address,uint256,bytes)")
PREFUND_TOO_LOW_TOPIC = _topic("UserOperationPrefundTooLow(bytes32,address,uint256)")
ACCOUNT_DEPLOYED_TOPIC = _topic("AccountDeployed(bytes32,address,address,address)")
BEFORE_EXECUTION_TOPIC = _topic("BeforeExecution()")
AGGREGATOR_CHANGED_TOPIC = _topic("SignatureAggregatorChanged(address)")


def decode_event(topics: Sequence[bytes], data: bytes) -> Event | None:
    """The event of a log."""
    decoder = _DECODERS.get(topics[0]) if topics else None
    if decoder is None:
        return None
    count, build = decoder
    if len(topics) != count:
        return None
    try:
        return build(Reader(b"".join(topics[1:])), Reader(data))
    except Malformed:
        return None


def _handled(topics: Reader, data: Reader) -> Event:
    return OperationHandled(
        hash=topics.word(0),
        sender=topics.address(1),
        paymaster=_or_none(topics.address(2)),
        nonce=data.number(0),
        success=data.flag(1),
        actual_gas_cost=data.number(2),
        actual_gas_used=data.number(3),
    )


def _reverted(topics: Reader, data: Reader) -> Event:
    return OperationReverted(topics.word(0), topics.address(1), data.number(0), data.data(1))


def _post_reverted(topics: Reader, data: Reader) -> Event:
    return PostOperationReverted(topics.word(0), topics.address(1), data.number(0), data.data(1))


def _prefund(topics: Reader, data: Reader) -> Event:
    return PrefundTooLow(topics.word(0), topics.address(1), data.number(0))


def _deployed(topics: Reader, data: Reader) -> Event:
    return AccountDeployed(topics.word(0), topics.address(1), data.address(0), _or_none(data.address(1)))


def _before(_topics: Reader, _data: Reader) -> Event:
    return BeforeExecution()


def _aggregator(topics: Reader, _data: Reader) -> Event:
    return AggregatorChanged(_or_none(topics.address(0)))


def _or_none(address: bytes) -> bytes | None:
    return address if any(address) else None


# How many topics the event has, and what reads it.
_DECODERS = {
    OPERATION_HANDLED_TOPIC: (4, _handled),
    OPERATION_REVERTED_TOPIC: (3, _reverted),
    POST_OPERATION_REVERTED_TOPIC: (3, _post_reverted),
    PREFUND_TOO_LOW_TOPIC: (3, _prefund),
    ACCOUNT_DEPLOYED_TOPIC: (3, _deployed),
    BEFORE_EXECUTION_TOPIC: (1, _before),
    AGGREGATOR_CHANGED_TOPIC: (2, _aggregator),
}
