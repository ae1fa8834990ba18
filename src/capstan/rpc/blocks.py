"""The block parameters inside a call: which block a state read asks for, and which range an eth_getLogs spans.

Called by the RPC service for pricing and for the limit on log ranges. It reads params only as far as it needs and never
rejects a call because of their form: what it cannot read, the node will judge.
"""

from typing import Any

import msgspec

from capstan.chain.errors import NodeError, log_range_limit, log_range_proposed
from capstan.core.hexes import parse_quantity, to_quantity
from capstan.rpc.methods import STATE_READS

# Every node keeps the state of about this many recent blocks; older state needs an archive.
RECENT_BLOCKS = 128

_params_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class _SecondIsBlock(msgspec.Struct, array_like=True, gc=False):
    """Params in which the block stands second. Only the block is decoded."""

    first: msgspec.Raw = msgspec.Raw()
    block: Any = None


class _ThirdIsBlock(msgspec.Struct, array_like=True, gc=False):
    """Params in which the block stands third."""

    first: msgspec.Raw = msgspec.Raw()
    second: msgspec.Raw = msgspec.Raw()
    block: Any = None


_DECODERS: dict[int, msgspec.json.Decoder[Any]] = {
    1: msgspec.json.Decoder(_SecondIsBlock),
    2: msgspec.json.Decoder(_ThirdIsBlock),
}
_STATE_DECODERS = {method: _DECODERS[position] for method, position in STATE_READS.items()}


class LogRange(msgspec.Struct, frozen=True):
    """The blocks an eth_getLogs asks for, both included."""

    first: int
    last: int

    @property
    def blocks(self) -> int:
        """How many blocks that is."""
        return self.last - self.first + 1


def is_archive_read(method: str, params: bytes, head: int | None, depth: int = RECENT_BLOCKS) -> bool:
    """Whether a call reads state older than the blocks every node keeps. An unknown head or block counts as recent."""
    block = state_block(method, params)
    return block is not None and head is not None and block < head - depth


def state_block(method: str, params: bytes) -> int | None:
    """The number of the block whose state a call reads; None when it names none, or one that is surely recent."""
    decoder = _STATE_DECODERS.get(method)
    if decoder is None:
        return None
    try:
        block = decoder.decode(params).block
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(block, dict):
        # EIP-1898: an object names the block by number or by hash.
        block = block.get("blockNumber")
    return _number(block, None)


def log_range(params: bytes, head: int | None) -> LogRange | None:
    """The range of an eth_getLogs, or None where it asks by block hash, or the head is needed and unknown."""
    query = _argument(params, 0)
    if not isinstance(query, dict) or "blockHash" in query:
        return None
    first = _number(query.get("fromBlock", "latest"), head)
    last = _number(query.get("toBlock", "latest"), head)
    if first is None or last is None or last < first:
        return None
    return LogRange(first, last)


def range_advice(asked: LogRange | None, max_range: int | None) -> dict[str, object]:
    """The `data` of a log-range error: the widest range allowed, and one that should work in place of the one asked."""
    advice: dict[str, object] = {"maxRange": max_range}
    if asked is not None:
        blocks = max_range if max_range is not None else max(1, asked.blocks // 2)
        advice["fromBlock"] = to_quantity(asked.first)
        advice["toBlock"] = to_quantity(min(asked.last, asked.first + blocks - 1))
    return advice


def range_advice_from_node(error: NodeError, asked: LogRange | None) -> dict[str, object]:
    """The same, drawn from what a node said about the range it would accept."""
    known = log_range_limit(error) or 0
    advice = range_advice(asked, known if 0 < known < (asked.blocks if asked else known + 1) else None)
    proposed = log_range_proposed(error)
    if proposed is not None:
        advice["fromBlock"], advice["toBlock"] = proposed
    return advice


def _number(block: object, head: int | None) -> int | None:
    """The number of a block parameter; tags near the head count as the head."""
    if block == "earliest":
        return 0
    if block in ("latest", "pending", "safe", "finalized", None):
        return head
    try:
        return parse_quantity(block, lenient=True)
    except ValueError:
        return None


def _argument(params: bytes, position: int) -> Any:
    try:
        arguments = _params_decoder.decode(params)
        return msgspec.json.decode(arguments[position]) if position < len(arguments) else None
    except (msgspec.DecodeError, RecursionError):
        return None
