"""Current gas prices of every EVM network.

Called by the route of `GET /gas/{chain}/prices`, by the bundler and by sponsorship. Each network that somebody asks
about has a market, which follows the network's stream; requests read what the market has made.
"""

from collections.abc import Callable

from capstan.catalogue.networks import DataFee
from capstan.chain.follower.followers import Followers
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import NotFound
from capstan.gas.market import Market
from capstan.gas.models import GasPrices


class GasPriceService:
    """Gas prices. `close` at the end."""

    def __init__(
        self,
        followers: Followers,
        heads: LatestHeads,
        clock: Clock,
        data_fee: Callable[[str], DataFee] = lambda _network: "none",
    ) -> None:
        """`data_fee` tells what a network charges for data besides gas."""
        self._followers = followers
        self._heads = heads
        self._clock = clock
        self._data_fee = data_fee
        self._markets: dict[str, Market] = {}

    async def prices(self, network: Network) -> GasPrices:
        """The prices now. Raises `NotFound` for a network that has no gas price, and what `Market.prices` does."""
        follower = self._followers.find(network.name)
        if network.spec.family != "evm" or follower is None:
            raise NotFound(f"Network {network.name} has no gas prices: only EVM chains do.")
        market = self._markets.get(network.name)
        if market is None or market.follower is not follower:
            if market is not None:
                await market.close()
            tracker = self._heads.tracker(network.name)
            market = self._markets[network.name] = Market(follower, tracker, self._clock, self._data_fee)
        return await market.prices(network)

    async def close(self) -> None:
        """Stop following."""
        for market in self._markets.values():
            await market.close()
