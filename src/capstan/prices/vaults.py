"""Prices of ERC-4626 vault shares: what a share can be turned into, times the price of that.

Anybody can write a contract that claims to be a vault of dollars. So a vault is believed only if it holds the assets of
all its shares itself, and enough of them, or if the operator trusts it by name.
"""

from collections.abc import Mapping, Sequence

from capstan.chain.calls import decoding
from capstan.chain.calls.models import call
from capstan.core.clock import Clock
from capstan.core.money import amount, product, significant
from capstan.prices.models import Find, Place, Price, PriceOptions, Prices, Reader, Token, contracts

_OTHER_SECONDS = 6 * 3600.0
_MOST_OTHERS = 100_000


class Vaults:
    """Reads the vault, then its asset."""

    name = "erc4626"

    def __init__(self, reader: Reader, clock: Clock, options: PriceOptions) -> None:
        self._reader = reader
        self._clock = clock
        self._options = options
        # Tokens that are no vaults, and until when they are not asked again: an upgrade could make one of them a vault.
        self._others: dict[tuple[str, Token], float] = {}

    async def prices(self, place: Place, tokens: Sequence[Token], known: Mapping[Token, Price], find: Find) -> Prices:
        """See `Source`. Of the assets, only those count that the sources before this one can price."""
        now = self._clock.monotonic()
        tokens = [token for token in contracts(tokens) if now >= self._others.get((place.network.name, token), 0.0)]
        calls = [
            question
            for token in tokens
            for question in (call(token, "asset()"), call(token, "decimals()"), call(token, "totalSupply()"))
        ]
        results = await self._reader.read(place.network, place.block, calls)
        vaults: list[tuple[Token, Token, int, int]] = []
        for index, token in enumerate(tokens):
            asset = decoding.address_bytes(results[3 * index])
            if asset is None:
                self._remember(place.network.name, token, now + _OTHER_SECONDS)
            decimals = decoding.decimals(results[3 * index + 1])
            supply = decoding.unsigned(results[3 * index + 2])
            if asset is not None and asset != token and decimals is not None and supply:
                vaults.append((token, asset, decimals, supply))
        unknown = sorted({asset for _, asset, _, _ in vaults if asset not in known})
        priced = {**known, **(await find(unknown) if unknown else {})}
        return await self._shares(place, [vault for vault in vaults if vault[1] in priced], priced)

    def _remember(self, network: str, token: Token, until: float) -> None:
        if len(self._others) >= _MOST_OTHERS:
            self._others.clear()
        self._others[network, token] = until

    async def _shares(
        self, place: Place, vaults: Sequence[tuple[Token, Token, int, int]], known: Mapping[Token, Price]
    ) -> Prices:
        calls = [
            question
            for token, asset, decimals, supply in vaults
            for question in (
                call(token, "convertToAssets(uint256)", 10**decimals),
                call(token, "convertToAssets(uint256)", supply),
                call(asset, "balanceOf(address)", token),
                call(asset, "decimals()"),
            )
        ]
        results = await self._reader.read(place.network, place.block, calls)
        found: Prices = {}
        for index, (token, asset, _, _) in enumerate(vaults):
            one, everything, held = (decoding.unsigned(result) for result in results[4 * index : 4 * index + 3])
            decimals = decoding.decimals(results[4 * index + 3])
            if not one or everything is None or held is None or decimals is None:
                continue
            price = known[asset]
            liquidity = product(amount(held, decimals), price.usd)
            trusted = token in self._options.trusted_vaults.get(place.network.name, frozenset())
            if trusted or (held >= everything and liquidity >= self._options.least_liquidity_usd):
                usd = significant(product(amount(one, decimals), price.usd))
                found[token] = Price(usd, self.name, place.block.number, price.age_seconds, liquidity)
        return found
