"""Prices from an HTTP source in the form of DefiLlama: `/prices/current/{chain}:{address},…`.

Off unless the operator names an address. It is asked through the guarded client like any address from outside, and for
main networks only: tokens of test networks have no market. Numbers are read as decimals, never as floats.
"""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import structlog

from capstan.core.clock import Clock
from capstan.core.hexes import to_data
from capstan.core.money import parse_price
from capstan.core.strangers import read_json
from capstan.outbound.client import GuardedClient, OutboundLimits
from capstan.outbound.errors import OutboundError
from capstan.prices.models import NATIVE, Find, Place, Price, Prices, Token

log = structlog.get_logger(__name__)

_LIMITS = OutboundLimits(seconds=5.0, bytes=1024 * 1024, redirects=1)
_AT_ONCE = 30
_MOST_QUESTIONS = 10
_PAUSE_SECONDS = 30.0
_NATIVE_ADDRESS = "0x" + "00" * 20
# The chains that the source calls by another name than we do.
_CHAINS = {"avalanche": "avax", "gnosis": "xdai"}


class HttpPrices:
    """Asks the source in groups of tokens."""

    name = "http"

    def __init__(
        self, client: GuardedClient, clock: Clock, *, url: str, longest_age: float, least_confidence: float
    ) -> None:
        self._client = client
        self._clock = clock
        self._url = url.rstrip("/")
        self._longest_age = longest_age
        self._least_confidence = Decimal(str(least_confidence))
        self._silent_until = 0.0

    async def prices(self, place: Place, tokens: Sequence[Token], known: Mapping[Token, Price], find: Find) -> Prices:
        """See `Source`. A source that fails knows nothing."""
        if not self._url or place.facts.kind != "mainnet":
            return {}
        if self._clock.monotonic() < self._silent_until:
            return {}
        wanted = list(tokens)[: _AT_ONCE * _MOST_QUESTIONS]
        groups = [wanted[begin : begin + _AT_ONCE] for begin in range(0, len(wanted), _AT_ONCE)]
        # All at once: together they take no longer than one may.
        answers = await asyncio.gather(*(self._ask(place, group) for group in groups))
        return {token: price for answer in answers for token, price in answer.items()}

    async def _ask(self, place: Place, tokens: Sequence[Token]) -> Prices:
        chain = _CHAINS.get(place.facts.chain, place.facts.chain)
        names = {f"{chain}:{_address(token)}": token for token in tokens}
        try:
            answer = await self._client.fetch("GET", f"{self._url}/prices/current/{','.join(names)}", limits=_LIMITS)
        except OutboundError as error:
            return self._failed(str(error))
        if answer.status != 200:
            return self._failed(f"status {answer.status}")
        coins = _coins(answer.body)
        found: Prices = {}
        for name, coin in coins.items():
            token = names.get(name) or names.get(name.lower())
            price = self._price(coin) if token is not None else None
            if token is not None and price is not None:
                found[token] = price
        return found

    def _failed(self, reason: str) -> Prices:
        """Leave the source alone for a while, so that not every question waits for it."""
        log.warning("prices.http_failed", reason=reason, again_in=_PAUSE_SECONDS)
        self._silent_until = self._clock.monotonic() + _PAUSE_SECONDS
        return {}

    def _price(self, coin: Any) -> Price | None:
        if not isinstance(coin, dict):
            return None
        try:
            usd = parse_price(str(coin.get("price")))
            age = max(0, int(self._clock.now()) - int(coin["timestamp"]))
            confidence = Decimal(str(coin.get("confidence", "0")))
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return None
        if age > self._longest_age or not confidence.is_finite() or confidence < self._least_confidence:
            return None
        return Price(usd, self.name, None, age)


def _address(token: Token) -> str:
    return _NATIVE_ADDRESS if token == NATIVE else to_data(token)


def _coins(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = read_json(body.decode("utf-8", "replace"), number=Decimal)
    except (ArithmeticError, ValueError):
        return {}
    coins = decoded.get("coins") if isinstance(decoded, dict) else None
    return coins if isinstance(coins, dict) else {}
