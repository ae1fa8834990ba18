"""Tokens that answer badly: the service says what can be said, null for what cannot, and ends in time."""

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from capstan.core.errors import NotFound
from tests.support import canned
from tests.support.canned import Action, BlockNumber, Breaks, Floods, Loops, Returns, Reverts, deploy, text, word
from tests.support.data import BOUNDED_SECONDS, DataSetup, data_services
from tests.support.devnet import EvmDevnet

UNIT = 10**18
GOOD: dict[str, Action] = {
    "name()": text("Good Token"),
    "symbol()": text("GOOD"),
    "decimals()": word(18),
    "totalSupply()": word(1000 * UNIT),
    "balanceOf(address)": word(5 * UNIT),
}
# What differs from a good token, and what is then shown differently.
CASES: dict[str, tuple[Mapping[str, Action], Mapping[str, Any]]] = {
    "bytes32 names": (
        {"name()": word(b"Maker"), "symbol()": word(b"MKR")},
        {"name": "Maker", "symbol": "MKR"},
    ),
    "no decimals": ({"decimals()": Reverts()}, {"decimals": None}),
    "decimals of 79": ({"decimals()": word(79)}, {"decimals": None}),
    "decimals of 2^256-1": ({"decimals()": word(2**256 - 1)}, {"decimals": None}),
    "decimals as empty bytes": ({"decimals()": Returns(b"")}, {"decimals": None}),
    "zero decimals": ({"decimals()": word(0)}, {"decimals": 0}),
    "78 decimals": ({"decimals()": word(78)}, {"decimals": 78}),
    "reverting symbol": ({"symbol()": Reverts()}, {"symbol": None}),
    "symbol runs into an invalid instruction": ({"symbol()": Breaks()}, {"symbol": None}),
    "symbol never ends": ({"symbol()": Loops()}, {"symbol": None}),
    "name and symbol never end": ({"name()": Loops(), "symbol()": Loops()}, {"name": None, "symbol": None}),
    "giant name": ({"name()": text("A" * 20_000)}, {"name": "A" * 255}),
    "name of many characters of four bytes": ({"name()": text("\U0001f600" * 1000)}, {"name": "\U0001f600" * 63}),
    "name of a megabyte": ({"name()": Floods(1_000_000)}, {"name": None}),
    "name that is not UTF-8": ({"name()": text(b"caf\xe9")}, {"name": "caf\ufffd"}),
    "name with NULs and controls": ({"name()": text("\0\0Ze\0ro\x07\n\0")}, {"name": "Zero"}),
    "name whose offset is beyond the end": ({"name()": Returns(b"\xff" * 64)}, {"name": None}),
    "name whose length is absurd": (
        {"name()": Returns((32).to_bytes(32, "big") + b"\xff" * 32 + b"cut".ljust(32, b"\0"))},
        {"name": "cut"},
    ),
    "empty name": ({"name()": text("")}, {"name": ""}),
    "name of five bytes": ({"name()": Returns(b"short")}, {"name": "short"}),
    "no total supply": ({"totalSupply()": Reverts()}, {"total_supply": None}),
    "the largest supply": ({"totalSupply()": word(2**256 - 1)}, {"total_supply": str(2**256 - 1)}),
}
NO_TOKENS: dict[str, bytes] = {
    "no function at all": canned.canned({}),
    "a contract that returns nothing": canned.canned({}, Returns(b"")),
    "a balance of 31 bytes": canned.canned({**GOOD, "balanceOf(address)": Returns(bytes(31))}),
    "reverting balance": canned.canned({**GOOD, "balanceOf(address)": Reverts()}),
    "endless balance": canned.canned({**GOOD, "balanceOf(address)": Loops()}),
    "an NFT contract with a supply": canned.canned({**GOOD, **canned.supports(canned.ERC721)}),
}


@pytest.fixture
async def setup(quiet_devnet: EvmDevnet, tmp_path: Path) -> AsyncIterator[DataSetup]:
    async with data_services(quiet_devnet.url, quiet_devnet.deployment, tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def contracts(quiet_devnet: EvmDevnet) -> dict[str, str]:
    """The address of every contract of the tables."""
    account = quiet_devnet.deployment.accounts[12]
    codes = {name: canned.canned({**GOOD, **changes}) for name, (changes, _) in CASES.items()}
    return {name: deploy(quiet_devnet, account, code) for name, code in {**codes, **NO_TOKENS}.items()}


@pytest.mark.parametrize("case", CASES)
async def test_metadata_of_an_awkward_token(setup: DataSetup, contracts: dict[str, str], case: str) -> None:
    started = time.monotonic()
    found = await setup.token(contracts[case])
    assert time.monotonic() - started < BOUNDED_SECONDS
    wanted: dict[str, Any] = {
        "name": "Good Token",
        "symbol": "GOOD",
        "decimals": 18,
        "total_supply": str(1000 * UNIT),
        **CASES[case][1],
    }
    assert {key: found[key] for key in wanted} == wanted
    if wanted["decimals"] is None or wanted["total_supply"] is None:
        assert found["formatted_total_supply"] is None


@pytest.mark.parametrize("case", NO_TOKENS)
async def test_what_is_no_token_is_a_clear_404(setup: DataSetup, contracts: dict[str, str], case: str) -> None:
    with pytest.raises(NotFound, match="not an ERC-20 token"):
        await setup.token(contracts[case])


async def test_one_list_with_all_of_them(setup: DataSetup, contracts: dict[str, str]) -> None:
    """Those that loop or flood spoil nothing for the others."""
    holder = "0x" + "11" * 20
    setup.index.touch(holder, *contracts.values())
    started = time.monotonic()
    found = await setup.balances(holder, limit=100)
    assert time.monotonic() - started < BOUNDED_SECONDS
    shown = {item["contract"]: item for item in found["tokens"]}
    silent = {"no function at all", "a contract that returns nothing", "a balance of 31 bytes"}
    silent |= {"reverting balance", "endless balance"}
    assert set(shown) == {address for name, address in contracts.items() if name not in silent}
    assert found["total"] == len(shown)
    for name, (_, changes) in CASES.items():
        item = shown[contracts[name]]
        assert item["balance"] == str(5 * UNIT)
        for key in ("name", "symbol", "decimals"):
            if key in changes:
                assert item[key] == changes[key], name
        if item["decimals"] is None:
            assert (item["formatted_balance"], item["usd_value"]) == (None, None)
    addresses = [item["contract"].lower() for item in found["tokens"]]
    assert addresses == sorted(addresses), "without prices the order is that of the contracts"


async def test_proxy_is_asked_itself(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    account = quiet_devnet.deployment.accounts[12]
    proxy = deploy(quiet_devnet, account, canned.proxy(deploy(quiet_devnet, account, canned.canned(GOOD))))
    assert (await setup.token(proxy))["symbol"] == "GOOD"


async def test_destroyed_contract_is_no_token_any_more(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    contract = deploy(quiet_devnet, quiet_devnet.deployment.accounts[12], canned.canned(GOOD))
    assert (await setup.token(contract))["symbol"] == "GOOD"
    holder = "0x" + "22" * 20
    setup.index.touch(holder, contract)
    assert (await setup.balances(holder))["total"] == 1
    quiet_devnet.call("hardhat_setCode", contract, "0x")
    quiet_devnet.mine()
    await setup.head_known()
    with pytest.raises(NotFound, match="no contract"):
        await setup.token(contract)
    assert (await setup.balances(holder))["total"] == 0


async def test_balance_that_changes_without_events_is_read_anew(setup: DataSetup, quiet_devnet: EvmDevnet) -> None:
    account = quiet_devnet.deployment.accounts[12]
    contract = deploy(quiet_devnet, account, canned.canned({**GOOD, "balanceOf(address)": BlockNumber()}))
    holder = "0x" + "33" * 20
    setup.index.touch(holder, contract)
    await setup.head_known()
    first = (await setup.balances(holder))["tokens"][0]["balance"]
    assert first == str(quiet_devnet.block_number())
    quiet_devnet.mine()
    await setup.head_known()
    assert (await setup.balances(holder))["tokens"][0]["balance"] == str(int(first) + 1)
