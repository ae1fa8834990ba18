"""The same encodings once more, made with eth-abi: what the hand-written ones are compared with."""

from typing import Any

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from capstan.userops.models import UserOperation
from capstan.userops.versions import RELEASES, Version

FLAT = "(address,uint256,bytes,bytes,uint256,uint256,uint256,uint256,uint256,bytes,bytes)"
PACKED = "(address,uint256,bytes,bytes,bytes32,uint256,bytes32,bytes,bytes)"
MAGIC = bytes.fromhex("22e325a297439656")
PACKED_TYPE = (
    "PackedUserOperation(address sender,uint256 nonce,bytes initCode,bytes callData,bytes32 accountGasLimits,"
    "uint256 preVerificationGas,bytes32 gasFees,bytes paymasterAndData)"
)
DOMAIN_TYPE = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


def kind(version: Version) -> str:
    """The ABI type of the version's struct."""
    return PACKED if RELEASES[version].packed else FLAT


def values(version: Version, operation: UserOperation) -> tuple[Any, ...]:
    """The struct's members."""
    init_code = b"" if operation.factory is None else operation.factory.ljust(20, b"\0") + operation.factory_data
    start = (operation.sender, operation.nonce, init_code, operation.call_data)
    if not RELEASES[version].packed:
        fees = (operation.max_fee_per_gas, operation.max_priority_fee_per_gas)
        gas = (operation.call_gas_limit, operation.verification_gas_limit, operation.pre_verification_gas)
        return (*start, *gas, *fees, (operation.paymaster or b"") + operation.paymaster_data, operation.signature)
    return (
        *start,
        pair(operation.verification_gas_limit, operation.call_gas_limit),
        operation.pre_verification_gas,
        pair(operation.max_priority_fee_per_gas, operation.max_fee_per_gas),
        paymaster_and_data(operation),
        operation.signature,
    )


def paymaster_and_data(operation: UserOperation) -> bytes:
    if operation.paymaster is None:
        return b""
    limits = pair(operation.paymaster_verification_gas_limit, operation.paymaster_post_op_gas_limit)
    whole = operation.paymaster + limits + operation.paymaster_data
    if not operation.paymaster_signature:
        return whole
    return whole + operation.paymaster_signature + len(operation.paymaster_signature).to_bytes(2, "big") + MAGIC


def operation_hash(version: Version, operation: UserOperation, entry_point: bytes, chain_id: int) -> bytes:
    """The userOpHash, step by step as the contracts do it."""
    members = list(values(version, operation))
    if operation.authorization is not None and operation.factory == b"\x77\x02":
        members[2] = operation.authorization.address + operation.factory_data
    if operation.paymaster_signature:
        signed = len(members[7]) - len(operation.paymaster_signature) - 10
        members[7] = members[7][:signed] + MAGIC
    plain = [keccak(each) if isinstance(each, bytes) and place in _DYNAMIC else each for place, each in _named(members)]
    types = [each if each != "bytes" else "bytes32" for each in kind(version)[1:-1].split(",")[:-1]]
    if not RELEASES[version].typed_hash:
        inner = keccak(encode(types, plain))
        return keccak(encode(["bytes32", "address", "uint256"], [inner, entry_point, chain_id]))
    struct = keccak(encode(["bytes32", *types], [keccak(PACKED_TYPE.encode()), *plain]))
    domain = keccak(
        encode(
            ["bytes32", "bytes32", "bytes32", "uint256", "address"],
            [keccak(DOMAIN_TYPE.encode()), keccak(b"ERC4337"), keccak(b"1"), chain_id, entry_point],
        )
    )
    return keccak(b"\x19\x01" + domain + struct)


def pair(high: int, low: int) -> bytes:
    return high.to_bytes(16, "big") + low.to_bytes(16, "big")


_DYNAMIC = frozenset({"initCode", "callData", "paymasterAndData"})
_FLAT_NAMES = ("sender", "nonce", "initCode", "callData", "a", "b", "c", "d", "e", "paymasterAndData")
_PACKED_NAMES = ("sender", "nonce", "initCode", "callData", "a", "b", "c", "paymasterAndData")


def _named(members: list[Any]) -> list[tuple[str, Any]]:
    names = _FLAT_NAMES if len(members) == len(_FLAT_NAMES) + 1 else _PACKED_NAMES
    return list(zip(names, members[:-1], strict=True))
