"""Floor prices from listings on the real Seaport: what can be bought, and nothing else."""

import asyncio
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode

from capstan.chain.calls.models import BlockRef
from capstan.core.hexes import keccak256, to_checksum_address
from capstan.devnet.artifacts import call_data
from capstan.devnet.models import DevAccount
from capstan.outbound.client import GuardedClient
from capstan.prices.floor_http import HttpFloors
from capstan.prices.models import Place
from capstan.prices.orders import ORDER_VALIDATED, Listing, listing_in
from capstan.prices.seaport import Log
from tests.support.canned import deploy
from tests.support.data import DataSetup, data_services
from tests.support.devnet import EvmDevnet
from tests.support.web import MetadataServer

# Another version than the one that other tests put their stand-in at.
SEAPORT = "0x00000000000000ADc04C56Bf30aC9d3c0aAF14dC"
ETHER = 10**18
NOBODY = "0x" + "00" * 20
ITEMS = "(uint8,address,uint256,uint256,uint256)[]"
PAID = "(uint8,address,uint256,uint256,uint256,address)[]"
ORDER = f"(address,address,{ITEMS},{PAID},uint8,uint256,uint256,bytes32,uint256,bytes32,uint256)"
HOURS = 3600


class Market:
    """Lists tokens of the sample collections on Seaport."""

    def __init__(self, devnet: EvmDevnet) -> None:
        self.devnet = devnet
        self.contract, self.items = (nft.address for nft in devnet.deployment.nfts)
        self.seller: DevAccount = devnet.deployment.accounts[18]
        self.next_id = 900_000
        codes = msgspec.json.decode((Path(__file__).parent / "seaport.json").read_bytes())
        self.controller = deploy(devnet, self.seller, bytes.fromhex(codes["ConduitController"][2:]))
        creation = bytes.fromhex(codes["Seaport"][2:]) + encode(["address"], [self.controller])
        made = deploy(devnet, self.seller, creation)
        devnet.call("hardhat_setCode", SEAPORT, devnet.call("eth_getCode", made, "latest"))
        self.send(self.contract, "setApprovalForAll(address,bool)", SEAPORT, True)
        self.send(self.items, "setApprovalForAll(address,bool)", SEAPORT, True)

    def send(self, to: str, signature: str, *values: object) -> dict[str, Any]:
        receipt = self.devnet.send(self.seller, to, data=call_data(signature, *values), gas=2_000_000)
        assert receipt["status"] == "0x1", receipt
        return receipt

    def mint(self) -> int:
        self.next_id += 1
        self.send(self.contract, "mint(address,uint256)", self.seller.address, self.next_id)
        return self.next_id

    def order(self, price: int, token_id: int | None = None, **changes: Any) -> list[Any]:
        """The parameters of a listing of a fresh token; the keys of `changes` are places in them."""
        token_id = self.mint() if token_id is None else token_id
        now = int(self.devnet.call("eth_getBlockByNumber", "latest", False)["timestamp"], 16)
        order: list[Any] = [
            self.seller.address,
            NOBODY,
            [(2, self.contract, token_id, 1, 1)],
            [(0, NOBODY, 0, price - price // 10, price - price // 10, self.seller.address),
             (0, NOBODY, 0, price // 10, price // 10, "0x" + "fe" * 20)],
            0,
            now - HOURS,
            now + 24 * HOURS,
            bytes(32),
            self.next_id * 1000 + price % 997,
            bytes(32),
            2,
        ]  # fmt: skip
        for place, value in changes.items():
            order[int(place.removeprefix("p"))] = value
        order[10] = len(order[3])
        return order

    def validate(self, order: list[Any]) -> bytes:
        """Put the order on the chain. Returns its hash."""
        data = keccak256(f"validate(({ORDER},bytes)[])".encode())[:4] + encode(
            [f"({ORDER},bytes)[]"], [[(tuple(order), b"")]]
        )
        receipt = self.devnet.send(self.seller, SEAPORT, data=data, gas=2_000_000)
        assert receipt["status"] == "0x1", receipt
        (log,) = receipt["logs"]
        assert log["topics"] == [ORDER_VALIDATED]
        return bytes.fromhex(log["data"][2:66])

    def offer(self, price: int, token_id: int | None = None, **changes: Any) -> list[Any]:
        order = self.order(price, token_id, **changes)
        self.validate(order)
        return order

    def cancel(self, order: list[Any]) -> None:
        components = (*order[:10], 0)
        data = keccak256(f"cancel({ORDER}[])".encode())[:4] + encode([f"{ORDER}[]"], [[components]])
        assert self.devnet.send(self.seller, SEAPORT, data=data, gas=2_000_000)["status"] == "0x1"


@pytest.fixture(scope="module")
def market(quiet_devnet: EvmDevnet) -> Market:
    return Market(quiet_devnet)


async def floor(market: Market, directory: Path, contract: str | None = None, **settings: Any) -> Any:
    """The floor as a service sees it that starts now."""
    chosen: dict[str, Any] = {"nfts.floor_receipts": 0, **settings}
    async with data_services(market.devnet.url, market.devnet.deployment, directory, settings=chosen) as setup:
        return (await settled(setup, contract or market.contract))["floor_price_eth"]


async def settled(setup: DataSetup, contract: str) -> dict[str, Any]:
    """The collection, once its floor has been looked for."""
    await setup.collection(contract)
    async with asyncio.timeout(60):
        while setup.data.floors.reading:
            await asyncio.sleep(0.02)
    return await setup.collection(contract)


async def test_floor_is_the_cheapest_listing_that_can_be_bought(market: Market, tmp_path: Path) -> None:
    """Each that is cheaper than the good one fails in its own way."""
    market.offer(5 * ETHER)
    assert await floor(market, tmp_path) == "5"
    cancelled = market.offer(ETHER)
    market.cancel(cancelled)
    market.send(market.contract, "burn(uint256)", market.offer(ETHER)[2][0][2])
    given = market.offer(ETHER)[2][0][2]
    market.send(
        market.contract, "transferFrom(address,address,uint256)", market.seller.address, "0x" + "aa" * 20, given
    )
    now = int(time.time())
    market.offer(ETHER, p5=now + 20 * HOURS)
    market.offer(ETHER, p2=[(2, market.contract, market.mint(), 1, 1), (2, market.contract, market.mint(), 1, 1)])
    # Only a zone may let it be fulfilled; a conduit that nobody made; paid in another token.
    market.offer(ETHER, p1="0x" + "99" * 20, p4=2)
    market.offer(ETHER, p9=b"\x01" * 32)
    other = market.devnet.deployment.tokens[0].address
    market.offer(ETHER, p3=[(1, other, 0, ETHER, ETHER, market.seller.address)])
    market.offer(ETHER, p3=[(0, NOBODY, 0, 0, 0, market.seller.address)])
    assert await floor(market, tmp_path) == "5"
    market.offer(4 * ETHER)
    assert await floor(market, tmp_path) == "4"
    off: dict[str, Any] = {"nfts.floor_listing_days": 0}
    assert await floor(market, tmp_path, **off) is None


async def test_raised_counter_and_lost_approval_end_listings(market: Market, tmp_path: Path) -> None:
    market.offer(3 * ETHER)
    assert await floor(market, tmp_path) == "3"
    market.send(SEAPORT, "incrementCounter()")
    assert await floor(market, tmp_path) is None
    token_id = market.offer(2 * ETHER)[2][0][2]
    assert await floor(market, tmp_path) == "2"
    market.send(market.contract, "setApprovalForAll(address,bool)", SEAPORT, False)
    assert await floor(market, tmp_path) is None
    market.send(market.contract, "approve(address,uint256)", SEAPORT, token_id)
    assert await floor(market, tmp_path) == "2"
    market.send(market.contract, "setApprovalForAll(address,bool)", SEAPORT, True)


async def test_conduit_counts_when_it_is_open_and_approved(market: Market, tmp_path: Path) -> None:
    market.send(SEAPORT, "incrementCounter()")
    key = bytes.fromhex(market.seller.address[2:]) + b"\x07" * 12
    market.send(market.controller, "createConduit(bytes32,address)", key, market.seller.address)
    said = market.devnet.call("eth_call", {"to": market.controller, "data": call_data_hex(key)}, "latest")
    conduit = to_checksum_address("0x" + said[26:66])
    market.offer(7 * ETHER, p9=key)
    assert await floor(market, tmp_path) is None, "not approved, not open"
    market.send(market.contract, "setApprovalForAll(address,bool)", conduit, True)
    assert await floor(market, tmp_path) is None, "not open to Seaport"
    market.send(market.controller, "updateChannel(address,address,bool)", conduit, SEAPORT, True)
    assert await floor(market, tmp_path) == "7"


def call_data_hex(key: bytes) -> str:
    return "0x" + (keccak256(b"getConduit(bytes32)")[:4] + key).hex()


async def test_listing_of_an_item_and_of_a_falling_price(market: Market, tmp_path: Path) -> None:
    market.send(market.items, "mint(address,uint256,uint256)", market.seller.address, 77_001, 4)
    market.offer(6 * ETHER, 0, p2=[(3, market.items, 77_001, 1, 1)])
    market.offer(ETHER, 0, p2=[(3, market.items, 77_002, 1, 1)])
    market.offer(ETHER, 0, p2=[(3, market.items, 77_001, 2, 2)])
    assert await floor(market, tmp_path, market.items) == "6", "one it has, and one only"
    falling = [(0, NOBODY, 0, 100 * ETHER, 0, market.seller.address)]
    order = market.offer(ETHER, 0, p2=[(3, market.items, 77_001, 1, 1)], p3=falling, p5=0)
    head = market.devnet.call("eth_getBlockByNumber", "latest", False)
    price = Decimal(100) * (order[6] - int(head["timestamp"], 16)) / order[6]
    assert abs(Decimal(await floor(market, tmp_path, market.items)) - price) < Decimal("0.001")


async def test_listings_come_before_sales_and_others(market: Market, tmp_path: Path) -> None:
    """The order of the sources, and that a failing one does not stop the next."""
    market.send(SEAPORT, "incrementCounter()")
    async with MetadataServer() as server:
        address = f"/nfts/ethereum/contract/{market.contract.lower()}"
        server.documents[address] = {"floor_price": {"native_currency": 0.25}, "native_currency_symbol": "ETH"}
        settings: dict[str, Any] = {
            "mode": "development",
            "nfts.floor_http_url": server.url,
            "networks.ethereum/devnet.kind": "mainnet",
            "networks.ethereum/devnet.default_in_development": False,
        }
        assert await floor(market, tmp_path, **settings) == "0.25"
        market.offer(8 * ETHER)
        assert await floor(market, tmp_path, **settings) == "8"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"floor_price": {"native_currency": 1.5e-3, "usd": 3}, "native_currency_symbol": "eth"}, "0.0015"),
        ({"floor_price": {"native_currency": 2}, "native_currency_symbol": "BTC"}, None),
        ({"floor_price": {"native_currency": 2}}, None),
        ({"floor_price": {"native_currency": None}, "native_currency_symbol": "ETH"}, None),
        ({"floor_price": {"native_currency": -2}, "native_currency_symbol": "ETH"}, None),
        ({"floor_price": 2, "native_currency_symbol": "ETH"}, None),
        ([], None),
        (b"{", None),
    ],
)
async def test_http_source_is_read_with_care(
    quiet_devnet: EvmDevnet, tmp_path: Path, document: Any, expected: str | None
) -> None:
    contract = b"\x5a" * 20
    async with (
        MetadataServer() as server,
        data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as setup,
    ):
        server.documents[f"/nfts/polygon-pos/contract/0x{contract.hex()}"] = document
        client = GuardedClient(allow_http=True, allow_loopback=True)
        source = HttpFloors(client, url=server.url + "/")
        facts = msgspec.structs.replace(setup.settings.networks["ethereum/devnet"], chain="polygon")
        block = BlockRef(1, "0x" + "00" * 32, 1)
        main = Place(setup.network, msgspec.structs.replace(facts, kind="mainnet"), block)
        try:
            assert await source.floor(main, contract) == (None if expected is None else Decimal(expected))
            assert await source.floor(Place(setup.network, facts, block), contract) is None
            server.documents.clear()
            assert await source.floor(main, contract) is None
        finally:
            await client.close()


def log_of(order: list[Any]) -> Log:
    data = bytes(32) + encode(["uint256"], [64]) + encode([ORDER], [tuple(order)])[32:]
    return Log(SEAPORT, [ORDER_VALIDATED], "0x" + data.hex())


def test_price_goes_in_a_straight_line_and_is_rounded_up() -> None:
    order = ["0x" + "01" * 20, NOBODY, [(2, "0x" + "02" * 20, 9, 1, 1)], [(0, NOBODY, 0, 10, 3, NOBODY)], 1, 100, 200,
             bytes(32), 5, bytes(32), 1]  # fmt: skip
    found = listing_in(log_of(order), None)
    assert isinstance(found, Listing)
    assert [found.price_at(moment) for moment in (99, 100, 101, 150, 199, 200)] == [None, 10, 10, 7, 4, None]
    assert found.components(1) == encode([ORDER], [(*order[:10], 1)])


@pytest.mark.parametrize(
    "data", ["0x", "0x" + "00" * 64, "0x" + "ff" * 400, "0x" + "00" * 63 + "20" + "ff" * 400, "0xzz"]
)
def test_nonsense_is_no_listing(data: str) -> None:
    assert listing_in(Log(SEAPORT, [ORDER_VALIDATED], data), None) is None
    assert listing_in(Log(SEAPORT, [], data), None) is None
