"""The wire form of Multicall3 `aggregate3`: many calls in one, each with its own outcome.

Used by the reader alone. Written by hand instead of with a general ABI library, because hundreds of calls are packed
and unpacked for one request. It does no I/O.
"""

from collections.abc import Sequence

from capstan.chain.calls.models import ContractCall, selector

_AGGREGATE3 = selector("aggregate3((address,bool,bytes)[])")
_WORD = 32
_ALLOW_FAILURE = (1).to_bytes(_WORD, "big")
_DATA_OFFSET = (3 * _WORD).to_bytes(_WORD, "big")


def encoded_size(call: ContractCall) -> int:
    """The bytes that one call adds: its place in the list, four words, and its data."""
    return 5 * _WORD + len(call.data) + -len(call.data) % _WORD


def encode_aggregate(calls: Sequence[ContractCall]) -> bytes:
    """Calldata of `aggregate3` for these calls, each of which may fail."""
    items = [
        b"".join(
            (
                bytes(12),
                call.to,
                _ALLOW_FAILURE,
                _DATA_OFFSET,
                len(call.data).to_bytes(_WORD, "big"),
                call.data,
                bytes(-len(call.data) % _WORD),
            )
        )
        for call in calls
    ]
    offsets = []
    place = _WORD * len(items)
    for item in items:
        offsets.append(place.to_bytes(_WORD, "big"))
        place += len(item)
    count = len(items).to_bytes(_WORD, "big")
    return b"".join((_AGGREGATE3, _WORD.to_bytes(_WORD, "big"), count, *offsets, *items))


def decode_aggregate(data: bytes, count: int) -> list[bytes | None]:
    """The outcome of each call; None where it reverted. Raises `ValueError` when this is no answer to `count` calls."""
    start = _number(data, 0)
    if _number(data, start) != count:
        raise ValueError("the answer holds another number of results than calls were made")
    table = start + _WORD
    return [_outcome(data, table + _number(data, table + _WORD * index)) for index in range(count)]


def _outcome(data: bytes, place: int) -> bytes | None:
    succeeded = _number(data, place) == 1
    content = place + _number(data, place + _WORD)
    length = _number(data, content)
    content += _WORD
    if content + length > len(data):
        raise ValueError("a result reaches beyond the end of the answer")
    return data[content : content + length] if succeeded else None


def _number(data: bytes, place: int) -> int:
    if place + _WORD > len(data):
        raise ValueError("the answer is cut short")
    return int.from_bytes(data[place : place + _WORD], "big")
