"""Operations of entry point 0.6, which takes every field by itself.

Made by `codec`. Factory and paymaster each stand before their data in one byte string.
"""

from typing import Any

from capstan.core.hexes import keccak256, to_checksum_address, to_data, to_quantity
from capstan.userops import fields
from capstan.userops.abi import Reader, address_word, dynamic, members, word
from capstan.userops.hashes import plain_hash
from capstan.userops.models import ADDRESS_BYTES, InvalidOperation, UserOperation, split_init_code
from capstan.userops.versions import Release

_STRUCT = "(address,uint256,bytes,bytes,uint256,uint256,uint256,uint256,uint256,bytes,bytes)"
_OTHER_SHAPE = (
    "factory",
    "factoryData",
    "paymaster",
    "paymasterData",
    "paymasterVerificationGasLimit",
    "paymasterPostOpGasLimit",
    "paymasterSignature",
    "eip7702Auth",
)


class FlatCodec:
    """The codec of version 0.6."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.struct = _STRUCT
        self.handle_ops_selector = keccak256(f"handleOps({_STRUCT}[],address)".encode())[:4]

    def parse(self, value: object, *, estimating: bool = False) -> UserOperation:
        """See `codec.Codec`."""
        given = fields.require_object(value)
        fields.refuse_fields(given, _OTHER_SHAPE, "is not a field of entry point 0.6 operations")
        optional = 0 if estimating else None
        factory, factory_data = split_init_code(fields.data(given, "initCode"))
        paymaster, paymaster_data = _split_paymaster(fields.data(given, "paymasterAndData"))
        return UserOperation(
            sender=fields.address(given, "sender"),
            nonce=fields.quantity(given, "nonce"),
            factory=factory,
            factory_data=factory_data,
            call_data=fields.data(given, "callData"),
            call_gas_limit=fields.quantity(given, "callGasLimit", default=optional),
            verification_gas_limit=fields.quantity(given, "verificationGasLimit", default=optional),
            pre_verification_gas=fields.quantity(given, "preVerificationGas", default=optional),
            max_fee_per_gas=fields.quantity(given, "maxFeePerGas", default=optional),
            max_priority_fee_per_gas=fields.quantity(given, "maxPriorityFeePerGas", default=optional),
            paymaster=paymaster,
            paymaster_data=paymaster_data,
            signature=fields.data(given, "signature"),
        )

    def render(self, operation: UserOperation) -> dict[str, Any]:
        """See `codec.Codec`."""
        return {
            "sender": to_checksum_address(operation.sender),
            "nonce": to_quantity(operation.nonce),
            "initCode": to_data(operation.init_code),
            "callData": to_data(operation.call_data),
            "callGasLimit": to_quantity(operation.call_gas_limit),
            "verificationGasLimit": to_quantity(operation.verification_gas_limit),
            "preVerificationGas": to_quantity(operation.pre_verification_gas),
            "maxFeePerGas": to_quantity(operation.max_fee_per_gas),
            "maxPriorityFeePerGas": to_quantity(operation.max_priority_fee_per_gas),
            "paymasterAndData": to_data(_paymaster_and_data(operation)),
            "signature": to_data(operation.signature),
        }

    def encode(self, operation: UserOperation) -> bytes:
        """See `codec.Codec`."""
        return members(
            [
                address_word(operation.sender),
                word(operation.nonce),
                dynamic(operation.init_code),
                dynamic(operation.call_data),
                *_gas(operation),
                dynamic(_paymaster_and_data(operation)),
                dynamic(operation.signature),
            ]
        )

    def decode(self, reader: Reader) -> UserOperation:
        """See `codec.Codec`."""
        factory, factory_data = split_init_code(reader.data(2))
        paymaster, paymaster_data = _split_paymaster(reader.data(9))
        return UserOperation(
            sender=reader.address(0),
            nonce=reader.number(1),
            factory=factory,
            factory_data=factory_data,
            call_data=reader.data(3),
            call_gas_limit=reader.number(4),
            verification_gas_limit=reader.number(5),
            pre_verification_gas=reader.number(6),
            max_fee_per_gas=reader.number(7),
            max_priority_fee_per_gas=reader.number(8),
            paymaster=paymaster,
            paymaster_data=paymaster_data,
            signature=reader.data(10),
        )

    def hash(self, operation: UserOperation, entry_point: bytes, chain_id: int, delegate: bytes | None = None) -> bytes:
        """See `codec.Codec`."""
        encoded = b"".join(
            (
                address_word(operation.sender),
                word(operation.nonce),
                keccak256(operation.init_code),
                keccak256(operation.call_data),
                *_gas(operation),
                keccak256(_paymaster_and_data(operation)),
            )
        )
        return plain_hash(encoded, entry_point, chain_id)

    def required_prefund(self, operation: UserOperation) -> int:
        """See `codec.Codec`. With a paymaster the verification limit counts for account, paymaster and postOp each."""
        verifications = 3 if operation.paymaster is not None and any(operation.paymaster) else 1
        gas = (
            operation.call_gas_limit + operation.verification_gas_limit * verifications + operation.pre_verification_gas
        )
        return gas * operation.max_fee_per_gas


def _gas(operation: UserOperation) -> tuple[bytes, ...]:
    return (
        word(operation.call_gas_limit),
        word(operation.verification_gas_limit),
        word(operation.pre_verification_gas),
        word(operation.max_fee_per_gas),
        word(operation.max_priority_fee_per_gas),
    )


def _paymaster_and_data(operation: UserOperation) -> bytes:
    return (operation.paymaster or b"") + operation.paymaster_data


def _split_paymaster(value: bytes) -> tuple[bytes | None, bytes]:
    if not value:
        return None, b""
    if len(value) < ADDRESS_BYTES:
        raise InvalidOperation("paymasterAndData", "must be empty or begin with the 20 bytes of a paymaster")
    return value[:ADDRESS_BYTES], value[ADDRESS_BYTES:]
