"""Values from what contracts return, tolerant of whatever they return.

Called by every capability that reads contracts. A contract is written by anybody and may answer with anything: too
little, too much, text that is not UTF-8, numbers that make no sense. Nothing here raises; what cannot be understood is
None.
"""

import re

from capstan.core.hexes import to_checksum_address

_WORD = 32
_CONTROLS = re.compile("[\x00-\x1f\x7f]+")
# Names and symbols; longer ones are cut.
LONGEST_NAME = 255
# `decimals` is a uint8. Beyond 78 not even one unit fits into 256 bits.
_MOST_DECIMALS = 78


def unsigned(result: bytes | None) -> int | None:
    """The uint256 in the first word."""
    if result is None or len(result) < _WORD:
        return None
    return int.from_bytes(result[:_WORD], "big")


def unsigned_at(result: bytes | None, place: int) -> int | None:
    """The uint256 in the word at `place`, from 0."""
    if result is None or len(result) < _WORD * (place + 1):
        return None
    return int.from_bytes(result[_WORD * place : _WORD * (place + 1)], "big")


def signed_at(result: bytes | None, place: int) -> int | None:
    """The int256 in the word at `place`, from 0."""
    if result is None or len(result) < _WORD * (place + 1):
        return None
    return int.from_bytes(result[_WORD * place : _WORD * (place + 1)], "big", signed=True)


def boolean(result: bytes | None) -> bool:
    """Whether the result is `true`. Anything else, also a number above one, is not."""
    return unsigned(result) == 1


def decimals(result: bytes | None) -> int | None:
    """The decimals of a token; None when missing or absurd."""
    number = unsigned(result)
    return number if number is not None and number <= _MOST_DECIMALS else None


def address_bytes(result: bytes | None) -> bytes | None:
    """The address in the first word, as 20 bytes; None for the zero address too."""
    if result is None or len(result) < _WORD or any(result[:12]) or not any(result[12:_WORD]):
        return None
    return result[12:_WORD]


def address(result: bytes | None) -> str | None:
    """The address in the first word, EIP-55 checksummed; None for the zero address too."""
    found = address_bytes(result)
    return None if found is None else to_checksum_address(found)


def text(result: bytes | None, *, most: int = LONGEST_NAME) -> str | None:
    """A name, symbol or URI: a string, or the bytes32 of old tokens. At most `most` bytes of UTF-8.

    NULs and other control characters are left out, bytes that are not UTF-8 become U+FFFD.
    """
    # A little more than is kept, so that the cut falls between characters.
    content = _content(result, most + 4)
    if content is None:
        return None
    return clean(content.decode("utf-8", "replace"), most=most)


def clean(found: str, *, most: int) -> str:
    """The text without control characters and outer white space, cut to `most` bytes of UTF-8."""
    kept = _CONTROLS.sub("", found).strip()
    encoded = kept.encode("utf-8", "replace")
    return kept if len(encoded) <= most else encoded[:most].decode("utf-8", "ignore")


def _content(result: bytes | None, most: int) -> bytes | None:
    if result is None or not result:
        return None
    if len(result) < 2 * _WORD:
        # bytes32, or something shorter still that a careless contract returned in its place.
        return result[:_WORD].rstrip(b"\0")
    start = int.from_bytes(result[:_WORD], "big")
    if start + _WORD > len(result):
        return None
    length = int.from_bytes(result[start : start + _WORD], "big")
    # A length beyond the end is cut to what is there.
    return result[start + _WORD : start + _WORD + min(length, most)]
