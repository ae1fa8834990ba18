"""What is stored of an accepted operation, and how it gets into a row and out of it again.

Used by the pool, the worker and the methods that answer questions about operations. Plain values; no I/O.
"""

from typing import Any, Literal

import msgspec

from capstan.bundler.models import PoolOperation
from capstan.bundler.validating import Validated
from capstan.userops.codec import codec_for
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

State = Literal["pending", "submitted", "included", "failed"]
# The states of what is in the pool.
POOLED: tuple[State, ...] = ("pending", "submitted")


class EntryPoint(msgspec.Struct, frozen=True):
    """An entry point that a network's bundler serves."""

    address: bytes
    version: Version


class Inclusion(msgspec.Struct, frozen=True):
    """Where an operation is on the chain."""

    transaction: bytes
    block_number: int
    block_hash: bytes
    success: bool


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted operation with everything that is known of it."""

    hash: bytes
    entry_point: EntryPoint
    operation: UserOperation
    validated: Validated
    state: State = "pending"
    # Why it left the pool without being included; of an included one, why its call reverted.
    reason: str = ""
    # Microseconds since 1970.
    created_at: int
    # The nonce of a signer whose bundle it is in.
    signer: bytes | None = None
    signer_nonce: int | None = None
    inclusion: Inclusion | None = None

    def pooled(self) -> PoolOperation:
        """The same as the rules of the pool see it."""
        found = self.validated
        return PoolOperation(
            hash=self.hash,
            operation=self.operation,
            sender=found.sender,
            factory=found.factory,
            paymaster=found.paymaster,
            aggregator=found.aggregator,
            prefund=codec_for(self.entry_point.version).required_prefund(self.operation),
            valid_after=found.valid_after,
            valid_until=found.valid_until,
            block_number=found.block.number,
            associated=found.associated,
            created_at=self.created_at,
        )


def encode_operation(entry: Entry) -> str:
    """The operation as it is stored: the JSON of JSON-RPC."""
    return msgspec.json.encode(codec_for(entry.entry_point.version).render(entry.operation)).decode()


def decode_operation(version: Version, text: str) -> UserOperation:
    """The operation of such a text."""
    given: Any = msgspec.json.decode(text)
    return codec_for(version).parse(given)


def encode_validated(validated: Validated) -> bytes:
    """What validation found, as it is stored."""
    return msgspec.msgpack.encode(validated)


_decoder = msgspec.msgpack.Decoder(Validated)


def decode_validated(stored: bytes) -> Validated:
    """The same, read again."""
    return _decoder.decode(stored)
