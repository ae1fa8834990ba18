"""One run that a backend is asked for: `handleOps` with one operation, at one block.

It is the call that will be made when the operation is bundled, so nothing of the entry point is replaced or pretended,
and it is the same for all versions. What comes after the validation is of no interest: the backends stop there, or give
it little gas. Made by the service. No I/O.
"""

import msgspec

from capstan.chain.calls.models import BlockRef
from capstan.core.creation import create_address
from capstan.core.hexes import keccak256
from capstan.userops.codec import encode_handle_ops
from capstan.userops.models import UserOperation
from capstan.userops.simulation import CALLER
from capstan.userops.versions import Version

# What the entry point itself uses around the validation of one operation, generously.
_OVERHEAD_GAS = 300_000
_WORD_GAS = 64
_DELEGATION_PREFIX = bytes.fromhex("ef0100")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and on which state."""

    block: BlockRef
    version: Version
    entry_point: bytes
    operation: UserOperation
    data: bytes
    gas: int
    # The contract that the sender delegates to by the tuple of this operation (EIP-7702), unless it does so already.
    delegate: bytes | None = None
    # Whether those before it in its lane of nonces are taken as done.
    queued: bool = False

    @property
    def delegation(self) -> bytes:
        """The code that the sender has by its delegation (EIP-7702)."""
        return _DELEGATION_PREFIX + (self.delegate or b"")

    @property
    def delegation_hash(self) -> bytes:
        """The hash of that code."""
        return keccak256(self.delegation)

    @property
    def sender_creator(self) -> bytes:
        """The contract that the entry point calls factories with. It made it itself, as its first creation."""
        return create_address(self.entry_point, 1)


def make_run(
    block: BlockRef, version: Version, entry_point: bytes, operation: UserOperation, *, queued: bool = False
) -> Run:
    """The run of an operation; of a queued one as the next of its lane."""
    data = encode_handle_ops(version, [operation], CALLER)
    limits = operation.verification_gas_limit + operation.paymaster_verification_gas_limit
    if version == "0.6" and operation.paymaster is not None:
        # The one limit counts for the account and again for the paymaster.
        limits += operation.verification_gas_limit
    # A call gets at most 63/64 of what is left (EIP-150).
    gas = limits * 64 // 63 + _OVERHEAD_GAS + len(data) // 32 * _WORD_GAS
    delegate = operation.authorization.address if operation.authorization is not None else None
    return Run(
        block=block,
        version=version,
        entry_point=entry_point,
        operation=operation,
        data=data,
        gas=gas,
        delegate=delegate,
        queued=queued,
    )
