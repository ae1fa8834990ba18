"""Reads the params of `eth_subscribe`: what is subscribed to, which logs, from which block.

Called by the session for each subscription. The rules are geth's: what geth refuses is refused here, with the same
JSON-RPC codes; `fromBlock` for a replay is ours. Nothing here knows sockets, streams or limits of rate.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from capstan.core.hexes import is_address, parse_data, parse_quantity
from capstan.core.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from capstan.core.redact import quoted

# As geth limits a filter.
MOST_ADDRESSES: Final = 1_000
MOST_TOPIC_POSITIONS: Final = 4
MOST_TOPICS: Final = 1_000

_TOPIC_BYTES = 32
_LIVE_TAGS = frozenset({"latest", "pending"})
# Known to nodes, and not to the stream, which tells blocks by their numbers.
_SETTLED_TAGS: Final = ("safe", "finalized")
_arguments_decoder = msgspec.json.Decoder(list[Any])

# For each position the topics that match there; None matches every topic.
Topics = tuple[frozenset[str] | None, ...]


class Kind(StrEnum):
    """What can be subscribed to."""

    HEADS = "newHeads"
    LOGS = "logs"
    PENDING = "newPendingTransactions"
    SYNCING = "syncing"


class BadSubscription(Exception):
    """The params do not describe a subscription. `code` is the JSON-RPC code."""

    def __init__(self, message: str, code: int = INVALID_PARAMS) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class LogFilter(msgspec.Struct, frozen=True):
    """Which logs: from one of the addresses (None: any), with matching topics. Everything is in lower case."""

    addresses: frozenset[str] | None = None
    topics: Topics = ()

    def matches(self, address: str, topics: tuple[str, ...]) -> bool:
        """Whether a log with this address and these topics is wanted; never one with fewer topics than the filter."""
        if self.addresses is not None and address not in self.addresses:
            return False
        if len(self.topics) > len(topics):
            return False
        return all(wanted is None or topic in wanted for wanted, topic in zip(self.topics, topics, strict=False))


EVERY_LOG: Final = LogFilter()


class Wanted(msgspec.Struct, frozen=True):
    """One subscription as it was asked for. `from_block` asks for a replay; `full` for whole transactions."""

    kind: Kind
    filter: LogFilter = EVERY_LOG
    from_block: int | None = None
    full: bool = False


def read_subscription(params: bytes) -> Wanted:
    """What the params of `eth_subscribe` ask for. Raises `BadSubscription`."""
    try:
        arguments = _arguments_decoder.decode(params)
    except (msgspec.DecodeError, RecursionError):
        raise BadSubscription("the params cannot be read") from None
    if not arguments or not isinstance(arguments[0], str):
        raise BadSubscription("the first argument must be the name of a subscription, such as newHeads")
    try:
        kind = Kind(arguments[0])
    except ValueError:
        message = f'no "{quoted(arguments[0])}" subscription in eth namespace'
        raise BadSubscription(message, METHOD_NOT_FOUND) from None
    most = 1 if kind is Kind.SYNCING else 2
    if len(arguments) > most:
        raise BadSubscription(f"too many arguments, want at most {most}")
    option = arguments[1] if len(arguments) > 1 else None
    if kind is Kind.HEADS:
        return Wanted(kind, from_block=_from_block(_object(option)))
    if kind is Kind.LOGS:
        return _read_logs(_object(option))
    if kind is Kind.PENDING:
        if not isinstance(option, bool | None):
            raise BadSubscription("invalid argument 1: must be true for whole transactions, or false for hashes")
        return Wanted(kind, full=bool(option))
    return Wanted(kind)


def read_id(params: bytes) -> str:
    """The subscription that `eth_unsubscribe` names. Raises `BadSubscription`."""
    try:
        arguments = _arguments_decoder.decode(params)
    except (msgspec.DecodeError, RecursionError):
        raise BadSubscription("the params cannot be read") from None
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        raise BadSubscription("the one argument must be the id of a subscription")
    return arguments[0]


def _object(option: Any) -> dict[str, Any]:
    if option is None:
        return {}
    if not isinstance(option, dict):
        raise BadSubscription("invalid argument 1: must be an object")
    return option


def _read_logs(option: dict[str, Any]) -> Wanted:
    if option.get("blockHash") is not None:
        raise BadSubscription("invalid argument 1: a subscription has no blockHash; use eth_getLogs for one block")
    until = option.get("toBlock")
    if until is not None and not _is_live(until):
        raise BadSubscription("invalid argument 1: a subscription has no end, so toBlock must be absent or latest")
    logs = LogFilter(_addresses(option.get("address")), _topics(option.get("topics")))
    return Wanted(Kind.LOGS, logs, _from_block(option))


def _from_block(option: dict[str, Any]) -> int | None:
    block = option.get("fromBlock")
    if block is None or _is_live(block):
        return None
    if block == "earliest":
        return 0
    if block in _SETTLED_TAGS:
        message = (
            f"invalid argument 1: fromBlock: a subscription cannot begin at {block}; "
            "read that block with eth_getBlockByNumber and give its number"
        )
        raise BadSubscription(message)
    try:
        return parse_quantity(block)
    except ValueError as error:
        raise BadSubscription(f"invalid argument 1: fromBlock: {error}") from None


def _is_live(block: Any) -> bool:
    return isinstance(block, str) and block in _LIVE_TAGS


def _addresses(given: Any) -> frozenset[str] | None:
    if given is None:
        return None
    listed = given if isinstance(given, list) else [given]
    if len(listed) > MOST_ADDRESSES:
        raise BadSubscription(f"invalid argument 1: at most {MOST_ADDRESSES} addresses")
    for address in listed:
        if not is_address(address):
            raise BadSubscription("invalid argument 1: address: an address is 0x and 40 hex digits")
    return frozenset(address.lower() for address in listed) or None


def _topics(given: Any) -> Topics:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise BadSubscription("invalid argument 1: topics must be an array")
    if len(given) > MOST_TOPIC_POSITIONS:
        raise BadSubscription(f"invalid argument 1: a log has at most {MOST_TOPIC_POSITIONS} topics")
    return tuple(_position(position) for position in given)


def _position(given: Any) -> frozenset[str] | None:
    """The topics of one position. As in geth, null, an empty list and a list with null in it match everything."""
    if given is None:
        return None
    listed = given if isinstance(given, list) else [given]
    if len(listed) > MOST_TOPICS:
        raise BadSubscription(f"invalid argument 1: at most {MOST_TOPICS} topics in one position")
    found = frozenset(_topic(topic) for topic in listed if topic is not None)
    return None if None in listed else found or None


def _topic(given: Any) -> str:
    try:
        data = parse_data(given)
    except ValueError:
        data = b""
    if len(data) != _TOPIC_BYTES:
        raise BadSubscription("invalid argument 1: topics: a topic is 0x and 64 hex digits")
    return str(given).lower()
