"""Prices in US dollars: the configured sources in their order, each asked for what those before it did not know.

Called by tokens for values and market caps, by NFTs for floors, and by gas sponsorship for the native coin. A price is
kept for a short time, and so is the fact that nobody knows one. Rather no price than a wrong one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import structlog

from capstan.catalogue.networks import Network as Facts
from capstan.chain.calls.models import BlockRef
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.hexes import parse_address
from capstan.prices.models import NATIVE, Place, Price, PriceOptions, Prices, Source, Token

log = structlog.get_logger(__name__)

FindFacts = Callable[[Network], Facts]

_MOST_KEPT = 200_000
# How much longer the absence of a price is kept than a price.
_ABSENCE_FACTOR = 10


class FixedPrices:
    """Prices from the settings."""

    name = "fixed"

    def __init__(self, options: PriceOptions) -> None:
        self._options = options

    async def prices(self, place: Place, tokens: Sequence[Token], known: object, find: object) -> Prices:
        """See `Source`."""
        table = self._options.fixed.get(place.network.name, {})
        return {token: Price(table[token], self.name) for token in tokens if token in table}


class _Kept(msgspec.Struct, frozen=True):
    price: Price | None
    until: float


class PriceService:
    """Knows what tokens are worth."""

    def __init__(self, sources: Iterable[Source], facts: FindFacts, clock: Clock, options: PriceOptions) -> None:
        by_name = {source.name: source for source in sources}
        self._sources = [by_name[name] for name in options.sources if name in by_name]
        self._facts = facts
        self._clock = clock
        self._options = options
        self._kept: OrderedDict[tuple[str, Token], _Kept] = OrderedDict()

    async def prices(self, network: Network, block: BlockRef, tokens: Iterable[Token]) -> Prices:
        """The prices of those of the tokens (20 bytes each) that have one. Raises `BlockChanged`.

        A source that fails is left out. The failure of all upstreams goes through.
        """
        place = Place(network, self._facts(network), block)
        now = self._clock.monotonic()
        wanted = list(dict.fromkeys(tokens))
        kept = {token: entry for token in wanted if (entry := self._entry(network, token, now)) is not None}
        missing = [token for token in wanted if token not in kept]
        found: Prices = {token: entry.price for token, entry in kept.items() if entry.price is not None}
        if missing:
            found |= await self._read(place, missing)
        return found

    async def native(self, network: Network, block: BlockRef) -> Price | None:
        """The price of the native coin."""
        return (await self.prices(network, block, [NATIVE])).get(NATIVE)

    async def _read(self, place: Place, tokens: Sequence[Token]) -> Prices:
        """Ask the sources. The coins by which pools are valued are asked for along with the tokens."""
        wanted = list(dict.fromkeys([*tokens, *_measures(place.facts)]))
        known = await self._ask(place, wanted, self._sources)
        for token in wanted:
            self._keep(place.network, token, known.get(token))
        return {token: known[token] for token in tokens if token in known}

    async def _ask(self, place: Place, wanted: Sequence[Token], sources: Sequence[Source]) -> Prices:
        known: Prices = {}
        for position, source in enumerate(sources):
            rest = [token for token in wanted if token not in known]
            if rest:
                # The earlier sources never lead back here, so this ends.
                find = partial(self._ask, place, sources=sources[:position])
                known |= await source.prices(place, rest, known, find)
        return known

    def _entry(self, network: Network, token: Token, now: float) -> _Kept | None:
        entry = self._kept.get((network.name, token))
        return entry if entry is not None and now < entry.until else None

    def _keep(self, network: Network, token: Token, price: Price | None) -> None:
        seconds = self._options.refresh_seconds * (1 if price is not None else _ABSENCE_FACTOR)
        self._kept[network.name, token] = _Kept(price, self._clock.monotonic() + seconds)
        self._kept.move_to_end((network.name, token))
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)


def _measures(facts: Facts) -> list[Token]:
    names = [facts.wrapped_native] if facts.wrapped_native else []
    return [NATIVE, *(parse_address(name) for name in [*names, *facts.quote_tokens])]
