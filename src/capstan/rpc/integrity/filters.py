"""The argument of eth_getLogs as a set of blocks and a rule, and whether a log matches it.

Used by the checks of logs. Empty lists of alternatives match everything, as nodes treat them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from capstan.chain.proofs.bloom import may_match
from capstan.core.hexes import parse_address, parse_data, parse_quantity


class LogFilter(msgspec.Struct, frozen=True):
    """Which logs of which blocks."""

    # Both ends included. No last one: as far as the chain goes. Of one block by its hash, the first is -1.
    first: int
    last: int | None
    block_hash: str | None
    addresses: tuple[bytes, ...]
    # The alternatives at each place; none of them: any.
    topics: tuple[tuple[bytes, ...], ...]

    def may_be_in(self, bloom: int) -> bool:
        """Whether a block with this bloom may have a log that matches."""
        return may_match(bloom, self.addresses, self.topics)

    def matches(self, log: Mapping[str, Any]) -> bool:
        """Whether a log matches. Raises `ValueError` when it is none."""
        if self.addresses and parse_address(log["address"]) not in self.addresses:
            return False
        topics = log["topics"]
        if len(topics) < len(self.topics):
            return False
        return all(
            not wanted or parse_data(topic) in wanted for topic, wanted in zip(topics, self.topics, strict=False)
        )


def read_filter(params: bytes) -> LogFilter:
    """The filter in the params of a call whose blocks are named by number or hash. Raises `ValueError`."""
    try:
        (argument,) = msgspec.json.decode(params, type=list[dict[str, Any]])
    except (msgspec.DecodeError, ValueError):
        raise ValueError("eth_getLogs has one argument, an object") from None
    block_hash = argument.get("blockHash")
    first, last = -1, None
    if block_hash is None:
        first = parse_quantity(argument.get("fromBlock"), lenient=True)
        end = argument.get("toBlock")
        last = None if end is None or end == "latest" else parse_quantity(end, lenient=True)
    elif not isinstance(block_hash, str):
        raise ValueError("a block hash is a text")
    addresses = argument.get("address")
    return LogFilter(
        first,
        last,
        None if block_hash is None else block_hash.lower(),
        tuple(parse_address(one) for one in _alternatives(addresses)),
        tuple(tuple(parse_data(one) for one in _alternatives(topic)) for topic in argument.get("topics") or ()),
    )


def _alternatives(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
