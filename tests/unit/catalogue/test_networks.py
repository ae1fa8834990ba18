"""The built-in networks are complete and right, and lookups say precisely what they do not know."""

from __future__ import annotations

import msgspec
import pytest
from eth_utils.address import is_checksum_address, to_checksum_address
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from capstan.catalogue.networks import (
    Network,
    NetworkNotConfigured,
    Networks,
    UnknownChain,
    UnknownNetwork,
    builtin_networks,
    builtin_table,
    checksummed,
    network_faults,
    to_checksum,
)
from capstan.core.errors import NotFound

CHAIN_IDS = {
    "ethereum/mainnet": 1,
    "ethereum/sepolia": 11155111,
    "ethereum/hoodi": 560048,
    "ethereum/devnet": 31337,
    "polygon/mainnet": 137,
    "polygon/amoy": 80002,
    "base/mainnet": 8453,
    "base/sepolia": 84532,
    "arbitrum/mainnet": 42161,
    "arbitrum/sepolia": 421614,
    "optimism/mainnet": 10,
    "optimism/sepolia": 11155420,
    "bsc/mainnet": 56,
    "bsc/testnet": 97,
    "avalanche/mainnet": 43114,
    "avalanche/fuji": 43113,
    "linea/mainnet": 59144,
    "linea/sepolia": 59141,
    "scroll/mainnet": 534352,
    "scroll/sepolia": 534351,
    "gnosis/mainnet": 100,
    "gnosis/chiado": 10200,
    "solana/mainnet": 101,
    "solana/devnet": 103,
    "solana/testnet": 102,
}
DEFAULT_TESTNETS = {
    "ethereum": "sepolia",
    "polygon": "amoy",
    "base": "sepolia",
    "arbitrum": "sepolia",
    "optimism": "sepolia",
    "bsc": "testnet",
    "avalanche": "fuji",
    "linea": "sepolia",
    "scroll": "sepolia",
    "gnosis": "chiado",
    "solana": "devnet",
}
ENTRY_POINTS = {
    "0.6": "0x5FF137D4b0FDCD49DcA30c7CF57E578a026d2789",
    "0.7": "0x0000000071727De22E5E9d8BAf0edAc6f37da032",
    "0.8": "0x4337084D9E255Ff0702461CF8895CE9E3b5Ff108",
}
FACTORIES = {
    "0.6": "0x9406Cc6185a346906296840746125a0E44976454",
    "0.7": "0x91E60e0613810449d098b0b5Ec8b51A0FE8c8985",
    "0.8": "0x13E9ed32155810FDbd067D4522C492D6f68E5944",
}

BUILTIN = {network.name: network for network in builtin_networks()}
PUBLIC_EVM = [network for network in BUILTIN.values() if network.family == "evm" and network.network != "devnet"]


def every(*served: str, development: bool = False) -> Networks:
    return Networks(builtin_networks(), served=served, development=development)


def test_catalogue_holds_exactly_the_decided_networks_with_their_chain_ids() -> None:
    assert {name: network.chain_id for name, network in BUILTIN.items()} == CHAIN_IDS


def test_every_chain_has_one_mainnet_and_the_decided_default_test_network() -> None:
    for chain, testnet in DEFAULT_TESTNETS.items():
        entries = [network for network in BUILTIN.values() if network.chain == chain]
        assert [network.network for network in entries if network.kind == "mainnet"] == ["mainnet"]
        assert [network.network for network in entries if network.default_testnet] == [testnet]


def test_only_the_development_chain_is_the_default_in_development() -> None:
    assert [name for name, network in BUILTIN.items() if network.default_in_development] == ["ethereum/devnet"]


@pytest.mark.parametrize("network", PUBLIC_EVM, ids=lambda network: network.name)
def test_public_evm_networks_have_the_canonical_contracts(network: Network) -> None:
    assert network.multicall3 == "0xcA11bde05977b3631167028862bE2a173976CA11"
    assert network.entry_points == ENTRY_POINTS
    assert network.factories == FACTORIES
    assert network.native_decimals == 18
    assert network.eip1559


def test_development_chain_brings_no_contract_addresses_of_its_own() -> None:
    devnet = BUILTIN["ethereum/devnet"]
    assert (devnet.multicall3, devnet.entry_points, devnet.factories) == ("", {}, {})


@pytest.mark.parametrize("network", BUILTIN.values(), ids=lambda network: network.name)
def test_addresses_carry_their_checksum_by_an_independent_implementation(network: Network) -> None:
    if network.family == "solana":
        assert network.wrapped_native == "So11111111111111111111111111111111111111112"
        return
    texts = [network.multicall3, network.wrapped_native, network.native_usd_feed]
    texts += [*network.entry_points.values(), *network.factories.values()]
    assert all(is_checksum_address(text) for text in texts if text)


def test_every_evm_mainnet_has_a_price_feed_and_no_test_network_has() -> None:
    for network in PUBLIC_EVM:
        assert bool(network.native_usd_feed) == (network.kind == "mainnet")


def test_every_field_is_described_for_the_reference_page() -> None:
    for field in msgspec.structs.fields(Network):
        info = msgspec.inspect.type_info(field.type)
        assert isinstance(info, msgspec.inspect.Metadata), field.name
        assert (info.extra_json_schema or {}).get("description"), field.name


def test_served_network_is_found() -> None:
    network = every("base/mainnet").get("base", "mainnet")
    assert (network.name, network.chain_id) == ("base/mainnet", 8453)


def test_unknown_chain_is_named() -> None:
    with pytest.raises(UnknownChain, match='unknown chain "etherum"; known: ethereum, polygon') as caught:
        every().get("etherum", "mainnet")
    assert isinstance(caught.value, NotFound)
    assert caught.value.status == 404


def test_unknown_network_of_a_known_chain_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownNetwork, match='unknown network "goerli" of chain "ethereum"; known: mainnet, sepolia, hoodi, devnet'
    ):
        every("ethereum/mainnet").get("ethereum", "goerli")


def test_known_network_without_upstream_is_told_apart_and_alternatives_are_named() -> None:
    networks = every("ethereum/hoodi", "base/mainnet")
    with pytest.raises(
        NetworkNotConfigured,
        match=r"ethereum/sepolia is known but not configured on this server; configured for ethereum: hoodi$",
    ):
        networks.get("ethereum", "sepolia")
    with pytest.raises(NetworkNotConfigured, match=r"solana/devnet is known but not configured on this server$"):
        networks.get("solana", "devnet")


def test_facts_of_a_network_that_is_not_served_can_be_read() -> None:
    assert every().describe("polygon", "amoy").chain_id == 80002
    with pytest.raises(UnknownChain):
        every().describe("nowhere", "mainnet")


def test_mainnet_and_default_testnet_must_be_served_too() -> None:
    networks = every("base/mainnet")
    assert networks.mainnet("base").name == "base/mainnet"
    with pytest.raises(NetworkNotConfigured, match="base/sepolia is known but not configured"):
        networks.default_testnet("base")
    with pytest.raises(UnknownChain):
        networks.mainnet("nowhere")
    with pytest.raises(UnknownChain):
        networks.default_testnet("nowhere")


def test_development_mode_makes_the_development_chain_the_default_test_network() -> None:
    served = ("ethereum/devnet", "ethereum/sepolia", "solana/devnet")
    assert every(*served).default_testnet("ethereum").network == "sepolia"
    assert every(*served, development=True).default_testnet("ethereum").network == "devnet"
    assert every(*served, development=True).default_testnet("solana").network == "devnet"


def test_chain_with_a_main_network_of_another_name_still_has_a_mainnet() -> None:
    own = variant("ethereum/mainnet", chain="acme", network="production")
    assert Networks([own], served=["acme/production"]).mainnet("acme") == own


def test_chain_without_a_clear_main_or_test_network_asks_for_a_name() -> None:
    first = variant("ethereum/mainnet", chain="acme", network="one")
    second = variant("ethereum/mainnet", chain="acme", network="two")
    networks = Networks([first, second], served=["acme/one", "acme/two"])
    with pytest.raises(UnknownNetwork, match='chain "acme" has no main network; name one with \\?network='):
        networks.mainnet("acme")
    with pytest.raises(UnknownNetwork, match='chain "acme" has no default test network'):
        networks.default_testnet("acme")


def test_listing_keeps_known_and_served_apart() -> None:
    networks = every("base/mainnet")
    assert len(networks) == len(CHAIN_IDS)
    assert [network.name for network in networks] == list(CHAIN_IDS)
    assert [network.name for network in networks.served] == ["base/mainnet"]
    assert networks.chains == tuple(DEFAULT_TESTNETS)
    assert [network.network for network in networks.for_chain("solana")] == ["mainnet", "devnet", "testnet"]


def test_builtin_table_is_plain_and_without_the_template_key() -> None:
    table = builtin_table("base/mainnet")
    assert table is not None
    assert "template" not in table
    assert table["entry_points"] == ENTRY_POINTS
    assert builtin_table("base/nowhere") is None


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"multicall3": "0x12"}, "multicall3", "40 hexadecimal digits"),
        ({"wrapped_native": "0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756CC2"}, "wrapped_native", "wrong EIP-55 checksum"),
        ({"entry_points": {"0.7": "nonsense"}}, 'entry_points."0.7"', "40 hexadecimal digits"),
        ({"price_feeds": {"USDC": "0x" + "1" * 40}}, 'price_feeds."USDC"', "40 hexadecimal digits"),
        ({"genesis_hash": "0x1234"}, "genesis_hash", "32-byte hash"),
        ({"default_testnet": True}, "default_testnet", 'kind "mainnet"'),
        ({"default_in_development": True}, "default_in_development", 'kind "mainnet"'),
        ({"family": "solana", "eip1559": True}, "eip1559", "Solana"),
        ({"family": "solana", "multicall3": "0x" + "0" * 40}, "multicall3", "base58"),
    ],
)
def test_contradiction_in_a_network_is_found(changes: dict[str, object], key: str, reason: str) -> None:
    faults = dict(network_faults(variant("ethereum/mainnet", **changes)))
    assert reason in faults[key]


@hypothesis_settings(deadline=None)
@given(st.binary(min_size=20, max_size=20))
def test_checksum_agrees_with_eth_utils(address: bytes) -> None:
    assert to_checksum("0x" + address.hex()) == to_checksum_address(address)


def test_addresses_in_lower_case_are_accepted_and_written_with_checksum() -> None:
    token = "0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48"
    network = variant(
        "ethereum/mainnet",
        multicall3="0xca11bde05977b3631167028862be2a173976ca11",
        entry_points={"0.7": ENTRY_POINTS["0.7"].lower()},
        price_feeds={token: token},
    )
    assert network_faults(network) == []
    written = checksummed(network)
    assert written.multicall3 == "0xcA11bde05977b3631167028862bE2a173976CA11"
    assert written.entry_points == {"0.7": ENTRY_POINTS["0.7"]}
    assert written.price_feeds == {to_checksum_address(token): to_checksum_address(token)}
    assert checksummed(BUILTIN["solana/mainnet"]) == BUILTIN["solana/mainnet"]


def variant(name: str, **changes: object) -> Network:
    return msgspec.structs.replace(BUILTIN[name], **changes)
