"""Prices from Uniswap pools: v3 averaged over time, v2 from the reserves.

A token is priced through pools against the wrapped native coin and the quote tokens of the network, whose own prices
come from feeds and are never assumed. A pool counts only if it holds enough of the priced side, because a small pool is
cheap to move. Of several, the one that holds most decides. Pools are found once through the factory and remembered; the
absence of a pool is remembered for a while.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from capstan.chain.calls import decoding
from capstan.chain.calls.models import ContractCall, call, selector
from capstan.core.clock import Clock
from capstan.core.hexes import parse_address
from capstan.core.money import amount, power, product, quotient, significant
from capstan.prices.models import Find, Place, Price, PriceOptions, Prices, Reader, Token, contracts

# The fees of Uniswap v3, in millionths.
_FEES = (100, 500, 3000, 10_000)
_ABSENT_SECONDS = 3600.0
_MOST_REMEMBERED = 50_000
_TICK = Decimal("1.0001")
# https://docs.uniswap.org: ticks reach as far as prices of 2^128.
_MOST_TICK = 887_272


class Pool(msgspec.Struct, frozen=True):
    """A pool of a token against a quote token."""

    address: bytes
    token: Token
    quote: Token


class _Known(msgspec.Struct, frozen=True):
    pools: tuple[Pool, ...]
    until: float


class PoolBook:
    """Which pools a token has, by the factory's word."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._known: dict[tuple[str, Token], _Known] = {}

    async def pools(
        self, place: Place, tokens: Sequence[Token], questions: Mapping[tuple[Token, Token], Sequence[ContractCall]]
    ) -> dict[Token, tuple[Pool, ...]]:
        """The pools of each token. `questions` are the calls to a factory for each pair of token and quote."""
        now = self._clock.monotonic()
        missing = []
        for token in tokens:
            known = self._known.get((place.network.name, token))
            if known is None or now >= known.until:
                missing.append(token)
        pairs = [(pair, question) for pair, asked in questions.items() if pair[0] in missing for question in asked]
        results = await self._reader.read(place.network, place.block, [question for _, question in pairs])
        found: dict[Token, list[Pool]] = {token: [] for token in missing}
        for ((token, quote), _), result in zip(pairs, results, strict=True):
            address = decoding.address_bytes(result)
            if address is not None:
                found[token].append(Pool(address, token, quote))
        while len(self._known) > _MOST_REMEMBERED:
            self._known.pop(next(iter(self._known)))
        for token, pools in found.items():
            self._known[place.network.name, token] = _Known(tuple(pools), now + _ABSENT_SECONDS)
        return {
            token: known.pools
            for token in tokens
            if (known := self._known.get((place.network.name, token))) is not None
        }


class _Reading(msgspec.Struct, frozen=True):
    """What a pool says, what it holds of the quote token, and the decimals of both tokens."""

    pool: Pool
    answer: bytes | None
    held: int
    decimals: int
    quote_decimals: int


class _Pools:
    """What both versions of Uniswap have in common."""

    name: str

    def __init__(self, reader: Reader, clock: Clock, options: PriceOptions) -> None:
        self._reader = reader
        self._options = options
        self._book = PoolBook(reader, clock)

    def _price(self, place: Place, reading: _Reading, held: int, ratio: Decimal, quote: Price) -> Price | None:
        """The price that a pool gives, if it holds enough. `ratio` is raw units of the quote for one of the token."""
        liquidity = product(amount(held, reading.quote_decimals), quote.usd)
        if liquidity < self._options.least_liquidity_usd or ratio <= 0:
            return None
        whole = product(product(ratio, Decimal(10**reading.decimals)), amount(1, reading.quote_decimals))
        usd = significant(product(whole, quote.usd))
        if usd <= 0:
            return None
        return Price(usd, self.name, place.block.number, quote.age_seconds, liquidity)


class UniswapV3(_Pools):
    """Time-weighted prices of Uniswap v3 pools."""

    name = "uniswap-v3"

    async def prices(self, place: Place, tokens: Sequence[Token], known: Mapping[Token, Price], find: Find) -> Prices:
        """See `Source`."""
        quotes = quote_prices(place, known)
        if not place.facts.uniswap_v3_factory or not quotes:
            return {}
        tokens = contracts(tokens)
        factory = parse_address(place.facts.uniswap_v3_factory)
        questions = {
            (token, quote): [call(factory, "getPool(address,address,uint24)", token, quote, fee) for fee in _FEES]
            for token in tokens
            for quote in quotes
            if token != quote
        }
        book = await self._book.pools(place, tokens, questions)
        pools = [pool for token in tokens for pool in book.get(token, ())]
        observed = [_observe(pool.address, self._options.window_seconds) for pool in pools]
        found: Prices = {}
        for reading in await _read(self._reader, place, pools, observed):
            pool = reading.pool
            mean = _mean_tick(reading.answer, self._options.window_seconds)
            if mean is not None and pool.quote in quotes:
                # A tick is about raw amounts: of the token with the higher address, for one of the other.
                ratio = power(_TICK, mean if pool.token < pool.quote else -mean)
                _take(found, pool.token, self._price(place, reading, reading.held, ratio, quotes[pool.quote]))
        return found


class UniswapV2(_Pools):
    """Prices from the reserves of Uniswap v2 pairs."""

    name = "uniswap-v2"

    async def prices(self, place: Place, tokens: Sequence[Token], known: Mapping[Token, Price], find: Find) -> Prices:
        """See `Source`."""
        quotes = quote_prices(place, known)
        if not place.facts.uniswap_v2_factory or not quotes:
            return {}
        tokens = contracts(tokens)
        factory = parse_address(place.facts.uniswap_v2_factory)
        questions = {
            (token, quote): [call(factory, "getPair(address,address)", token, quote)]
            for token in tokens
            for quote in quotes
            if token != quote
        }
        book = await self._book.pools(place, tokens, questions)
        pools = [pool for token in tokens for pool in book.get(token, ())]
        reserves = [call(pool.address, "getReserves()") for pool in pools]
        found: Prices = {}
        for reading in await _read(self._reader, place, pools, reserves):
            pool = reading.pool
            first, second = decoding.unsigned_at(reading.answer, 0), decoding.unsigned_at(reading.answer, 1)
            if first and second and pool.quote in quotes:
                own, quoted = (first, second) if pool.token < pool.quote else (second, first)
                ratio = quotient(Decimal(quoted), Decimal(own))
                # What the pair says it has, or what it really has, whichever is less.
                held = min(reading.held, quoted)
                _take(found, pool.token, self._price(place, reading, held, ratio, quotes[pool.quote]))
        return found


def quote_prices(place: Place, known: Mapping[Token, Price]) -> dict[Token, Price]:
    """The tokens in which pools quote, with their prices. One without a price is left out."""
    names = [place.facts.wrapped_native] if place.facts.wrapped_native else []
    quotes = [parse_address(name) for name in [*names, *place.facts.quote_tokens]]
    return {quote: known[quote] for quote in quotes if quote in known}


async def _read(
    reader: Reader, place: Place, pools: Sequence[Pool], questions: Sequence[ContractCall]
) -> list[_Reading]:
    """The answer of each pool to its question, with all that is needed to judge it, in one reading."""
    tokens = sorted({token for pool in pools for token in (pool.token, pool.quote)})
    balances = [call(pool.quote, "balanceOf(address)", pool.address) for pool in pools]
    asked = [*balances, *questions, *(call(token, "decimals()") for token in tokens)]
    results = await reader.read(place.network, place.block, asked)
    count = len(pools)
    decimals = {token: decoding.decimals(result) for token, result in zip(tokens, results[2 * count :], strict=True)}
    readings = []
    for pool, balance, answer in zip(pools, results[:count], results[count : 2 * count], strict=True):
        own, quoted, held = decimals[pool.token], decimals[pool.quote], decoding.unsigned(balance)
        if own is not None and quoted is not None and held is not None:
            readings.append(_Reading(pool, answer, held, own, quoted))
    return readings


def _take(found: Prices, token: Token, price: Price | None) -> None:
    """Keep the price of the pool that holds most."""
    before = found.get(token)
    if price is None or price.liquidity_usd is None:
        return
    if before is None or before.liquidity_usd is None or price.liquidity_usd > before.liquidity_usd:
        found[token] = price


def _observe(pool: bytes, window: int) -> ContractCall:
    """`observe([window, 0])`: the sums of ticks then and now."""
    words = (0x20, 2, window, 0)
    return ContractCall(pool, selector("observe(uint32[])") + b"".join(word.to_bytes(32, "big") for word in words))


def _mean_tick(result: bytes | None, window: int) -> int | None:
    """The mean tick of the window. The answer is two arrays; the first holds the two sums."""
    start = decoding.unsigned(result)
    if result is None or start is None or start % 32 or start > len(result):
        return None
    place = start // 32
    if decoding.unsigned_at(result, place) != 2:
        return None
    before, now = decoding.signed_at(result, place + 1), decoding.signed_at(result, place + 2)
    if before is None or now is None:
        return None
    mean = (now - before) // window
    return mean if abs(mean) <= _MOST_TICK else None
