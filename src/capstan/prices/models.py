"""What a price is, and what every source of prices is told and gives back.

Plain values. A source answers for the tokens it knows and says nothing of the others; it never guesses.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Protocol, TypeAlias

import msgspec

from capstan.catalogue.networks import Network as Facts
from capstan.chain.calls.models import BlockRef, ContractCall
from capstan.chain.registry import Network

# A token, or the native coin.
NATIVE = b"native"
Token: TypeAlias = bytes


def contracts(tokens: Sequence[Token]) -> list[Token]:
    """The tokens that are contracts, which the native coin is not."""
    return [token for token in tokens if token != NATIVE]


class Price(msgspec.Struct, frozen=True):
    """The price of one whole token in US dollars, and where it comes from."""

    usd: Decimal
    # The name of the source, as in the settings.
    source: str
    # The block of the reading; None for a price that is not from the chain.
    block: int | None = None
    # How old the source says its answer is.
    age_seconds: int | None = None
    # What the pool or vault behind the price holds, in US dollars; None where that does not apply.
    liquidity_usd: Decimal | None = None


class PriceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that sources apply."""

    sources: tuple[str, ...]
    feed_seconds: float
    window_seconds: int
    least_liquidity_usd: Decimal
    refresh_seconds: float
    # By network name.
    fixed: Mapping[str, Mapping[Token, Decimal]] = {}
    trusted_vaults: Mapping[str, frozenset[Token]] = {}


class Reader(Protocol):
    """Reads contracts at one block."""

    async def read(self, network: Network, block: BlockRef, calls: Sequence[ContractCall]) -> list[bytes | None]: ...


class Place(msgspec.Struct, frozen=True):
    """Where and when prices are wanted."""

    network: Network
    facts: Facts
    block: BlockRef


Prices: TypeAlias = dict[Token, Price]


# Asks the sources that come before the present one in the order.
Find: TypeAlias = Callable[[Sequence[Token]], Awaitable[Prices]]


class Source(Protocol):
    """One way to know prices."""

    name: str

    async def prices(self, place: Place, tokens: Sequence[Token], known: Mapping[Token, Price], find: Find) -> Prices:
        """The prices of those of the tokens that this source knows.

        `known` holds what earlier sources found, and the prices of the native coin and the quote tokens, by which
        pools are valued. `find` asks the earlier sources for others.
        """
        ...
