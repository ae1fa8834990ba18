"""The few shapes of the contract ABI that user operations need, written out by hand.

Called by the codecs and the decoders. Hashing and packing an operation is on the path of every request to the bundler,
and a general encoder takes many times as long. The tests compare all of it with eth-abi. Pure.
"""

from collections.abc import Iterable

import msgspec

WORD = 32


class Malformed(ValueError):
    """Bytes that are not the ABI encoding of what was expected."""


class Tail(msgspec.Struct, frozen=True):
    """A member of variable length, encoded: a word points to it from where it stands."""

    encoded: bytes


def word(number: int) -> bytes:
    """A number in one word."""
    return number.to_bytes(WORD, "big")


def address_word(address: bytes) -> bytes:
    """An address in one word."""
    return address.rjust(WORD, b"\0")


def halves(high: int, low: int) -> bytes:
    """Two numbers of 128 bits in one word."""
    return high.to_bytes(16, "big") + low.to_bytes(16, "big")


def dynamic(data: bytes) -> Tail:
    """A `bytes` or `string`: its length, then its content in whole words."""
    return Tail(word(len(data)) + data + bytes(-len(data) % WORD))


def members(items: list[bytes | Tail]) -> bytes:
    """A struct or a list of arguments. Plain bytes are one word each."""
    heads: list[bytes] = []
    tails: list[bytes] = []
    offset = WORD * len(items)
    for item in items:
        if isinstance(item, bytes):
            heads.append(item)
        else:
            heads.append(word(offset))
            tails.append(item.encoded)
            offset += len(item.encoded)
    return b"".join(heads) + b"".join(tails)


def array(items: Iterable[bytes]) -> Tail:
    """An array of structs that have members of variable length."""
    tails = [Tail(item) for item in items]
    return Tail(word(len(tails)) + members(list(tails)))


class Reader:
    """Reads members from an encoded struct, whose offsets count from its beginning. Nothing is read beyond the end."""

    def __init__(self, whole: bytes, start: int = 0) -> None:
        self._whole = whole
        self._start = start

    def word(self, place: int) -> bytes:
        """The word at a place, counted in words."""
        return self._take(self._start + WORD * place, WORD)

    def number(self, place: int, *, bits: int = 256) -> int:
        """A number."""
        number = int.from_bytes(self.word(place), "big")
        if number.bit_length() > bits:
            raise Malformed(f"a number of {bits} bits is too large")
        return number

    def flag(self, place: int) -> bool:
        """A boolean."""
        return bool(self.number(place, bits=1))

    def address(self, place: int) -> bytes:
        """An address."""
        return self.number(place, bits=160).to_bytes(20, "big")

    def data(self, place: int) -> bytes:
        """A `bytes` or `string`."""
        start = self._start + self._offset(place)
        length = int.from_bytes(self._take(start, WORD), "big")
        return self._take(start + WORD, length)

    def text(self, place: int) -> str:
        """A `string`. Contracts may write anything; what is not UTF-8 is shown as the replacement character."""
        return self.data(place).decode("utf-8", errors="replace")

    def structs(self, place: int) -> list["Reader"]:
        """An array of structs that have members of variable length."""
        elements, count = self._array(place)
        return [elements.struct(index) for index in range(count)]

    def struct(self, place: int) -> "Reader":
        """A struct that has members of variable length."""
        return Reader(self._whole, self._start + self._offset(place))

    def words(self, place: int) -> list[bytes]:
        """An array of members of one word each."""
        elements, count = self._array(place)
        return [elements.word(index) for index in range(count)]

    def strings(self, place: int) -> list[bytes]:
        """An array of `bytes`."""
        elements, count = self._array(place)
        return [elements.data(index) for index in range(count)]

    def _array(self, place: int) -> tuple["Reader", int]:
        start = self._start + self._offset(place)
        count = int.from_bytes(self._take(start, WORD), "big")
        if count * WORD > len(self._whole):
            raise Malformed("an array is longer than the data")
        return Reader(self._whole, start + WORD), count

    def _offset(self, place: int) -> int:
        return int.from_bytes(self.word(place), "big")

    def _take(self, start: int, length: int) -> bytes:
        if start + length > len(self._whole):
            raise Malformed("the data ends too early")
        return self._whole[start : start + length]
