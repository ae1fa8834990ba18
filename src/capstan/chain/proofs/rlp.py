"""Recursive length prefix encoding (Yellow Paper, appendix B), writing only.

Used by the other modules of this package, which hash what it makes. Items are bytes or lists of items; a number is
written with `number`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Item: TypeAlias = "bytes | Sequence[Item]"

_LONGEST_SHORT = 55


def encode(item: Item) -> bytes:
    """The encoding of bytes or of a list."""
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _prefix(len(item), 0x80) + item
    return wrap([encode(part) for part in item])


def wrap(encoded: Sequence[bytes]) -> bytes:
    """A list of items that are encoded already."""
    content = b"".join(encoded)
    return _prefix(len(content), 0xC0) + content


def number(value: int) -> bytes:
    """A number as an item: big-endian, without leading zeros; nothing for 0."""
    return value.to_bytes((value.bit_length() + 7) // 8)


def _prefix(length: int, offset: int) -> bytes:
    if length <= _LONGEST_SHORT:
        return bytes((offset + length,))
    size = number(length)
    return bytes((offset + _LONGEST_SHORT + len(size),)) + size
