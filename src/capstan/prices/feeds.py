"""Prices from Chainlink feeds: the catalogue says which feed is for which token.

A feed's answer counts when it is positive, complete and not too old, measured by the time of the block at which it is
read, so that the same block always gives the same price.
"""

from collections.abc import Mapping, Sequence

from capstan.chain.calls import decoding
from capstan.chain.calls.models import call
from capstan.core.hexes import parse_address
from capstan.core.money import amount
from capstan.prices.models import NATIVE, Find, Place, Price, PriceOptions, Prices, Reader, Token


class ChainlinkFeeds:
    """Reads `latestRoundData` of every feed in one question."""

    name = "chainlink"

    def __init__(self, reader: Reader, options: PriceOptions) -> None:
        self._reader = reader
        self._options = options

    async def prices(self, place: Place, tokens: Sequence[Token], known: Mapping[Token, Price], find: Find) -> Prices:
        """See `Source`."""
        feeds = feeds_of(place)
        wanted = [token for token in tokens if token in feeds]
        calls = [
            question
            for token in wanted
            for question in (call(feeds[token], "latestRoundData()"), call(feeds[token], "decimals()"))
        ]
        results = await self._reader.read(place.network, place.block, calls)
        found: Prices = {}
        for index, token in enumerate(wanted):
            price = self._price(place, results[2 * index], results[2 * index + 1])
            if price is not None:
                found[token] = price
        return found

    def _price(self, place: Place, round_data: bytes | None, decimals_data: bytes | None) -> Price | None:
        answer = decoding.signed_at(round_data, 1)
        updated_at = decoding.unsigned_at(round_data, 3)
        decimals = decoding.decimals(decimals_data)
        if answer is None or updated_at is None or decimals is None or answer <= 0 or updated_at == 0:
            return None
        # A feed may carry the time of a block a little ahead of ours; it may not come from the future.
        age = max(0, place.block.timestamp - updated_at)
        if age > self._options.feed_seconds or updated_at > place.block.timestamp + 60:
            return None
        return Price(amount(answer, decimals), self.name, place.block.number, age)


def feeds_of(place: Place) -> dict[Token, bytes]:
    """The feed of each token of the network. The wrapped native coin is worth what the native coin is."""
    feeds = {parse_address(token): parse_address(feed) for token, feed in place.facts.price_feeds.items()}
    if place.facts.native_usd_feed:
        native = parse_address(place.facts.native_usd_feed)
        feeds[NATIVE] = native
        if place.facts.wrapped_native:
            feeds.setdefault(parse_address(place.facts.wrapped_native), native)
    return feeds
