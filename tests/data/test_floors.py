"""Floor prices from sales on the real chain. A contract at Seaport's address emits what Seaport emits."""

import asyncio
from pathlib import Path

import pytest
from eth_abi.abi import encode

from capstan.devnet.artifacts import call_data
from capstan.devnet.models import DevAccount
from capstan.prices.sales import honest_prices, lowest_tenth
from capstan.prices.seaport import ORDER_FULFILLED, Log, Sale, sales_in
from tests.support.data import DataSetup, data_services
from tests.support.devnet import EvmDevnet

SEAPORT = "0x0000000000000068F116a894984e2DB1123eB395"
ETHER = 10**18
ITEM = "(uint8,address,uint256,uint256)[]"
RECEIVED = "(uint8,address,uint256,uint256,address)[]"
# Calls the contract in the first word with the data behind the second, which is its length, and emits the rest.
STAND_IN = (
    "0x602035806040" + "5f37" + "5f5f825f5f5f355af150" + "604001" + "803603" + "80825f37" + "5f33"
    "7f" + ORDER_FULFILLED[2:] + "835fa300"
)  # fmt: skip
NOBODY = "0x" + "00" * 20
BUYER = "0x" + "b0" * 20


def order(offer: list[tuple[object, ...]], paid: list[tuple[object, ...]], recipient: str = BUYER) -> bytes:
    """The data of OrderFulfilled."""
    return encode(["bytes32", "address", ITEM, RECEIVED], [bytes(32), recipient, offer, paid])


def listing(contract: str, token_id: int, *amounts: int) -> bytes:
    """A listing of one token that was bought for these amounts of the native coin."""
    return order([(2, contract, token_id, 1)], [(0, NOBODY, 0, amount, BUYER) for amount in amounts])


class Trade:
    """Sells tokens of the sample collection."""

    def __init__(self, devnet: EvmDevnet) -> None:
        self._devnet = devnet
        self.contract = devnet.deployment.nfts[0].address
        self.seller: DevAccount = devnet.deployment.accounts[17]
        self.next_id = 50_000
        devnet.call("hardhat_setCode", SEAPORT, STAND_IN)

    def sell(self, *amounts: int) -> None:
        """Mint a token and emit its sale in one transaction."""
        self.next_id += 1
        inner = call_data("mint(address,uint256)", BUYER, self.next_id)
        data = encode(["address", "uint256"], [self.contract, len(inner)]) + inner
        receipt = self._devnet.send(self.seller, SEAPORT, data=data + listing(self.contract, self.next_id, *amounts))
        assert receipt["status"] == "0x1"
        assert len(receipt["logs"]) == 2, receipt


async def test_floor_is_the_lowest_tenth_of_the_sales(quiet_devnet: EvmDevnet, tmp_path: Path) -> None:
    trade = Trade(quiet_devnet)
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as setup:
        for price in (9, 8, 7, 6):
            trade.sell(price * ETHER)
        await setup.head_known()
        assert (await settled(setup, trade.contract))["floor_price_eth"] is None, "too few sales"
    trade.sell(ETHER, ETHER // 2)
    for price in range(10, 17):
        trade.sell(price * ETHER)
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as setup:
        found = await settled(setup, trade.contract)
    # Twelve sales: the second lowest.
    assert (found["floor_price_eth"], found["floor_price_usd"]) == ("6", "15000")
    off = {"nfts.floor_receipts": 0, "nfts.floor_listing_days": 0}
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path, settings=off) as setup:
        assert (await settled(setup, trade.contract))["floor_price_eth"] is None
        assert "eth_getLogs" not in setup.relay.calls


async def settled(setup: DataSetup, contract: str) -> dict[str, object]:
    """The collection, once its floor has been looked for."""
    found = await setup.collection(contract)
    async with asyncio.timeout(60):
        while setup.data.floors.reading:
            await asyncio.sleep(0.05)
    return found | await setup.collection(contract)


CONTRACT, OTHER, WRAPPED = "0x" + "c0" * 20, "0x" + "c1" * 20, "0x" + "ee" * 20


@pytest.mark.parametrize(
    ("offer", "paid", "recipient", "price"),
    [
        ([(2, CONTRACT, 1, 1)], [(0, NOBODY, 0, 5, BUYER), (0, NOBODY, 0, 2, BUYER)], BUYER, 7),
        ([(3, CONTRACT, 1, 1)], [(1, WRAPPED, 0, 5, BUYER)], BUYER, 5),
        # An accepted offer, with a fee out of it.
        ([(1, WRAPPED, 0, 9)], [(2, CONTRACT, 1, 1, BUYER), (1, WRAPPED, 0, 1, BUYER)], BUYER, 9),
        # Several tokens, several of one id, another collection, another coin, nothing paid, to oneself.
        ([(2, CONTRACT, 1, 1), (2, CONTRACT, 2, 1)], [(0, NOBODY, 0, 5, BUYER)], BUYER, None),
        ([(3, CONTRACT, 1, 3)], [(0, NOBODY, 0, 5, BUYER)], BUYER, None),
        ([(2, OTHER, 1, 1)], [(0, NOBODY, 0, 5, BUYER)], BUYER, None),
        ([(2, CONTRACT, 1, 1)], [(1, OTHER, 0, 5, BUYER)], BUYER, None),
        ([(2, CONTRACT, 1, 1)], [], BUYER, None),
        ([(2, CONTRACT, 1, 1)], [(0, NOBODY, 0, 5, BUYER)], "0x" + "0f" * 20, None),
    ],
)
def test_which_orders_are_sales(
    offer: list[tuple[object, ...]], paid: list[tuple[object, ...]], recipient: str, price: int | None
) -> None:
    topics = [ORDER_FULFILLED, "0x" + "00" * 12 + "0f" * 20, "0x" + "00" * 32]
    log = Log(SEAPORT, topics, "0x" + order(offer, paid, recipient).hex())
    wanted = [] if price is None else [price]
    found = sales_in([log], bytes.fromhex(CONTRACT[2:]), bytes.fromhex(WRAPPED[2:]))
    assert [sale.price for sale in found] == wanted
    elsewhere = Log(OTHER, topics, log.data)
    assert sales_in([elsewhere], bytes.fromhex(CONTRACT[2:]), bytes.fromhex(WRAPPED[2:])) == []


def test_trades_back_and_forth_do_not_count() -> None:
    trades = [Sale("a", "b", 1), Sale("b", "a", 2), Sale("a", "c", 3), Sale("c", "d", 4), Sale("a", "b", 5)]
    assert honest_prices(trades) == [3, 4]


@pytest.mark.parametrize(
    "data", ["0x", "0x00", "0x" + "ff" * 128, "0x" + "00" * 96 + "ff" * 32, "0xzz", "0x" + "00" * 128]
)
def test_nonsense_is_no_sale(data: str) -> None:
    topics = [ORDER_FULFILLED, "0x" + "00" * 32, "0x" + "00" * 32]
    assert sales_in([Log(SEAPORT, topics, data), Log(SEAPORT, [], data)], bytes(20), None) == []


def test_lowest_tenth() -> None:
    assert lowest_tenth([5, 4, 3, 2]) is None
    assert lowest_tenth([5, 4, 3, 2, 1]) == 1
    assert lowest_tenth(list(range(1, 101))) == 10
