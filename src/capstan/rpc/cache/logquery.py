"""The argument and the answer of eth_getLogs: which blocks a query spans, and how logs are cut by block as bytes.

Used by `rpc.logs`. Nothing is asked of a node here, and no log is decoded further than its block number.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from capstan.core.hexes import parse_quantity, to_quantity
from capstan.rpc.cache.canonical import Unusual, read, read_log_filter
from capstan.rpc.cache.models import BlockName, HeadView
from capstan.rpc.cache.rules import RULES

_RULE: Final = RULES["evm"]["eth_getLogs"]
_encoder = msgspec.json.Encoder(order="deterministic")


class _Log(msgspec.Struct, gc=False, rename="camel"):
    block_number: str


_logs_decoder = msgspec.json.Decoder(list[_Log])
_raws_decoder = msgspec.json.Decoder(list[Raw])


class LogQuery(msgspec.Struct, frozen=True):
    """A range of blocks, both ends included, and a filter."""

    first: int
    last: int
    # Equal for filters that match the same logs.
    filter_key: bytes
    argument: dict[str, Any]

    @property
    def blocks(self) -> int:
        """How many blocks that is."""
        return self.last - self.first + 1

    def params(self, first: int, last: int) -> bytes:
        """The params that ask the same of these blocks only. The ends of the whole keep the words of the caller."""
        argument = dict(self.argument)
        if first != self.first or "fromBlock" not in argument:
            argument["fromBlock"] = to_quantity(first)
        if last != self.last:
            argument["toBlock"] = to_quantity(last)
        return _encoder.encode([argument])


def read_query(params: bytes, heads: HeadView) -> LogQuery | None:
    """The query, or None if it can only be asked as it is: by block hash, by a tag that moves, or in an odd form."""
    latest = heads.latest_number
    reading = read(_RULE, params)
    if latest is None or reading is None:
        return None
    argument = reading.arguments[0]
    try:
        first_name, last_name, block_hash = read_log_filter(argument)
    except Unusual:
        return None
    first = 0 if first_name == "earliest" else first_name
    last = _last(last_name, latest)
    if block_hash is not None or not isinstance(first, int) or last is None or last < first:
        return None
    return LogQuery(first, last, _filter_key(argument), argument)


def _last(name: BlockName, latest: int) -> int | None:
    # Beyond the head there is nothing to split; the last part still asks for it in the caller's words.
    if isinstance(name, int):
        return min(name, latest)
    return latest if name in ("latest", None) else None


def _filter_key(argument: dict[str, Any]) -> bytes:
    topics = argument.get("topics")
    if isinstance(topics, list):
        topics = [_any_of(topic) for topic in topics]
    return _encoder.encode([_any_of(argument.get("address")), topics])


def _any_of(value: Any) -> Any:
    """One value and a list of it match the same; so do lists in any order. An empty list is left to the node."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return sorted(set(value))
    return value


def inner(logs: bytes | Raw) -> bytes:
    """The elements of a JSON array, without the brackets. Raises `ValueError` when it is no array."""
    text = bytes(logs).strip()
    if not (text.startswith(b"[") and text.endswith(b"]")):
        raise ValueError("not an array")
    return text[1:-1].strip()


def by_chunk(logs: bytes | Raw, first: int, last: int, size: int) -> dict[int, bytes]:
    """The logs of each chunk of `size` blocks, without brackets; chunks without logs are left out.

    Raises `ValueError` when they are not logs of the blocks from `first` to `last` in order.
    """
    pieces: dict[int, list[bytes]] = {}
    previous = first
    for number, log in _numbered(logs):
        if not previous <= number <= last:
            raise ValueError("logs of other blocks, or not in order")
        previous = number
        pieces.setdefault(number // size, []).append(log)
    return {chunk: b",".join(texts) for chunk, texts in pieces.items()}


def within(logs: bytes, first: int, last: int) -> bytes:
    """The logs from `first` to `last` of more of them, as an array."""
    return b"[" + b",".join(log for number, log in _numbered(logs) if first <= number <= last) + b"]"


def _numbered(logs: bytes | Raw) -> list[tuple[int, bytes]]:
    try:
        numbers = [parse_quantity(log.block_number, lenient=True) for log in _logs_decoder.decode(logs)]
        return list(zip(numbers, map(bytes, _raws_decoder.decode(logs)), strict=True))
    except msgspec.DecodeError:
        raise ValueError("not logs") from None
