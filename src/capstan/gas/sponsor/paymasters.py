"""What our verifying paymasters take: the layout of their data, and what their signer signs.

Called by sponsoring. The same as `contracts/VerifyingPaymasterV06.vy` and `VerifyingPaymasterV07.vy`, which the tests
hold against this. Pure, but for the signature itself, which `signer` makes.
"""

import msgspec

from capstan.core.hexes import keccak256
from capstan.userops.abi import WORD, address_word, dynamic, halves, members, word
from capstan.userops.codec import codec_for
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version

SIGNATURE_BYTES = 65
# What the contracts take at most.
LONGEST_INIT_CODE = 4_096
LONGEST_CALL_DATA = 8_192
# Measured on the contracts of 0.7 and 0.8: 13,720 for an ordinary operation, 19,030 with the longest calldata, initCode
# and signature; the entry point adds what it costs to pass them on. There is no postOp. In 0.6 the paymaster shares
# the operation's own limit, of which it takes 54,000 to 63,200.
VERIFICATION_GAS = 45_000
POST_OP_GAS = 0
# Bytes of no signature: as dear as the dearest, so that what is estimated with them suffices.
STUB_SIGNATURE = b"\xff" * 64 + b"\x1c"
FOREVER = 2**48 - 1

_FIELDS_V06 = 11


class Window(msgspec.Struct, frozen=True):
    """When a sponsored operation may be in a block, in Unix seconds."""

    until: int
    after: int = 0


def with_paymaster(version: Version, operation: UserOperation, paymaster: bytes) -> UserOperation:
    """The operation with our paymaster, data of the right length, and gas limits that suffice for it."""
    limits = {}
    if version != "0.6":
        limits = {
            "paymaster_verification_gas_limit": max(operation.paymaster_verification_gas_limit, VERIFICATION_GAS),
            "paymaster_post_op_gas_limit": max(operation.paymaster_post_op_gas_limit, POST_OP_GAS),
        }
    return msgspec.structs.replace(
        operation,
        paymaster=paymaster,
        paymaster_data=data(Window(FOREVER), STUB_SIGNATURE),
        paymaster_signature=None,
        **limits,
    )


def data(window: Window, signature: bytes) -> bytes:
    """`paymasterData`: the times, then the signature."""
    return word(window.until) + word(window.after) + signature


def digest(
    version: Version, operation: UserOperation, chain_id: int, window: Window, sender_nonce: int | None
) -> bytes:
    """What the signer signs, with the prefix of EIP-191. The operation must have the paymaster and its limits already.

    `sender_nonce` is the count that the paymaster of version 0.6 keeps for each sender.
    """
    if version == "0.6":
        return _digest_v06(operation, chain_id, window, sender_nonce or 0)
    return keccak256(
        b"".join(
            (
                address_word(operation.sender),
                word(operation.nonce),
                keccak256(operation.init_code),
                keccak256(operation.call_data),
                halves(operation.verification_gas_limit, operation.call_gas_limit),
                halves(operation.paymaster_verification_gas_limit, operation.paymaster_post_op_gas_limit),
                word(operation.pre_verification_gas),
                halves(operation.max_priority_fee_per_gas, operation.max_fee_per_gas),
                word(chain_id),
                address_word(operation.paymaster or b""),
                word(window.until),
                word(window.after),
            )
        )
    )


def _digest_v06(operation: UserOperation, chain_id: int, window: Window, sender_nonce: int) -> bytes:
    """The operation as the entry point encodes it, up to the end of its callData."""
    encoded = codec_for("0.6").encode(operation)
    length = WORD * _FIELDS_V06 + sum(WORD + _padded(part) for part in (operation.init_code, operation.call_data))
    return keccak256(
        members(
            [
                dynamic(encoded[:length]),
                word(chain_id),
                address_word(operation.paymaster or b""),
                word(sender_nonce),
                word(window.until),
                word(window.after),
            ]
        )
    )


def _padded(part: bytes) -> int:
    return -(-len(part) // WORD) * WORD
