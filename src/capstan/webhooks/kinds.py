"""The table of event types: their format, what they look at, and which keys their `config` may have.

Read by the validation of `config`, by matching and by delivery. Lower-case names are Format A, upper-case names Format
B; the format decides the body, the headers, the retries and what happens when they are exhausted. Pure data.
"""

import enum
from collections.abc import Mapping
from typing import Literal

import msgspec

Format = Literal["A", "B"]


class Family(enum.Enum):
    """What a type of event looks at."""

    ACTIVITY = enum.auto()
    TOKENS = enum.auto()
    NFTS = enum.auto()
    MINED = enum.auto()
    LOGS = enum.auto()
    INTERNAL = enum.auto()
    BLOCKS = enum.auto()
    PENDING = enum.auto()


class EventType(msgspec.Struct, frozen=True):
    """One type of event."""

    name: str
    family: Family
    keys: frozenset[str]
    # It matches nothing until one of these is given. Empty: without a filter it matches every such event.
    given: frozenset[str] = frozenset()
    # The confirmations that are waited for when `config` does not say.
    confirmations: int = 0

    @property
    def format(self) -> Format:
        """Which of the two formats it is delivered in."""
        return "A" if self.name.islower() else "B"


def _type(name: str, family: Family, keys: str, given: str = "", confirmations: int = 0) -> EventType:
    return EventType(name, family, frozenset(keys.split()) | {"confirmations"}, frozenset(given.split()), confirmations)


EVENT_TYPES: Mapping[str, EventType] = {
    each.name: each
    for each in (
        _type("address_activity", Family.ACTIVITY, "addresses", "addresses"),
        _type("token_transfer", Family.TOKENS, "addresses contracts min_value", "addresses contracts"),
        _type("nft_transfer", Family.NFTS, "addresses contracts token_ids"),
        _type("mined_transaction", Family.MINED, "tx_hashes", "tx_hashes", 1),
        _type("log", Family.LOGS, "addresses topics"),
        _type("ADDRESS_ACTIVITY", Family.ACTIVITY, "addresses min_value selectors", "addresses"),
        _type("MINED_TRANSACTION", Family.MINED, "tx_hashes", "tx_hashes", 1),
        _type("NFT_ACTIVITY", Family.NFTS, "addresses contracts token_ids"),
        _type("TOKEN_TRANSFER", Family.TOKENS, "addresses contracts senders receivers min_value"),
        _type("INTERNAL_TRANSFER", Family.INTERNAL, "addresses min_value", "addresses"),
        _type("NEW_BLOCK", Family.BLOCKS, "every"),
        _type("PENDING_TRANSACTION", Family.PENDING, "addresses selectors min_value", "addresses selectors"),
    )
}
