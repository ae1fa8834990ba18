"""Reads and writes the single fields of a user operation as JSON-RPC carries them.

Called by the codecs. Every failure is an `InvalidOperation` that names the field, which the caller answers with -32602
(ERC-7769). Numbers are hex strings; leading zeros are taken, because libraries in wide use write `0x01`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from capstan.core.hexes import parse_address, parse_data, parse_quantity, to_checksum_address, to_data, to_quantity
from capstan.userops.models import DELEGATION_MARKER, Authorization, InvalidOperation

UINT256_BITS = 256
# What entry points 0.7 and later pack two of into one word.
UINT128_BITS = 128

_AUTHORIZATION = "eip7702Auth"

_Value = TypeVar("_Value")


def require_object(value: object) -> Mapping[str, Any]:
    """The operation as an object of fields."""
    if not isinstance(value, Mapping):
        raise InvalidOperation("userOperation", "must be an object")
    return value


def refuse_fields(fields: Mapping[str, Any], names: Iterable[str], reason: str) -> None:
    """Raise for the first of `names` that is given. A field that would be ignored could change what is meant."""
    for name in names:
        if is_given(fields, name):
            raise InvalidOperation(name, reason)


def quantity(fields: Mapping[str, Any], name: str, *, bits: int = UINT256_BITS, default: int | None = None) -> int:
    """A number of at most so many bits."""
    value = fields.get(name)
    if value is None:
        return _absent(name, default)
    try:
        number = parse_quantity(value, lenient=True)
    except ValueError as error:
        raise InvalidOperation(name, str(error)) from None
    if number.bit_length() > bits:
        raise InvalidOperation(name, f"must fit into {bits} bits")
    return number


def data(fields: Mapping[str, Any], name: str, *, default: bytes | None = None) -> bytes:
    """A byte string; an empty one is `0x`."""
    value = fields.get(name)
    if value is None:
        return _absent(name, default)
    try:
        return parse_data(value)
    except ValueError as error:
        raise InvalidOperation(name, str(error)) from None


def is_given(fields: Mapping[str, Any], name: str) -> bool:
    """Whether an optional field has a value: null and the empty byte string are none."""
    return fields.get(name) not in (None, "0x")


def address(fields: Mapping[str, Any], name: str) -> bytes:
    """An address."""
    value = fields.get(name)
    if value is None:
        raise InvalidOperation(name, "is required")
    try:
        return parse_address(value)
    except ValueError as error:
        raise InvalidOperation(name, str(error)) from None


def factory(fields: Mapping[str, Any], name: str, *, delegation: bool) -> bytes:
    """An address, or where the version has EIP-7702 the marker `0x7702`."""
    if delegation and fields.get(name) == "0x7702":
        return DELEGATION_MARKER
    return address(fields, name)


def render_factory(value: bytes) -> str:
    """A factory as it is written: an address with checksum, or the marker as it came."""
    return to_data(value) if value == DELEGATION_MARKER else to_checksum_address(value)


def authorization(fields: Mapping[str, Any]) -> Authorization | None:
    """The EIP-7702 tuple, if there is one. `v` of 27 or 28 is taken for `yParity`, as some signers write it."""
    value = fields.get(_AUTHORIZATION)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidOperation(_AUTHORIZATION, "must be an object")
    try:
        return Authorization(
            chain_id=quantity(value, "chainId"),
            address=address(value, "address"),
            nonce=quantity(value, "nonce", bits=64),
            y_parity=_parity(value),
            r=quantity(value, "r"),
            s=quantity(value, "s"),
        )
    except InvalidOperation as error:
        raise InvalidOperation(f"{_AUTHORIZATION}.{error.field}", error.reason) from None


def render_authorization(value: Authorization) -> dict[str, str]:
    """The tuple as JSON-RPC carries it."""
    return {
        "chainId": to_quantity(value.chain_id),
        "address": to_checksum_address(value.address),
        "nonce": to_quantity(value.nonce),
        "yParity": to_quantity(value.y_parity),
        "r": to_quantity(value.r),
        "s": to_quantity(value.s),
    }


def _parity(value: Mapping[str, Any]) -> int:
    if value.get("yParity") is not None:
        parity = quantity(value, "yParity")
    else:
        parity = quantity(value, "v" if value.get("v") is not None else "yParity")
        parity -= 27 if parity in (27, 28) else 0
    if parity not in (0, 1):
        raise InvalidOperation("yParity", "must be 0x0 or 0x1")
    return parity


def _absent(name: str, default: _Value | None) -> _Value:
    if default is None:
        raise InvalidOperation(name, "is required")
    return default
