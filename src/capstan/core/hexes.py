"""Hex as Ethereum writes it: quantities, byte strings, addresses, and the hash they rest on.

Called wherever a value of the chain is read or shown. Parsing is strict and raises `ValueError` with a message that
names what was wrong, so that the caller can add which parameter it was. Nothing here does input or output.
"""

import re

from eth_hash.auto import keccak

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}\Z")
_QUANTITY = re.compile(r"0x(?:0|[1-9a-fA-F][0-9a-fA-F]*)\Z")
_LENIENT_QUANTITY = re.compile(r"0x[0-9a-fA-F]+\Z")
_DATA = re.compile(r"0x(?:[0-9a-fA-F]{2})*\Z")

# An EVM word is 256 bits; no quantity of the chain is longer.
_QUANTITY_DIGITS = 64


def keccak256(data: bytes) -> bytes:
    """The hash function of Ethereum (not SHA-3 as standardised)."""
    return bytes(keccak(data))


def to_quantity(number: int) -> str:
    """A number as JSON-RPC writes it: `0x0`, `0x41`; no leading zeros (EIP-1474)."""
    if number < 0:
        raise ValueError("a quantity is not negative")
    return hex(number)


def parse_quantity(text: object, *, lenient: bool = False) -> int:
    """The number of a JSON-RPC quantity, at most 256 bits. `lenient` takes leading zeros, which some nodes send."""
    if not isinstance(text, str):
        raise ValueError("a quantity is a string such as 0x1f")
    pattern = _LENIENT_QUANTITY if lenient else _QUANTITY
    if not pattern.match(text):
        raise ValueError("a quantity is 0x and hex digits without leading zeros")
    if len(text) - 2 > _QUANTITY_DIGITS and len(text[2:].lstrip("0")) > _QUANTITY_DIGITS:
        raise ValueError("a quantity has at most 256 bits")
    return int(text, 16)


def to_data(data: bytes) -> str:
    """Bytes as JSON-RPC writes them: `0x` and two digits for each byte."""
    return "0x" + data.hex()


def parse_data(text: object) -> bytes:
    """The bytes of a JSON-RPC byte string."""
    if not isinstance(text, str) or not _DATA.match(text):
        raise ValueError("a byte string is 0x and an even number of hex digits")
    return bytes.fromhex(text[2:])


def is_address(text: object) -> bool:
    """Whether `text` is an address, in any letter case."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def parse_address(text: object) -> bytes:
    """The 20 bytes of an address. Any letter case is taken; a wrong checksum is not an error."""
    if not isinstance(text, str) or not _ADDRESS.match(text):
        raise ValueError("an address is 0x and 40 hex digits")
    return bytes.fromhex(text[2:])


def to_checksum_address(address: str | bytes) -> str:
    """An address with the letter case of EIP-55."""
    digits = (address if isinstance(address, bytes) else parse_address(address)).hex()
    if len(digits) != 40:
        raise ValueError("an address has 20 bytes")
    pattern = keccak256(digits.encode()).hex()
    cased = (digit.upper() if int(mark, 16) >= 8 else digit for digit, mark in zip(digits, pattern, strict=False))
    return "0x" + "".join(cased)
