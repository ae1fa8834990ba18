"""Operations of entry points 0.7, 0.8 and 0.9, which pack gas limits and fees in pairs.

Made by `codec`. In JSON-RPC every part is a field of its own; on the chain they are a PackedUserOperation. What differs
between the versions is in `versions`.
"""

from collections.abc import Mapping
from typing import Any

from capstan.core.hexes import keccak256, to_checksum_address, to_data, to_quantity
from capstan.userops import fields
from capstan.userops.abi import Reader, address_word, dynamic, halves, members, word
from capstan.userops.fields import UINT128_BITS
from capstan.userops.hashes import PACKED_TYPE_HASH, plain_hash, typed_hash
from capstan.userops.models import ADDRESS_BYTES, InvalidOperation, UserOperation, split_init_code
from capstan.userops.versions import Release

_STRUCT = "(address,uint256,bytes,bytes,bytes32,uint256,bytes32,bytes,bytes)"
_OTHER_SHAPE = ("initCode", "paymasterAndData")
_PAYMASTER_FIELDS = ("paymasterData", "paymasterVerificationGasLimit", "paymasterPostOpGasLimit", "paymasterSignature")
# Paymaster and its two limits.
_PAYMASTER_HEAD = ADDRESS_BYTES + 16 + 16
# keccak256("PaymasterSignature")[:8]: the mark at the end of paymasterAndData that a signature stands before it (0.9).
PAYMASTER_SIGNATURE_MAGIC = bytes.fromhex("22e325a297439656")
_LENGTH_BYTES = 2
_SUFFIX = _LENGTH_BYTES + len(PAYMASTER_SIGNATURE_MAGIC)


class PackedCodec:
    """The codec of one of the versions from 0.7 on."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.struct = _STRUCT
        self.handle_ops_selector = keccak256(f"handleOps({_STRUCT}[],address)".encode())[:4]

    def parse(self, value: object, *, estimating: bool = False) -> UserOperation:
        """See `codec.Codec`."""
        given = fields.require_object(value)
        fields.refuse_fields(given, _OTHER_SHAPE, f"is not a field of entry point {self.release.version} operations")
        limit = 0 if estimating else None
        factory, factory_data = self._factory(given)
        paymaster = self._paymaster(given, limit)
        return UserOperation(
            sender=fields.address(given, "sender"),
            nonce=fields.quantity(given, "nonce"),
            factory=factory,
            factory_data=factory_data,
            call_data=fields.data(given, "callData"),
            call_gas_limit=fields.quantity(given, "callGasLimit", bits=UINT128_BITS, default=limit),
            verification_gas_limit=fields.quantity(given, "verificationGasLimit", bits=UINT128_BITS, default=limit),
            pre_verification_gas=fields.quantity(given, "preVerificationGas", default=limit),
            max_fee_per_gas=fields.quantity(given, "maxFeePerGas", bits=UINT128_BITS, default=limit),
            max_priority_fee_per_gas=fields.quantity(given, "maxPriorityFeePerGas", bits=UINT128_BITS, default=limit),
            signature=fields.data(given, "signature"),
            authorization=self._authorization(given),
            **paymaster,
        )

    def render(self, operation: UserOperation) -> dict[str, Any]:
        """See `codec.Codec`."""
        shown = {"sender": to_checksum_address(operation.sender), "nonce": to_quantity(operation.nonce)}
        if operation.factory is not None:
            shown["factory"] = fields.render_factory(operation.factory)
            shown["factoryData"] = to_data(operation.factory_data)
        shown |= {
            "callData": to_data(operation.call_data),
            "callGasLimit": to_quantity(operation.call_gas_limit),
            "verificationGasLimit": to_quantity(operation.verification_gas_limit),
            "preVerificationGas": to_quantity(operation.pre_verification_gas),
            "maxFeePerGas": to_quantity(operation.max_fee_per_gas),
            "maxPriorityFeePerGas": to_quantity(operation.max_priority_fee_per_gas),
        }
        if operation.paymaster is not None:
            shown["paymaster"] = to_checksum_address(operation.paymaster)
            shown["paymasterVerificationGasLimit"] = to_quantity(operation.paymaster_verification_gas_limit)
            shown["paymasterPostOpGasLimit"] = to_quantity(operation.paymaster_post_op_gas_limit)
            shown["paymasterData"] = to_data(operation.paymaster_data)
            if operation.paymaster_signature is not None:
                shown["paymasterSignature"] = to_data(operation.paymaster_signature)
        whole: dict[str, Any] = {**shown, "signature": to_data(operation.signature)}
        if operation.authorization is not None:
            whole["eip7702Auth"] = fields.render_authorization(operation.authorization)
        return whole

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
        """See `codec.Codec`. A paymaster's signature of 0.9 stays in the data: on the chain they are one."""
        factory, factory_data = split_init_code(reader.data(2))
        limits, fees = reader.word(4), reader.word(6)
        return UserOperation(
            sender=reader.address(0),
            nonce=reader.number(1),
            factory=factory,
            factory_data=factory_data,
            call_data=reader.data(3),
            verification_gas_limit=int.from_bytes(limits[:16], "big"),
            call_gas_limit=int.from_bytes(limits[16:], "big"),
            pre_verification_gas=reader.number(5),
            max_priority_fee_per_gas=int.from_bytes(fees[:16], "big"),
            max_fee_per_gas=int.from_bytes(fees[16:], "big"),
            signature=reader.data(8),
            **_split_paymaster(reader.data(7)),
        )

    def hash(self, operation: UserOperation, entry_point: bytes, chain_id: int, delegate: bytes | None = None) -> bytes:
        """See `codec.Codec`."""
        encoded = b"".join(
            (
                address_word(operation.sender),
                word(operation.nonce),
                keccak256(self._hashed_init_code(operation, delegate)),
                keccak256(operation.call_data),
                *_gas(operation),
                keccak256(self._hashed_paymaster_and_data(operation)),
            )
        )
        if not self.release.typed_hash:
            return plain_hash(encoded, entry_point, chain_id)
        return typed_hash(PACKED_TYPE_HASH + encoded, entry_point, chain_id)

    def required_prefund(self, operation: UserOperation) -> int:
        """See `codec.Codec`."""
        gas = (
            operation.call_gas_limit
            + operation.verification_gas_limit
            + operation.pre_verification_gas
            + operation.paymaster_verification_gas_limit
            + operation.paymaster_post_op_gas_limit
        )
        return gas * operation.max_fee_per_gas

    # --- JSON-RPC

    def _factory(self, given: Mapping[str, Any]) -> tuple[bytes | None, bytes]:
        if not fields.is_given(given, "factory"):
            fields.refuse_fields(given, ["factoryData"], "is given without factory; give both or none")
            return None, b""
        factory = fields.factory(given, "factory", delegation=self.release.delegation)
        # The marker needs no data; a factory does, and ERC-7769 wants both or none.
        delegation = factory.rstrip(b"\0") == b"\x77\x02"
        if given.get("factoryData") is None and not delegation:
            raise InvalidOperation("factoryData", "is required with factory; give both or none")
        return factory, fields.data(given, "factoryData", default=b"")

    def _paymaster(self, given: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
        if not fields.is_given(given, "paymaster"):
            fields.refuse_fields(given, _PAYMASTER_FIELDS, "is given without paymaster; give all of them or none")
            return {}
        if not self.release.paymaster_signature:
            fields.refuse_fields(
                given, ["paymasterSignature"], f"is not a field of entry point {self.release.version} operations"
            )
        signature = None
        if given.get("paymasterSignature") is not None:
            signature = fields.data(given, "paymasterSignature")
            if len(signature) >= 2 ** (8 * _LENGTH_BYTES):
                raise InvalidOperation("paymasterSignature", "must have fewer than 65,536 bytes")
        return {
            "paymaster": fields.address(given, "paymaster"),
            "paymaster_verification_gas_limit": fields.quantity(
                given, "paymasterVerificationGasLimit", bits=UINT128_BITS, default=limit
            ),
            "paymaster_post_op_gas_limit": fields.quantity(
                given, "paymasterPostOpGasLimit", bits=UINT128_BITS, default=limit
            ),
            # Left out by clients whose paymaster needs no data.
            "paymaster_data": fields.data(given, "paymasterData", default=b""),
            "paymaster_signature": signature,
        }

    def _authorization(self, given: Mapping[str, Any]) -> Any:
        if not self.release.authorization:
            fields.refuse_fields(
                given, ["eip7702Auth"], f"is not a field of entry point {self.release.version} operations"
            )
        return fields.authorization(given)

    # --- the hash

    def _hashed_init_code(self, operation: UserOperation, delegate: bytes | None) -> bytes:
        """The initCode as it is hashed: with the delegate in the place of the marker (EIP-7702)."""
        if not self.release.delegation or not operation.is_delegation:
            return operation.init_code
        if operation.authorization is not None:
            delegate = operation.authorization.address
        if delegate is None:
            raise InvalidOperation("eip7702Auth", "is required: the sender delegates to no contract yet")
        return delegate + operation.factory_data

    def _hashed_paymaster_and_data(self, operation: UserOperation) -> bytes:
        """The paymasterAndData as it is hashed: without a signature at its end (0.9)."""
        whole = _paymaster_and_data(operation)
        if not self.release.paymaster_signature:
            return whole
        length = signature_length(whole)
        return whole[: len(whole) - length - _SUFFIX] + PAYMASTER_SIGNATURE_MAGIC if length else whole


def signature_length(paymaster_and_data: bytes) -> int:
    """How many bytes before the mark at the end are the paymaster's signature (0.9); 0 without the mark."""
    if len(paymaster_and_data) < _PAYMASTER_HEAD + _SUFFIX:
        return 0
    if not paymaster_and_data.endswith(PAYMASTER_SIGNATURE_MAGIC):
        return 0
    length = int.from_bytes(paymaster_and_data[-_SUFFIX : -len(PAYMASTER_SIGNATURE_MAGIC)], "big")
    if length > len(paymaster_and_data) - _PAYMASTER_HEAD - _SUFFIX:
        raise InvalidOperation("paymasterData", "names a signature that is longer than the data")
    return length


def _gas(operation: UserOperation) -> tuple[bytes, bytes, bytes]:
    return (
        halves(operation.verification_gas_limit, operation.call_gas_limit),
        word(operation.pre_verification_gas),
        halves(operation.max_priority_fee_per_gas, operation.max_fee_per_gas),
    )


def _paymaster_and_data(operation: UserOperation) -> bytes:
    if operation.paymaster is None:
        return b""
    limits = halves(operation.paymaster_verification_gas_limit, operation.paymaster_post_op_gas_limit)
    whole = operation.paymaster + limits + operation.paymaster_data
    signature = operation.paymaster_signature
    if not signature:
        # As the contracts' own encodePaymasterSignature: an empty one leaves no mark either.
        return whole
    return whole + signature + len(signature).to_bytes(_LENGTH_BYTES, "big") + PAYMASTER_SIGNATURE_MAGIC


def _split_paymaster(value: bytes) -> dict[str, Any]:
    if not value:
        return {}
    if len(value) < _PAYMASTER_HEAD:
        raise InvalidOperation("paymasterAndData", f"must be empty or have at least {_PAYMASTER_HEAD} bytes")
    return {
        "paymaster": value[:ADDRESS_BYTES],
        "paymaster_verification_gas_limit": int.from_bytes(value[20:36], "big"),
        "paymaster_post_op_gas_limit": int.from_bytes(value[36:52], "big"),
        "paymaster_data": value[_PAYMASTER_HEAD:],
    }
