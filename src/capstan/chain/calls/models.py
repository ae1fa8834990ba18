"""What a reading of contract state is made of: the block, one call, and the failures of a reading as a whole.

Plain values, used by the reader and by every capability that asks contracts. Addresses are 20 bytes here.
"""

from functools import cache

import msgspec

from capstan.core.hexes import keccak256


class BlockRef(msgspec.Struct, frozen=True):
    """The block at which state is read. The hash is with 0x, in lower case."""

    number: int
    hash: str
    timestamp: int


class ContractCall(msgspec.Struct, frozen=True, gc=False):
    """One question to one contract."""

    to: bytes
    data: bytes


class BlockChanged(Exception):
    """The block is not, or no longer, part of the chain that the upstreams tell. Take the head anew and ask again."""


@cache
def selector(signature: str) -> bytes:
    """The first four bytes of the hash of a function's signature, such as `balanceOf(address)`."""
    return keccak256(signature.encode())[:4]


def call(to: bytes, signature: str, *arguments: int | bytes) -> ContractCall:
    """A call whose arguments are all one word each: numbers, and addresses or interface ids as bytes.

    An address (20 bytes) stands at the right of its word, shorter bytes at the left, as the ABI says.
    """
    return ContractCall(to, selector(signature) + b"".join(map(_word, arguments)))


def _word(argument: int | bytes) -> bytes:
    if isinstance(argument, int):
        return argument.to_bytes(32, "big")
    return argument.rjust(32, b"\0") if len(argument) == 20 else argument.ljust(32, b"\0")
