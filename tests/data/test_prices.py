"""Prices from every source, on the real chain: right, or none."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode

from capstan.chain.calls.models import BlockRef
from capstan.core.clock import ManualClock
from capstan.core.hexes import parse_address
from capstan.core.money import plain
from capstan.devnet.artifacts import call_data
from capstan.outbound.client import GuardedClient
from capstan.prices.http import HttpPrices
from capstan.prices.models import NATIVE, Place, Price
from tests.support import canned
from tests.support.canned import Action, Returns, Reverts, deploy, text, word
from tests.support.data import DataSetup, data_services
from tests.support.devnet import EvmDevnet
from tests.support.web import MetadataServer

UNIT = 10**18
NETWORK = "networks.ethereum/devnet"


def token(decimals: int = 18, **changes: Action) -> dict[str, Action]:
    """The answers of an ERC-20 contract."""
    return {
        "name()": text("Priced"),
        "symbol()": text("PRC"),
        "decimals()": word(decimals),
        "totalSupply()": word(1000 * 10**decimals),
        "balanceOf(address)": word(2 * 10**decimals),
        **changes,
    }


class Market:
    """Deploys contracts and opens the services with a network that knows of them."""

    def __init__(self, devnet: EvmDevnet, directory: Path) -> None:
        self.devnet = devnet
        self._directory = directory

    def deploy(self, answers: Mapping[str, Action]) -> str:
        return deploy(self.devnet, self.devnet.deployment.accounts[14], canned.canned(answers))

    def send(self, to: str, signature: str, *values: object) -> None:
        data = call_data(signature, *values)
        receipt = self.devnet.send(self.devnet.deployment.accounts[14], to, data=data)
        assert receipt["status"] == "0x1"

    @asynccontextmanager
    async def open(self, **settings: object) -> AsyncIterator[DataSetup]:
        """Names of network settings stand alone, others have their section before two underscores."""
        named = {
            (name.replace("__", ".") if "__" in name else f"{NETWORK}.{name}"): value
            for name, value in settings.items()
        }
        async with data_services(self.devnet.url, self.devnet.deployment, self._directory, settings=named) as setup:
            yield setup


@pytest.fixture
def market(quiet_devnet: EvmDevnet, tmp_path: Path) -> Market:
    return Market(quiet_devnet, tmp_path)


async def nobody(_tokens: Sequence[bytes]) -> dict[bytes, Price]:
    """No earlier source."""
    return {}


async def price_of(setup: DataSetup, contract: str) -> Price | None:
    block = await setup.data.blocks.latest(setup.network)
    address = parse_address(contract)
    return (await setup.data.prices.prices(setup.network, block, [address])).get(address)


async def test_feeds_price_tokens_and_the_native_coin(market: Market) -> None:
    async with market.open() as setup:
        block = await setup.data.blocks.latest(setup.network)
        price = await price_of(setup, market.devnet.deployment.tokens[0].address)
        native = await setup.data.prices.native(setup.network, block)
    assert price == Price(Decimal("1.25000000"), "chainlink", block.number, 0)
    assert native is not None
    assert plain(native.usd) == "2500"


@pytest.mark.parametrize(
    "round_data",
    [
        Reverts(),
        Returns(b""),
        Returns(encode(["uint80", "int256", "uint256", "uint256", "uint80"], [1, 0, 1, 2**40, 1])),
        Returns(encode(["uint80", "int256", "uint256", "uint256", "uint80"], [1, -5, 1, 2**31, 1])),
        # Never updated, updated long ago, updated in the future.
        Returns(encode(["uint80", "int256", "uint256", "uint256", "uint80"], [1, 10**8, 1, 0, 1])),
        Returns(encode(["uint80", "int256", "uint256", "uint256", "uint80"], [1, 10**8, 1, 1_500_000_000, 1])),
        Returns(encode(["uint80", "int256", "uint256", "uint256", "uint80"], [1, 10**8, 1, 2**40, 1])),
    ],
)
async def test_feed_that_cannot_be_believed_gives_no_price(market: Market, round_data: Action) -> None:
    contract = market.deploy(token())
    feed = market.deploy({"latestRoundData()": round_data, "decimals()": word(8)})
    async with market.open(price_feeds={contract: feed}) as setup:
        assert await price_of(setup, contract) is None
        assert (await setup.token(contract))["market_cap_usd"] is None


def pool_of(market: Market, contract: str, quote: str, tick: int, window: int = 1800) -> str:
    """A v3 pool in which one unit of the token is worth 1.0001^tick units of the quote."""
    if contract.lower() > quote.lower():
        tick = -tick
    observed = encode(["int56[]", "uint160[]"], [[1_000_000, 1_000_000 + tick * window], [0, 0]])
    return market.deploy({"observe(uint32[])": Returns(observed)})


@pytest.mark.parametrize(("tick", "decimals"), [(0, 18), (-276_000, 18), (50_000, 18), (276_324, 6), (-100_003, 0)])
async def test_v3_price_is_the_mean_over_the_window(market: Market, tick: int, decimals: int) -> None:
    contract = market.deploy(token(decimals))
    wrapped = market.deploy(token(balance=word(0)) | {"balanceOf(address)": word(100 * UNIT)})
    pool = pool_of(market, contract, wrapped, tick)
    factory = market.deploy({"getPool(address,address,uint24)": canned.address(pool)})
    async with market.open(wrapped_native=wrapped, uniswap_v3_factory=factory) as setup:
        price = await price_of(setup, contract)
    assert price is not None
    context = Context(prec=50)
    ratio = context.power(Decimal("1.0001"), tick)
    expected = context.multiply(context.multiply(ratio, Decimal(2500)), Decimal(10) ** (decimals - 18))
    assert abs(price.usd / expected - 1) < Decimal("1e-15")
    assert (price.source, price.liquidity_usd) == ("uniswap-v3", Decimal(250_000))


async def test_shallow_pool_gives_no_price(market: Market) -> None:
    contract = market.deploy(token())
    wrapped = market.deploy(token() | {"balanceOf(address)": word(3 * UNIT)})
    factory = market.deploy({"getPool(address,address,uint24)": canned.address(pool_of(market, contract, wrapped, 0))})
    async with market.open(wrapped_native=wrapped, uniswap_v3_factory=factory) as setup:
        assert await price_of(setup, contract) is None
    changes: dict[str, Any] = {"wrapped_native": wrapped, "uniswap_v3_factory": factory}
    async with market.open(**changes, prices__least_liquidity_usd=7_500) as setup:
        assert await price_of(setup, contract) is not None


@pytest.mark.parametrize("answer", [Reverts(), Returns(b""), Returns(bytes(64)), Returns(b"\xff" * 320)])
async def test_pool_without_a_history_gives_no_price(market: Market, answer: Action) -> None:
    contract = market.deploy(token())
    wrapped = market.deploy(token() | {"balanceOf(address)": word(100 * UNIT)})
    pool = market.deploy({"observe(uint32[])": answer})
    factory = market.deploy({"getPool(address,address,uint24)": canned.address(pool)})
    async with market.open(wrapped_native=wrapped, uniswap_v3_factory=factory) as setup:
        assert await price_of(setup, contract) is None


async def test_v2_price_is_that_of_the_reserves(market: Market) -> None:
    contract = market.deploy(token(6))
    wrapped = market.deploy(token() | {"balanceOf(address)": word(40 * UNIT)})
    own, quoted = 3_000_000 * 10**6, 50 * UNIT
    reserves = [own, quoted] if contract.lower() < wrapped.lower() else [quoted, own]
    pair = market.deploy({"getReserves()": Returns(encode(["uint112", "uint112", "uint32"], [*reserves, 1]))})
    factory = market.deploy({"getPair(address,address)": canned.address(pair)})
    async with market.open(wrapped_native=wrapped, uniswap_v2_factory=factory) as setup:
        price = await price_of(setup, contract)
        holder = "0x" + "44" * 20
        setup.index.touch(holder, contract)
        shown = (await setup.balances(holder))["tokens"][0]
    assert price is not None
    # 50 coins of 2500 dollars for three million tokens. The pair has 40 coins, whatever it says.
    assert abs(price.usd - Decimal(125_000) / 3_000_000) < Decimal("1e-15")
    assert (price.source, price.liquidity_usd) == ("uniswap-v2", Decimal(100_000))
    assert Decimal(shown["usd_value"]) == 2 * price.usd


async def test_vault_share_is_worth_its_assets(market: Market) -> None:
    asset = market.devnet.deployment.tokens[0].address
    answers = token() | {
        "asset()": canned.address(asset),
        "totalSupply()": word(UNIT),
        "convertToAssets(uint256)": word(2 * UNIT),
    }
    vault = market.deploy(answers)
    async with market.open() as setup:
        assert await price_of(setup, vault) is None, "it holds none of the assets that it claims"
    async with market.open(prices__trusted_vaults=[f"ethereum/devnet:{vault}"]) as setup:
        price = await price_of(setup, vault)
        assert price is not None
        assert (plain(price.usd), price.source) == ("2.5", "erc4626")
    market.send(asset, "mint(address,uint256)", vault, 20_000 * UNIT)
    async with market.open() as setup:
        price = await price_of(setup, vault)
        assert price is not None
        assert plain(price.usd) == "2.5"


async def test_fixed_price_comes_first_and_order_is_a_setting(market: Market) -> None:
    contract = market.devnet.deployment.tokens[0].address
    fixed = {f"ethereum/devnet:{contract}": "7.00", "ethereum/devnet:native": "0.000001"}
    async with market.open(prices__fixed=fixed) as setup:
        assert (await setup.token(contract))["price_usd"] == "7"
        block = await setup.data.blocks.latest(setup.network)
        native = await setup.data.prices.native(setup.network, block)
        assert native is not None
        assert plain(native.usd) == "0.000001"
    async with market.open(prices__fixed=fixed, prices__sources=["chainlink", "fixed"]) as setup:
        assert (await setup.token(contract))["price_usd"] == "1.25"
    async with market.open(prices__sources=[]) as setup:
        assert (await setup.token(contract))["price_usd"] is None


async def test_price_is_read_again_after_a_while(market: Market) -> None:
    contract = market.deploy(token())
    async with market.open() as setup:
        assert await price_of(setup, contract) is None
        before = setup.relay.reads
        assert await price_of(setup, contract) is None
        assert setup.relay.reads == before, "that there is no price is remembered"


@pytest.mark.parametrize(
    ("coin", "usd"),
    [
        ({"price": 1.1, "timestamp": 1_699_999_900, "confidence": 0.99}, "1.1"),
        ({"price": 1.23e-07, "timestamp": 1_699_999_900, "confidence": 0.99}, "0.000000123"),
        ({"price": 1, "timestamp": 1_699_999_900, "confidence": 0.99}, "1"),
        ({"price": 1.1, "timestamp": 1_699_000_000, "confidence": 0.99}, None),
        ({"price": 1.1, "timestamp": 1_699_999_900, "confidence": 0.5}, None),
        ({"price": 1.1, "timestamp": 1_699_999_900}, None),
        ({"price": -1, "timestamp": 1_699_999_900, "confidence": 1}, None),
        ({"price": "many", "timestamp": 1_699_999_900, "confidence": 1}, None),
        ({"price": None, "timestamp": None, "confidence": None}, None),
        ([], None),
    ],
)
async def test_http_source_is_believed_when_fresh_and_confident(market: Market, coin: Any, usd: str | None) -> None:
    contract = "0x" + "5a" * 20
    async with MetadataServer() as server, market.open() as setup:
        server.documents[f"/prices/current/ethereum:{contract}"] = {"coins": {f"ethereum:{contract}": coin}}
        client = GuardedClient(allow_http=True, allow_loopback=True)
        clock = ManualClock(1_700_000_000.0)
        source = HttpPrices(client, clock, url=server.url, longest_age=3600, least_confidence=0.9)
        facts = setup.settings.networks["ethereum/devnet"]
        block = BlockRef(1, "0x" + "00" * 32, int(time.time()))
        try:
            main = Place(setup.network, msgspec.structs.replace(facts, kind="mainnet"), block)
            found = await source.prices(main, [parse_address(contract)], {}, nobody)
            assert await source.prices(Place(setup.network, facts, block), [parse_address(contract)], {}, nobody) == {}
            server.documents.clear()
            assert await source.prices(main, [parse_address(contract), NATIVE], {}, nobody) == {}
        finally:
            await client.close()
    assert [plain(price.usd) for price in found.values()] == ([] if usd is None else [usd])
