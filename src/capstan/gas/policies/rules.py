"""The rules of a policy: as a request gives them, and as they are applied.

`Rules` is the JSON object, kept as it was given; `compiled` makes of it what sponsoring compares with. Pure. Amounts
are whole numbers of billionths of a US dollar (`NANO`), so nothing is ever rounded when budgets are added up.
"""

from datetime import datetime
from functools import lru_cache
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from capstan.core.decimals import parse_units
from capstan.core.hexes import keccak256, parse_address

_Value = TypeVar("_Value")

# Decimal places of the amounts that are kept: billionths of a US dollar.
NANO = 9

ADDRESS_PATTERN = "^0x[0-9a-fA-F]{40}$"
_USD_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
_METHOD_PATTERN = r"^(0x[0-9a-fA-F]{8}|[A-Za-z_$][A-Za-z0-9_$]{0,99}\([A-Za-z0-9,\[\]()]{0,200}\))$"
_RATE_PATTERN = r"^[1-9][0-9]{0,6}/(second|minute|hour|day)$"
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_MOST_REQUESTS = 1_000_000
_MOST_COMPILED = 4_096

Usd = Annotated[
    str,
    Meta(
        pattern=_USD_PATTERN,
        description="US dollars, a decimal number as text with at most nine places.",
        examples=["0.50"],
    ),
]
_Address = Annotated[str, Meta(pattern=ADDRESS_PATTERN)]
_Addresses = Annotated[list[_Address], Meta(min_length=1, max_length=10_000)]
_Method = Annotated[str, Meta(pattern=_METHOD_PATTERN, examples=["transfer(address,uint256)"])]


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many sponsorships in any so many seconds."""

    requests: Annotated[int, Meta(ge=1, le=_MOST_REQUESTS)]
    per_seconds: Annotated[int, Meta(ge=1, le=86_400)]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a sponsored operation must fulfil, all of it. At least one rule is needed."""

    max_gas_usd: Annotated[Usd | UnsetType, Meta(description="The most that one operation may cost.")] = UNSET
    max_total_usd: Annotated[Usd | UnsetType, Meta(description="The budget of the policy, for all time.")] = UNSET
    max_usd_per_day: Annotated[Usd | UnsetType, Meta(description="The budget of each UTC day.")] = UNSET
    max_per_user_per_day: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType,
        Meta(description="Operations of one sender on one UTC day; the same nonce again is the same operation."),
    ] = UNSET
    allowed_contracts: Annotated[
        _Addresses | UnsetType, Meta(description="Every contract that the operation calls must be one of these.")
    ] = UNSET
    blocked_contracts: Annotated[
        _Addresses | UnsetType, Meta(description="No contract that the operation calls may be one of these.")
    ] = UNSET
    allowed_senders: Annotated[_Addresses | UnsetType, Meta(description="The sender must be one of these.")] = UNSET
    allowed_methods: Annotated[
        Annotated[list[_Method], Meta(min_length=1, max_length=1_000)] | UnsetType,
        Meta(description="Every call must be of one of these: selectors of 4 bytes, or signatures of functions."),
    ] = UNSET
    rate_limit: Annotated[
        RateLimit
        | Annotated[str, Meta(pattern=_RATE_PATTERN)]
        | Annotated[int, Meta(ge=1, le=_MOST_REQUESTS)]
        | UnsetType,
        Meta(description='How often: an object, a text such as `"10/minute"`, or a number per minute.'),
    ] = UNSET
    valid_from: Annotated[
        Annotated[datetime, Meta(tz=True)] | UnsetType, Meta(description="Nothing is sponsored earlier.")
    ] = UNSET
    valid_until: Annotated[
        Annotated[datetime, Meta(tz=True)] | UnsetType,
        Meta(description="Nothing is sponsored later, or valid for longer."),
    ] = UNSET


class Compiled(msgspec.Struct, frozen=True):
    """The same rules, ready to be applied. None is a rule that is not there."""

    max_gas: int | None
    max_total: int | None
    max_per_day: int | None
    max_per_user_per_day: int | None
    allowed_contracts: frozenset[bytes] | None
    blocked_contracts: frozenset[bytes] | None
    allowed_senders: frozenset[bytes] | None
    allowed_methods: frozenset[bytes] | None
    rate_limit: RateLimit | None
    # Unix seconds.
    valid_from: float | None
    valid_until: float | None

    @property
    def looks_into_calls(self) -> bool:
        """Whether a rule concerns what the operation calls."""
        return not (self.allowed_contracts is self.blocked_contracts is self.allowed_methods is None)


def faults(rules: Rules) -> str | None:
    """What is wrong with rules of the right form, or None."""
    if not msgspec.to_builtins(rules):
        return f"rules: at least one rule is needed; there are {', '.join(Rules.__struct_fields__)}"
    # Times may end before they begin: no schema can forbid it, and what it allows is taken. Nothing is sponsored then.
    return None


def encode_rules(rules: Rules) -> str:
    """The rules as they are stored."""
    return msgspec.json.encode(rules).decode()


def decode_rules(text: str) -> Rules:
    """The rules behind stored text."""
    return msgspec.json.decode(text, type=Rules)


@lru_cache(maxsize=_MOST_COMPILED)
def compiled(text: str) -> Compiled:
    """The rules behind stored text, ready to be applied."""
    rules = decode_rules(text)
    methods, first, last = _given(rules.allowed_methods), _given(rules.valid_from), _given(rules.valid_until)
    return Compiled(
        max_gas=_nano(rules.max_gas_usd),
        max_total=_nano(rules.max_total_usd),
        max_per_day=_nano(rules.max_usd_per_day),
        max_per_user_per_day=_given(rules.max_per_user_per_day),
        allowed_contracts=_addresses(rules.allowed_contracts),
        blocked_contracts=_addresses(rules.blocked_contracts),
        allowed_senders=_addresses(rules.allowed_senders),
        allowed_methods=None if methods is None else frozenset(map(selector, methods)),
        rate_limit=_rate_limit(rules.rate_limit),
        valid_from=None if first is None else first.timestamp(),
        valid_until=None if last is None else last.timestamp(),
    )


def selector(method: str) -> bytes:
    """The 4 bytes that a selector or the signature of a function stands for."""
    return bytes.fromhex(method[2:]) if method.startswith("0x") else keccak256(method.encode())[:4]


def _given(value: _Value | UnsetType) -> _Value | None:
    return None if isinstance(value, UnsetType) else value


def _nano(usd: str | UnsetType) -> int | None:
    return None if isinstance(usd, UnsetType) else parse_units(usd, NANO)


def _addresses(texts: list[str] | UnsetType) -> frozenset[bytes] | None:
    return None if isinstance(texts, UnsetType) else frozenset(map(parse_address, texts))


def _rate_limit(given: RateLimit | str | int | UnsetType) -> RateLimit | None:
    if isinstance(given, UnsetType):
        return None
    if isinstance(given, RateLimit):
        return given
    if isinstance(given, int):
        return RateLimit(given, _SECONDS["minute"])
    requests, _, unit = given.partition("/")
    return RateLimit(int(requests), _SECONDS[unit])
