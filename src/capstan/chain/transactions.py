"""What a signed transaction is called on its chain, from the bytes that are sent: its hash, or its signature.

Called by the broadcast when a node says that it has the transaction already. It reads only as much of the encoding as
the name needs and does not check signatures.
"""

import base64
import binascii
from typing import Any

import msgspec

from capstan.core.hexes import keccak256, parse_data, to_data

# EIP-4844: a blob transaction travels as 0x03 ‖ rlp([transaction, blobs, commitments, proofs]) but is hashed without
# the blobs, as 0x03 ‖ rlp(transaction). EIP-7594 puts a version number behind the transaction; the rule is the same.
_BLOB_TYPE = 0x03
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_SIGNATURE_BYTES = 64
# A Solana transaction fits into one packet of 1,232 bytes: 1,683 characters of base58, 1,644 of base64.
_MAX_SOLANA_CHARACTERS = 2_048


def evm_transaction_id(params: bytes) -> str:
    """The hash of the transaction in the params of eth_sendRawTransaction. Raises `ValueError`."""
    return to_data(transaction_hash(parse_data(_first_argument(params)[0])))


def solana_transaction_id(params: bytes) -> str:
    """The first signature of the transaction in the params of sendTransaction. Raises `ValueError`."""
    text, options = _first_argument(params)
    if not isinstance(text, str) or len(text) > _MAX_SOLANA_CHARACTERS:
        raise ValueError("a transaction is a string of at most one packet")
    in_base64 = isinstance(options, dict) and options.get("encoding") == "base64"
    return solana_signature(_from_base64(text) if in_base64 else _from_base58(text))


def solana_signature(raw: bytes) -> str:
    """The first signature of a serialised Solana transaction, in base58, which names it. Raises `ValueError`."""
    # The signatures come first: their number, in one byte as long as there are fewer than 128, then 64 bytes each.
    if not raw or not 1 <= raw[0] < 0x80 or len(raw) < 1 + raw[0] * _SIGNATURE_BYTES:
        raise ValueError("the transaction has no signature")
    return _to_base58(raw[1 : 1 + _SIGNATURE_BYTES])


def _first_argument(params: bytes) -> tuple[Any, Any]:
    """The first argument, and the second or None."""
    arguments = msgspec.json.decode(params, type=list[Any])
    if not arguments:
        raise ValueError("no transaction given")
    return arguments[0], arguments[1] if len(arguments) > 1 else None


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the transaction is not base64") from None


def _from_base58(text: str) -> bytes:
    number = 0
    for character in text:
        digit = _BASE58.find(character)
        if digit < 0:
            raise ValueError("the transaction is not base58")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip(_BASE58[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)


def _to_base58(data: bytes) -> str:
    number, digits = int.from_bytes(data), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return _BASE58[0] * (len(data) - len(data.lstrip(b"\0"))) + digits


def transaction_hash(raw: bytes) -> bytes:
    """The hash of a raw transaction as given to eth_sendRawTransaction. Raises `ValueError` when it cannot be one."""
    if not raw:
        raise ValueError("the transaction is empty")
    if raw[0] != _BLOB_TYPE:
        return keccak256(raw)
    start, _ = _list_bounds(raw, 1)
    if start >= len(raw) or raw[start] < 0xC0:
        # The first item is the chain id, not a list: the bare transaction, without blobs.
        return keccak256(raw)
    _, end = _list_bounds(raw, start)
    return keccak256(raw[:1] + raw[start:end])


def _list_bounds(data: bytes, position: int) -> tuple[int, int]:
    """Where the content of the RLP list at `position` starts and ends."""
    if position >= len(data) or data[position] < 0xC0:
        raise ValueError("an RLP list was expected")
    prefix = data[position]
    if prefix <= 0xF7:
        start, length = position + 1, prefix - 0xC0
    else:
        start = position + 1 + (prefix - 0xF7)
        length = int.from_bytes(data[position + 1 : start])
    if start + length > len(data):
        raise ValueError("the transaction is cut short")
    return start, start + length
