"""A floor from an HTTP source in the form of CoinGecko: `/nfts/{platform}/contract/{address}`.

The last source of the floor service, off unless the operator names an address. It is asked through the guarded client
like any address from outside, and for main networks only. Numbers are read as decimals, never as floats.
"""

from decimal import Decimal
from typing import Any

import structlog

from capstan.core.hexes import to_data
from capstan.core.money import parse_price
from capstan.core.strangers import read_json
from capstan.outbound.client import GuardedClient, OutboundLimits
from capstan.outbound.errors import OutboundError
from capstan.prices.models import Place

log = structlog.get_logger(__name__)

_LIMITS = OutboundLimits(seconds=5.0, bytes=1024 * 1024, redirects=1)
# The chains that the source calls by another name than we do.
_PLATFORMS = {
    "polygon": "polygon-pos",
    "arbitrum": "arbitrum-one",
    "optimism": "optimistic-ethereum",
    "bsc": "binance-smart-chain",
    "gnosis": "xdai",
}


class HttpFloors:
    """Asks the source for one collection at a time."""

    name = "http"
    seconds = 900.0

    def __init__(self, client: GuardedClient, *, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    async def floor(self, place: Place, contract: bytes) -> Decimal | None:
        """See `FloorSource`. A source that fails knows nothing."""
        if place.facts.kind != "mainnet":
            return None
        platform = _PLATFORMS.get(place.facts.chain, place.facts.chain)
        address = f"{self._url}/nfts/{platform}/contract/{to_data(contract)}"
        try:
            answer = await self._client.fetch("GET", address, limits=_LIMITS)
        except OutboundError as error:
            log.warning("floor.http_failed", reason=str(error))
            return None
        if answer.status != 200:
            # 404: a collection that it does not know.
            if answer.status != 404:
                log.warning("floor.http_failed", reason=f"status {answer.status}")
            return None
        return _floor(answer.body, place.facts.native_symbol)


def _floor(body: bytes, symbol: str) -> Decimal | None:
    """The floor in the native coin. One that is told in another coin is none."""
    try:
        decoded: Any = read_json(body.decode("utf-8", "replace"), number=str)
    except (ArithmeticError, ValueError):
        return None
    if not isinstance(decoded, dict) or not isinstance(decoded.get("floor_price"), dict):
        return None
    if str(decoded.get("native_currency_symbol", "")).upper() != symbol.upper():
        return None
    try:
        return parse_price(str(decoded["floor_price"].get("native_currency")))
    except (ArithmeticError, ValueError):
        return None
