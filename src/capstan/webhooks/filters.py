"""Reads the `config` of a webhook: which keys its event type knows, and what their values mean.

Called by the service for every request, and by matching for what is stored. An unknown key and a bad value are refused
and named. Lists are OR inside and AND between; an empty list is the same as none. Pure.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from capstan.core.errors import Conflict, InvalidRequest
from capstan.core.hexes import parse_address, parse_data
from capstan.core.redact import quoted
from capstan.webhooks.kinds import EventType

MOST_ENTRIES = 100_000
MOST_CONFIRMATIONS = 1_000
MOST_TOPICS = 4
MOST_EVERY = 2**31
_WORD = 2**256
_DECIMAL = re.compile(r"[0-9]{1,78}\Z", re.ASCII)
T = TypeVar("T")


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook wants, as values that can be compared. An empty set is no filter."""

    addresses: frozenset[bytes] = frozenset()
    contracts: frozenset[bytes] = frozenset()
    senders: frozenset[bytes] = frozenset()
    receivers: frozenset[bytes] = frozenset()
    token_ids: frozenset[int] = frozenset()
    tx_hashes: frozenset[bytes] = frozenset()
    selectors: frozenset[bytes] = frozenset()
    # By position; an empty set stands for anything.
    topics: tuple[frozenset[bytes], ...] = ()
    min_value: int = 0
    confirmations: int = 0
    every: int = 1


def parse_filters(kind: EventType, config: Mapping[str, Any]) -> Filters:
    """The filters of a webhook of this type. Raises `InvalidRequest`, which names the key."""
    unknown = sorted(config.keys() - kind.keys)
    if unknown:
        raise InvalidRequest(f'config: unknown key "{quoted(unknown[0])}"; {_known(kind)}')
    found: dict[str, Any] = {"confirmations": kind.confirmations}
    found |= {key: _READERS[key](f"config.{key}", value) for key, value in config.items()}
    return Filters(**found)


def check_change(kind: EventType, config: Mapping[str, Any]) -> None:
    """Like `parse_filters`, for a webhook that exists: keys that only other types know are a `Conflict`."""
    foreign = sorted(config.keys() - kind.keys)
    if not foreign or not _READERS.keys() >= config.keys():
        parse_filters(kind, config)
        return
    for key, value in config.items():
        _READERS[key](f"config.{key}", value)
    raise Conflict(f"config: {_known(kind)}, and not {foreign[0]}")


def _known(kind: EventType) -> str:
    return f"{kind.name} knows {', '.join(sorted(kind.keys))}"


def is_idle(kind: EventType, filters: Filters) -> bool:
    """Whether nothing was given yet of what this type watches: then it matches nothing."""
    return bool(kind.given) and not any(getattr(filters, key) for key in kind.given)


def _listed(read: Callable[[Any], T]) -> Callable[[str, Any], frozenset[T]]:
    def parse(name: str, value: Any) -> frozenset[T]:
        if not isinstance(value, list):
            raise InvalidRequest(f"{name}: expected a list")
        if len(value) > MOST_ENTRIES:
            raise InvalidRequest(f"{name}: at most {MOST_ENTRIES} entries, and these are {len(value)}")
        found = set()
        for position, entry in enumerate(value):
            try:
                found.add(read(entry))
            except ValueError as error:
                raise InvalidRequest(f"{name}[{position}]: {error}") from None
        return frozenset(found)

    return parse


def _sized(size: int, what: str) -> Callable[[Any], bytes]:
    def read(entry: Any) -> bytes:
        data = parse_data(entry)
        if len(data) != size:
            raise ValueError(f"{what} is 0x and {2 * size} hex digits")
        return data

    return read


def _number(entry: Any) -> int:
    """A whole number below 2^256: a decimal string, a 0x-hex string or a JSON integer."""
    if isinstance(entry, str) and _DECIMAL.match(entry):
        number = int(entry)
    elif isinstance(entry, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,64}", entry):
        number = int(entry, 16)
    else:
        number = _integer(entry)
    if not 0 <= number < _WORD:
        raise ValueError("expected a number from 0 to 2^256 - 1")
    return number


def _integer(entry: Any) -> int:
    """A JSON integer; `7.0` is one too, as JSON Schema has it."""
    if isinstance(entry, int) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, float) and entry.is_integer():
        return int(entry)
    raise ValueError("expected a whole number, as a decimal string")


def _amount(name: str, value: Any) -> int:
    try:
        return _number(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from None


def _within(least: int, most: int) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        try:
            number = _integer(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise InvalidRequest(f"{name}: expected a whole number from {least} to {most}")
        return number

    return parse


_topic = _sized(32, "a topic")


def _topics(name: str, value: Any) -> tuple[frozenset[bytes], ...]:
    """As in eth_getLogs: for each position null, a topic, or a list of topics."""
    if not isinstance(value, list) or len(value) > MOST_TOPICS:
        raise InvalidRequest(f"{name}: expected a list of at most {MOST_TOPICS} positions")
    found = []
    for position, entry in enumerate(value):
        entries = [] if entry is None else entry if isinstance(entry, list) else [entry]
        found.append(_listed(_topic)(f"{name}[{position}]", entries))
    return tuple(found)


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "addresses": _listed(parse_address),
    "contracts": _listed(parse_address),
    "senders": _listed(parse_address),
    "receivers": _listed(parse_address),
    "token_ids": _listed(_number),
    "tx_hashes": _listed(_sized(32, "a transaction hash")),
    "selectors": _listed(_sized(4, "a selector")),
    "topics": _topics,
    "min_value": _amount,
    "confirmations": _within(0, MOST_CONFIRMATIONS),
    "every": _within(1, MOST_EVERY),
}
