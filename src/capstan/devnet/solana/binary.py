"""Binary text forms a Solana node uses: base58, base64, and Zstandard frames. Pure functions, no state.

Used for account data, instruction data and whole transactions. Addresses, hashes and signatures have their own types in
`solders` and are not handled here.
"""

from __future__ import annotations

import base64
import binascii

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {character: value for value, character in enumerate(_ALPHABET)}

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_MAX_BLOCK = 128 * 1024


def base58_encode(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_ALPHABET[digit])
    leading_zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * leading_zeros + "".join(reversed(digits))


def base58_decode(text: str) -> bytes:
    """The bytes of a base58 text; `ValueError` names the first character that is not base58."""
    number = 0
    for position, character in enumerate(text):
        digit = _DIGITS.get(character)
        if digit is None:
            raise ValueError(f"InvalidCharacter {{ character: {character!r}, index: {position} }}")
        number = number * 58 + digit
    leading_ones = len(text) - len(text.lstrip("1"))
    return b"\0" * leading_ones + number.to_bytes((number.bit_length() + 7) // 8, "big")


def base64_encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def base64_decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(str(error)) from error


def zstd_frame(data: bytes) -> bytes:
    """A Zstandard frame (RFC 8878) holding `data` in raw blocks.

    Raw blocks are part of the format, so every decoder reads them; nothing is saved in size. A development node needs
    the encoding to be understood, not to be small, and this way needs no library.
    """
    header = _ZSTD_MAGIC + bytes([0xA0]) + len(data).to_bytes(4, "little")  # single segment, 4-byte content size
    blocks: list[bytes] = []
    for start in range(0, max(len(data), 1), _ZSTD_MAX_BLOCK):
        chunk = data[start : start + _ZSTD_MAX_BLOCK]
        is_last = start + _ZSTD_MAX_BLOCK >= len(data)
        blocks.append((len(chunk) << 3 | int(is_last)).to_bytes(3, "little") + chunk)
    return header + b"".join(blocks)
