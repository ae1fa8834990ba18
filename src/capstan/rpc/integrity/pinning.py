"""Replaces what means a different block at every node by the number of one block.

Used before an answer is checked: `latest`, `safe`, `finalized`, or no block at all, is the block that each node takes
for it, and honest nodes are a block apart. Numbers and hashes stay. `pending` has no number; such a call cannot be
checked. A call about a `safe` or `finalized` block that is not known yet fails: unchecked it would mean nothing.
"""

from typing import Any, Protocol

import msgspec

from capstan.catalogue.agreement import block_position
from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.models import Family
from capstan.core.hexes import parse_quantity, to_quantity


class PinView(Protocol):
    """What is known of a network's head now."""

    @property
    def latest_number(self) -> int | None: ...

    @property
    def is_fresh(self) -> bool: ...

    @property
    def safe_number(self) -> int | None: ...

    @property
    def finalized_number(self) -> int | None: ...

    def hash_at(self, number: int) -> str | None: ...

    def nudge(self) -> None: ...


class Pinned(msgspec.Struct, frozen=True):
    """A call about a block that is the same for everybody."""

    params: bytes
    # The block that an upstream must have to answer it; None when any will do.
    block: int | None


class NotPinnable(Exception):
    """The call is about pending transactions, or in a form that cannot be read: it is passed on unchecked."""


def pin(family: Family, method: str, params: bytes, head: int, view: PinView) -> Pinned:
    """The call with its block named by number; `head` is the latest block.

    Raises `NotPinnable`, and `EveryUpstreamFailed` when the block that is named is not known yet.
    """
    if family != "evm":
        # Only what is settled for good can be asked of several there, and that all of them have.
        return Pinned(params, None)
    if method == "eth_getLogs":
        return _pin_logs(params, head, view)
    place = block_position(family, method)
    if place is None:
        return Pinned(params, head)
    arguments = _arguments(params)
    while len(arguments) <= place:
        if len(arguments) < place:
            raise NotPinnable
        arguments.append(None)
    name = arguments[place]
    if isinstance(name, dict) and "blockNumber" in name:
        name = name["blockNumber"]
    if isinstance(name, dict) or (isinstance(name, str) and len(name) == 66):
        # By hash: the same block for everybody already.
        return Pinned(params, head)
    number = _number(name, head, view)
    if name is None or name in ("latest", "safe", "finalized", "earliest"):
        arguments[place] = to_quantity(number)
        params = msgspec.json.encode(arguments)
    return Pinned(params, min(number, head))


def _pin_logs(params: bytes, head: int, view: PinView) -> Pinned:
    arguments = _arguments(params)
    if len(arguments) != 1 or not isinstance(arguments[0], dict):
        raise NotPinnable
    argument = arguments[0]
    if argument.get("blockHash") is not None:
        return Pinned(params, head)
    first = _number(argument.get("fromBlock"), head, view)
    last = _number(argument.get("toBlock"), head, view)
    if first > head:
        # Nothing there yet. Nodes differ in what they make of such a range, so it is asked in the caller's words.
        return Pinned(params, head)
    # Beyond the head there is nothing yet, and whether a node refuses such a range differs.
    last = min(last, head)
    changed = {**argument, "fromBlock": to_quantity(first), "toBlock": to_quantity(last)}
    return Pinned(params if changed == argument else msgspec.json.encode([changed]), max(first, last))


def _number(name: Any, head: int, view: PinView) -> int:
    if name is None or name == "latest":
        return head
    if name == "earliest":
        return 0
    if name in ("safe", "finalized"):
        known = view.safe_number if name == "safe" else view.finalized_number
        if known is None:
            raise EveryUpstreamFailed(f"The {name} block is not known yet, so that answers about it cannot be checked.")
        return min(known, head)
    try:
        return parse_quantity(name, lenient=True)
    except ValueError:
        raise NotPinnable from None


def _arguments(params: bytes) -> list[Any]:
    try:
        return msgspec.json.decode(params or b"[]", type=list[Any])
    except msgspec.DecodeError:
        raise NotPinnable from None
