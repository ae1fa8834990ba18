"""When two requests ask the same: one text for all spellings of the params of a call.

Called by `policy` for every call it has not seen before. Spellings are white space, the order of object keys, the
letter case of hex, and for Solana a commitment that is the default. Anything unusual (escapes, keys that come twice,
arguments of another type or number than the rule has) is not canonicalised at all: `None` means that the call is not
kept. Two requests that could mean different things to any node must never come out equal; that matters more than a
missed hit.
"""

import re
from typing import Any

import msgspec

from capstan.rpc.cache.models import BlockName
from capstan.rpc.cache.rules import Rule

# Longer params are not worth a place in memory.
MAX_PARAMS_BYTES = 64 * 1024
TAGS = frozenset({"latest", "earliest", "safe", "finalized", "pending"})

_HEX = re.compile(r"0x[0-9a-fA-F]*\Z")
_HASH = re.compile(r"0x[0-9a-fA-F]{64}\Z")
_QUANTITY = re.compile(r"0x(?:0|[1-9a-fA-F][0-9a-fA-F]{0,63})\Z")
_MEMBER = re.compile(rb'"[ \t\r\n]*:')
_LOG_FILTER_KEYS = frozenset({"fromBlock", "toBlock", "address", "topics", "blockHash"})
_COMMITMENTS = frozenset({"processed", "confirmed", "finalized"})

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder(order="deterministic")


class Unusual(Exception):
    """The params are not of the form the rule expects."""


class Reading(msgspec.Struct):
    """What was found in the params."""

    text: bytes = b""
    arguments: tuple[Any, ...] = ()
    block: BlockName = None
    has_block: bool = False
    block_hash: str | None = None
    commitment: str = "finalized"
    # Object members met so far. Fewer than the text has means that a key came twice.
    members: int = 0
    # A fraction has many spellings that only nearly mean the same.
    has_fraction: bool = False


def read(rule: Rule, params: bytes) -> Reading | None:
    """The canonical text of `params`, a JSON array, and what it says about blocks; None if it is not to be kept.

    The text of a canonical text is the text itself.
    """
    # An escape hides what a string says, and minus zero is not zero to everybody. Neither occurs in a normal call.
    if len(params) > MAX_PARAMS_BYTES or b"\\" in params or b"-" in params:
        return None
    try:
        return _read(rule, params)
    except (Unusual, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read(rule: Rule, params: bytes) -> Reading:
    arguments = _decoder.decode(params)
    if not isinstance(arguments, list):
        raise Unusual
    kinds = rule.required + rule.optional
    if not len(rule.required) <= len(arguments) <= len(kinds):
        raise Unusual
    reading = Reading()
    written = [_READERS[kind](argument, reading) for kind, argument in zip(kinds, arguments, strict=False)]
    if reading.members and reading.members != len(_MEMBER.findall(params)):
        raise Unusual
    if rule.absent_is_latest and len(arguments) == len(rule.required):
        written.append("latest")
        reading.block, reading.has_block = "latest", True
    while written and written[-1] is _NOTHING:
        written.pop()
    reading.arguments = tuple(written)
    # The first byte keeps the two ways of writing apart.
    reading.text = b"~" + params if reading.has_fraction else b"=" + _encoder.encode(written)
    return reading


class _Nothing:
    """Stands for an argument that may be left out. Followed by another argument it cannot be encoded."""


_NOTHING = _Nothing()


def _hex(value: Any, reading: Reading) -> str:
    if not isinstance(value, str) or not _HEX.match(value):
        raise Unusual
    return value.lower()


def _hash(value: Any, reading: Reading) -> str:
    if not isinstance(value, str) or not _HASH.match(value):
        raise Unusual
    return value.lower()


def _quantity(value: Any, reading: Reading) -> str:
    if not isinstance(value, str) or not _QUANTITY.match(value):
        raise Unusual
    return value.lower()


def _slot(value: Any, reading: Reading) -> str:
    """A storage slot. Both forms that every node takes mean the same; other numbers of zeros are errors to some."""
    if not isinstance(value, str) or not (_QUANTITY.match(value) or _HASH.match(value)):
        raise Unusual
    return hex(int(value, 16))


def _slots(value: Any, reading: Reading) -> list[str]:
    # The answer repeats each slot as it was written, so the zeros stay.
    if not isinstance(value, list):
        raise Unusual
    return [_hex(slot, reading) for slot in value]


def _block(value: Any, reading: Reading) -> object:
    reading.has_block = True
    if isinstance(value, str):
        if value in TAGS:
            reading.block = value
            return value
        # Leading zeros are an error to strict nodes, so they are left to the node.
        reading.block = int(_quantity(value, reading), 16)
        return value.lower()
    return _block_object(value, reading)


def _block_object(value: Any, reading: Reading) -> dict[str, object]:
    """The block as an object, EIP-1898."""
    if not isinstance(value, dict):
        raise Unusual
    reading.members += len(value)
    if value.keys() == {"blockNumber"}:
        number = _quantity(value["blockNumber"], reading)
        reading.block = int(number, 16)
        return {"blockNumber": number}
    if not {"blockHash"} <= value.keys() <= {"blockHash", "requireCanonical"}:
        raise Unusual
    reading.block_hash = _hash(value["blockHash"], reading)
    required = value.get("requireCanonical", False)
    if not isinstance(required, bool):
        raise Unusual
    return {**value, "blockHash": reading.block_hash}


def _block_or_hash(value: Any, reading: Reading) -> object:
    if isinstance(value, str) and _HASH.match(value):
        reading.has_block = True
        reading.block_hash = value.lower()
        return reading.block_hash
    return _block(value, reading)


def _block_hash(value: Any, reading: Reading) -> str:
    reading.block_hash = _hash(value, reading)
    return reading.block_hash


def _object(value: Any, reading: Reading) -> object:
    if not isinstance(value, dict):
        raise Unusual
    return _deep(value, reading, True)


def _anything(value: Any, reading: Reading) -> object:
    return _deep(value, reading, False)


def _deep(value: Any, reading: Reading, lower_hex: bool) -> object:
    if isinstance(value, str):
        return value.lower() if lower_hex and _HEX.match(value) else value
    if isinstance(value, dict):
        reading.members += len(value)
        # Some nodes take keys in any letter case, and of two such keys the last. Sorting would hide which that is.
        if len({key.lower() for key in value}) != len(value):
            raise Unusual
        return {
            key.lower() if lower_hex and _HEX.match(key) else key: _deep(member, reading, lower_hex)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [_deep(element, reading, lower_hex) for element in value]
    if isinstance(value, float):
        reading.has_fraction = True
    return value


def _configuration(value: Any, reading: Reading) -> object:
    """Solana's last argument. Old clients send an encoding as text in its place."""
    if not isinstance(value, dict):
        return _deep(value, reading, False)
    written = _deep(value, reading, False)
    assert isinstance(written, dict)
    commitment = written.get("commitment", "finalized")
    if not isinstance(commitment, str) or commitment not in _COMMITMENTS:
        raise Unusual
    reading.commitment = commitment
    if commitment == "finalized":
        written.pop("commitment", None)
    return written or _NOTHING


def read_log_filter(value: Any) -> tuple[BlockName, BlockName, str | None]:
    """The first and the last block, or the block hash, of the argument of eth_getLogs. Raises `Unusual`."""
    if not isinstance(value, dict) or not value.keys() <= _LOG_FILTER_KEYS:
        raise Unusual
    block_hash = value.get("blockHash")
    if block_hash is None:
        return _log_block(value.get("fromBlock")), _log_block(value.get("toBlock")), None
    if not isinstance(block_hash, str) or not _HASH.match(block_hash) or "fromBlock" in value or "toBlock" in value:
        raise Unusual
    return None, None, block_hash.lower()


def _log_block(value: Any) -> BlockName:
    if value is None or (isinstance(value, str) and value in TAGS):
        return value
    return int(_quantity(value, Reading()), 16)


_READERS = {
    "a": _hex,
    "h": _block_hash,
    "s": _slot,
    "S": _slots,
    "q": _quantity,
    "b": _block,
    "H": _block_or_hash,
    "o": _object,
    "j": _anything,
    "c": _configuration,
}
