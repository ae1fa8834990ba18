"""Reads why an entry point refused: the errors it reverts with, and the codes in their messages.

Called by the bundler with the revert data of a simulation or of a bundle. The first letter-pair of a message, `AA`,
and two digits say whose fault it is: 1x the factory's, 2x the account's, 3x the paymaster's (IEntryPoint.FailedOp).
"""

import re
from typing import Literal, TypeAlias

import msgspec

from capstan.core.hexes import keccak256
from capstan.userops.abi import Malformed, Reader

Entity: TypeAlias = Literal["factory", "account", "paymaster", "bundle"]

_CODE = re.compile(r"AA\d\d")
_ENTITIES: dict[str, Entity] = {"1": "factory", "2": "account", "3": "paymaster", "5": "paymaster"}
# AA50: postOp of the paymaster reverted. AA51: the prefund was too small, which the account had chosen.
_ACCOUNT_CODES = frozenset({"AA51", "AA40", "AA41"})


class FailedOperation(msgspec.Struct, frozen=True):
    """FailedOp or FailedOpWithRevert: one operation of the bundle fails."""

    index: int
    reason: str
    # What the account or paymaster itself reverted with; versions before 0.7 do not say.
    inner: bytes = b""

    @property
    def code(self) -> str | None:
        """The code that the reason begins with, such as `AA21`."""
        found = _CODE.match(self.reason)
        return found[0] if found else None

    @property
    def entity(self) -> Entity:
        """Whose fault the code says it is; the bundle's where it blames nobody of the operation."""
        code = self.code
        if code is None:
            return "bundle"
        return "account" if code in _ACCOUNT_CODES else _ENTITIES.get(code[2], "bundle")


class SenderAddress(msgspec.Struct, frozen=True):
    """SenderAddressResult: what getSenderAddress always reverts with."""

    sender: bytes


class AggregatorFailed(msgspec.Struct, frozen=True):
    """SignatureValidationFailed: an aggregator refuses its own signature."""

    aggregator: bytes


class PostOperationReverted(msgspec.Struct, frozen=True):
    """PostOpReverted: the paymaster's postOp reverted with this."""

    inner: bytes


class Reverted(msgspec.Struct, frozen=True):
    """Error(string) or Panic(uint256) of Solidity, or an error that entry point 0.9 gives by name alone."""

    reason: str


Failure: TypeAlias = FailedOperation | SenderAddress | AggregatorFailed | PostOperationReverted | Reverted


def _selector(signature: str) -> bytes:
    return keccak256(signature.encode())[:4]


_FAILED_OP = _selector("FailedOp(uint256,string)")
_FAILED_OP_WITH_REVERT = _selector("FailedOpWithRevert(uint256,string,bytes)")
_SENDER_ADDRESS = _selector("SenderAddressResult(address)")
_AGGREGATOR = _selector("SignatureValidationFailed(address)")
_POST_OP = _selector("PostOpReverted(bytes)")
_ERROR = _selector("Error(string)")
_PANIC = _selector("Panic(uint256)")
# What 0.9 says with errors of its own where earlier versions had an AA code or a text.
_NAMED = {
    _selector(signature): signature.partition("(")[0]
    for signature in (
        "Eip7702SenderNotDelegate(address)",
        "Eip7702SenderWithoutCode(address)",
        "InvalidBeneficiary(address)",
        "InvalidPaymaster(address)",
        "InvalidPaymasterData(uint256)",
        "InvalidPaymasterSignatureLength(uint256,uint256)",
        "FailedSendToBeneficiary(address,uint256,bytes)",
        "InternalFunction()",
        "Reentrancy()",
    )
}


def decode_failure(data: bytes) -> Failure | None:
    """What revert data says, or None when it is nothing of the entry point's."""
    reader = Reader(data[4:])
    try:
        match data[:4]:
            case selector if selector == _FAILED_OP:
                return FailedOperation(reader.number(0), reader.text(1))
            case selector if selector == _FAILED_OP_WITH_REVERT:
                return FailedOperation(reader.number(0), reader.text(1), reader.data(2))
            case selector if selector == _SENDER_ADDRESS:
                return SenderAddress(reader.address(0))
            case selector if selector == _AGGREGATOR:
                return AggregatorFailed(reader.address(0))
            case selector if selector == _POST_OP:
                return PostOperationReverted(reader.data(0))
            case selector if selector == _ERROR:
                return Reverted(reader.text(0))
            case selector if selector == _PANIC:
                return Reverted(f"panic code {reader.number(0):#x}")
    except Malformed:
        return None
    name = _NAMED.get(data[:4])
    return None if name is None else Reverted(name)


def revert_text(data: bytes) -> str:
    """Revert data in words for people: the reason a contract gave, or the bytes."""
    failure = decode_failure(data)
    if isinstance(failure, Reverted | FailedOperation):
        return failure.reason
    return "0x" + data.hex()
