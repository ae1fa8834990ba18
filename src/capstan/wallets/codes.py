"""Which of many addresses have code, asked in one call.

Called by the wallet service for lists. The call carries a small program instead of the address of a contract: it takes
EXTCODESIZE of each address that stands behind it and returns one byte for each. Every EVM node runs it, and nothing
needs to be deployed. Pure: the bytes alone, no I/O.
"""

from collections.abc import Sequence

# EIP-3860 bounds the code of a creation; so many addresses stay far below it.
MOST_ADDRESSES = 1000
_ADDRESS = 20

# Every chain has these instructions; PUSH0, for one, is missing on some.
_STEPS = (
    "60 {end}",  # PUSH1 the place of the first address: behind this program
    "60 20",  # PUSH1 the place in memory of the first result
    "5b",  # again: stack is (address place, result place)
    "81 38 11 15 60 {done} 57",  # if the address place is not below CODESIZE, go to done
    "60 14 82 60 0c 39",  # CODECOPY 20 bytes from there to memory 12, the right end of word 0
    "60 00 51 3b 15 15",  # EXTCODESIZE of that word, as 0 or 1
    "81 53",  # MSTORE8 it at the result place
    "60 01 01 90 60 14 01 90",  # add 1 to the result place and 20 to the address place
    "60 04 56",  # go to again
    "5b",  # done
    "60 20 90 03 60 20 f3",  # RETURN the results
)
_LENGTH = 45
_DONE = 37
_PROGRAM = bytes.fromhex("".join(_STEPS).format(end=f"{_LENGTH:02x}", done=f"{_DONE:02x}"))


def code_question(addresses: Sequence[bytes]) -> bytes:
    """The data of an eth_call without `to` that finds out which addresses have code."""
    if len(addresses) > MOST_ADDRESSES:
        raise ValueError(f"at most {MOST_ADDRESSES} addresses can be asked about at once")
    return _PROGRAM + b"".join(addresses)


def code_answer(data: bytes, count: int) -> list[bool]:
    """Which have. Raises `ValueError` when this is no answer to a question about `count` addresses."""
    if len(data) != count or any(byte > 1 for byte in data):
        raise ValueError("this is no list of results")
    return [byte == 1 for byte in data]
