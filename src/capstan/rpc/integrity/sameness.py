"""When two answers are the same: as parsed JSON, with what the form of an answer leaves free taken away.

Used by the voting. The order of keys, white space and the letter case of hex mean nothing; a member that is null is the
same as one that is absent. Of errors, those with revert data are the same when the data is; all others are one answer:
that the call fails. Nodes word the same failure in many ways.
"""

import re
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from capstan.chain.errors import NodeError

_HEX = re.compile(r"0x[0-9a-fA-F]*\Z")
# Some nodes have stopped sending it, since it stands still after the merge.
_LEFT_OUT = frozenset({"totalDifficulty"})
_LONGEST_SHOWN = 200
_encoder = msgspec.json.Encoder(order="deterministic")


def same_key(answer: Raw | NodeError) -> bytes:
    """Equal for answers that are the same."""
    if isinstance(answer, NodeError):
        data = _revert_data(answer)
        return b"error" if data is None else b"revert " + data.lower().encode()
    try:
        return sha256(_encoder.encode(_plain(msgspec.json.decode(answer)))).digest()
    except (msgspec.DecodeError, RecursionError):
        return sha256(bytes(answer)).digest()


def shortened(answer: Raw | NodeError) -> str:
    """An answer for the log."""
    if isinstance(answer, NodeError):
        text = str(answer)
    else:
        text = bytes(memoryview(answer)[: 4 * _LONGEST_SHOWN]).decode(errors="replace")
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.lower() if _HEX.match(value) else value
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {
            key.lower() if _HEX.match(key) else key: _plain(member)
            for key, member in value.items()
            if member is not None and key not in _LEFT_OUT
        }
    return value


def _revert_data(error: NodeError) -> str | None:
    data: Any = error.data
    if isinstance(data, Raw | bytes):
        try:
            data = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return None
    if isinstance(data, dict):
        # Some put it one level deeper.
        data = data.get("data")
    return data if isinstance(data, str) and _HEX.match(data) else None
