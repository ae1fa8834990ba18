"""A set that says "certainly not" or "perhaps", in a fixed amount of memory.

Used by `persistent` so that a question that was never kept does not cost a visit to the file.
"""

import struct

_WORDS = struct.Struct("<IIII")


class BloomFilter:
    """Holds digests of 16 bytes or more. With ten bits for each, about one percent of the answers are wrongly true."""

    def __init__(self, bits: int = 8 * 1024 * 1024) -> None:
        self._bits = max(8, bits)
        self._field = bytearray((self._bits + 7) // 8)

    def add(self, digest: bytes) -> None:
        """Take a digest in."""
        for word in _WORDS.unpack_from(digest):
            place = word % self._bits
            self._field[place >> 3] |= 1 << (place & 7)

    def __contains__(self, digest: bytes) -> bool:
        field, bits = self._field, self._bits
        for word in _WORDS.unpack_from(digest):
            place = word % bits
            if not field[place >> 3] & 1 << (place & 7):
                return False
        return True
