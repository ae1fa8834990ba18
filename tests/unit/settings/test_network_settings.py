"""Networks are put together from catalogue, defaults and the operator's table, and contradictions are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.catalogue import NetworkNotConfigured, builtin_networks
from capstan.settings import Settings, load_settings

from .support import load, problem

ACME = '[networks."acme/mainnet"]\nchain_id = 424242\nkind = "mainnet"\nfamily = "evm"\n'


def test_builtin_network_needs_only_upstreams(tmp_path: Path) -> None:
    settings = load(tmp_path, '[networks."base/mainnet"]\nupstreams = ["https://node.example/key"]\n')
    network = settings.networks["base/mainnet"]
    facts = {entry.name: entry for entry in builtin_networks()}["base/mainnet"]
    assert all(getattr(network, field) == getattr(facts, field) for field in facts.__struct_fields__)
    assert [upstream.url for upstream in network.upstreams] == ["https://node.example/key"]
    assert settings.catalogue().get("base", "mainnet").chain_id == 8453


def test_upstream_starts_from_the_upstream_section_and_may_differ(tmp_path: Path) -> None:
    text = """
[upstreams]
timeout_seconds = 7
weight = 3

[networks."base/mainnet"]
upstreams = [
    "http://one.example",
    { url = "wss://two.example/key", tier = 1, weight = 9, archive = false, headers = { authorization = "Bearer x" } },
]
"""
    one, two = load(tmp_path, text).networks["base/mainnet"].upstreams
    assert (one.timeout_seconds, one.weight, one.tier, one.archive, one.headers) == (7, 3, 0, True, {})
    assert (two.timeout_seconds, two.weight, two.tier, two.archive) == (7, 9, 1, False)
    assert two.headers == {"authorization": "Bearer x"}


def test_upstream_label_is_its_name_or_its_host_without_credentials(tmp_path: Path) -> None:
    text = '[networks."base/mainnet"]\nupstreams = ["http://u:p@a.example:8545/key", {url = "http://b", name = "b2"}]\n'
    assert [upstream.label for upstream in load(tmp_path, text).networks["base/mainnet"].upstreams] == [
        "a.example:8545",
        "b2",
    ]


def test_network_starts_from_the_network_defaults_and_may_differ(tmp_path: Path) -> None:
    text = """
[network_defaults]
extra_namespaces = ["trace"]
[networks."base/mainnet"]
[networks."base/sepolia"]
extra_namespaces = ["debug", "txpool"]
max_log_blocks = 0
"""
    networks = load(tmp_path, text).networks
    assert networks["base/mainnet"].extra_namespaces == ("trace",)
    assert networks["base/mainnet"].max_log_blocks == 10_000
    assert networks["base/sepolia"].extra_namespaces == ("debug", "txpool")
    assert networks["base/sepolia"].max_log_blocks == 0


def test_facts_of_a_builtin_network_can_be_overridden(tmp_path: Path) -> None:
    text = '[networks."base/mainnet"]\nfinality_depth = 5\nentry_points = { "0.7" = "0x' + "1" * 40 + '" }\n'
    network = load(tmp_path, text).networks["base/mainnet"]
    assert network.finality_depth == 5
    assert network.entry_points == {"0.7": "0x" + "1" * 40}
    assert network.multicall3 == "0xcA11bde05977b3631167028862bE2a173976CA11"


def test_network_without_upstream_is_known_but_not_served(tmp_path: Path) -> None:
    settings = load(tmp_path, '[networks."base/mainnet"]\nfinality_depth = 5\n')
    assert settings.served == {}
    assert settings.catalogue().describe("base", "mainnet").finality_depth == 5
    with pytest.raises(NetworkNotConfigured):
        settings.catalogue().get("base", "mainnet")


def test_operator_can_define_a_whole_network(tmp_path: Path) -> None:
    settings = load(tmp_path, ACME + 'native_symbol = "ACME"\nupstreams = ["http://10.0.0.5:8545"]\n')
    network = settings.catalogue().get("acme", "mainnet")
    assert (network.chain_id, network.native_symbol, network.native_decimals) == (424242, "ACME", 18)
    assert (network.multicall3, network.entry_points, network.eip1559) == ("", {}, True)
    assert settings.catalogue().mainnet("acme") is network


def test_new_solana_network_starts_from_the_solana_family(tmp_path: Path) -> None:
    text = '[networks."solana/local"]\nchain_id = 104\nkind = "testnet"\nfamily = "solana"\n'
    network = load(tmp_path, text).networks["solana/local"]
    assert (network.native_symbol, network.native_decimals, network.eip1559) == ("SOL", 9, False)


def test_new_network_in_the_environment_alone(tmp_path: Path) -> None:
    environ = {
        "CAPSTAN_NETWORKS__ACME_MAINNET__CHAIN_ID": "7",
        "CAPSTAN_NETWORKS__ACME_MAINNET__KIND": "mainnet",
        "CAPSTAN_NETWORKS__ACME_MAINNET__FAMILY": "evm",
        "CAPSTAN_NETWORKS__ACME_MAINNET__UPSTREAMS": '["http://a.example", {"url": "http://b.example", "tier": 1}]',
    }
    network = load(tmp_path, environ=environ).networks["acme/mainnet"]
    assert [(upstream.url, upstream.tier) for upstream in network.upstreams] == [
        ("http://a.example", 0),
        ("http://b.example", 1),
    ]


def test_environment_adds_to_a_network_of_the_file(tmp_path: Path) -> None:
    text = '[networks."base/mainnet"]\nfinality_depth = 5\nupstreams = ["http://a.example"]\n'
    environ = {"CAPSTAN_NETWORKS__BASE_MAINNET__UPSTREAMS": '["http://b.example"]'}
    network = load(tmp_path, text, environ=environ).networks["base/mainnet"]
    assert (network.finality_depth, [upstream.label for upstream in network.upstreams]) == (5, ["b.example"])


def test_unknown_network_must_be_defined_and_the_closest_known_one_is_named(tmp_path: Path) -> None:
    found = problem(tmp_path, '[networks."etherum/mainnet"]\nchain_id = 1\nupstreams = ["http://a"]\n')
    assert found.source == str(tmp_path / "my-capstan.toml")
    assert found.key == 'networks."etherum/mainnet"'
    assert found.reason == (
        "is not a built-in network, so it needs chain_id, kind and family; missing: kind, family"
        '; did you mean "ethereum/mainnet"?'
    )


@pytest.mark.parametrize("name", ["ethereum", "Ethereum/mainnet", "a/b/c", "a_b/c", "/x", "a/", ""])
def test_badly_formed_network_name_is_refused(tmp_path: Path, name: str) -> None:
    found = problem(tmp_path, f'[networks."{name}"]\n')
    assert found.key == (f'networks."{name}"' if name != "ethereum" else "networks.ethereum")
    assert found.reason.startswith('a network is named "chain/network" in lower case letters, digits and hyphens')


@pytest.mark.parametrize(
    ("line", "key", "reason"),
    [
        ("chain_id = 0", "chain_id", "must be an integer of at least 1, not 0"),
        ('kind = "private"', "kind", 'must be "mainnet" or "testnet", not "private"'),
        ('family = "bitcoin"', "family", 'must be "evm" or "solana", not "bitcoin"'),
        ('native_symbol = "SEVENTEEN LETTERS"', "native_symbol", "must be a text of 1 to 16 characters, not "),
        ("native_decimals = 99", "native_decimals", "must be an integer from 0 to 36, not 99"),
        ("block_time_ms = 0", "block_time_ms", "must be an integer from 1 to 3600000, not 0"),
        (
            'entry_points = { "0.5" = "0x0" }',
            "entry_points",
            'must be a table of texts under the keys "0.6", "0.7", "0.8" and "0.9", not ',
        ),
        (
            'entry_points = { "0.6" = "0x0" }',
            'entry_points."0.6"',
            'must be an address of 0x and 40 hexadecimal digits, not "0x0"',
        ),
        (
            'multicall3 = "0xCA11bde05977b3631167028862bE2a173976CA11"',
            "multicall3",
            '"0xCA11bde05977b3631167028862bE2a173976CA11" has a wrong EIP-55 checksum',
        ),
        ("default_testnet = true", "default_testnet", 'must be false on a network of kind "mainnet"'),
        ('upstreams = "http://a"', "upstreams", "must be a list of addresses or tables"),
        ("upstreams = [5]", "upstreams[0]", "must be an address or a table"),
        ("upstreams = [{}]", "upstreams[0].url", "is missing"),
        (
            'upstreams = ["http://a", "ftp://b"]',
            "upstreams[1].url",
            'must begin with http://, https://, ws:// or wss://, not "ftp:"',
        ),
        ('upstreams = ["a.example"]', "upstreams[0].url", "must begin with http://, https://, ws:// or wss://"),
        ('upstreams = ["http://"]', "upstreams[0].url", "must name a host"),
        ('upstreams = ["http://a b/"]', "upstreams[0].url", "must name a host"),
        ('upstreams = ["http://a:0"]', "upstreams[0].url", "must have a port from 1 to 65535"),
        ('upstreams = ["http://a:99999"]', "upstreams[0].url", "must have a port from 1 to 65535"),
        ('upstreams = ["http://u:1/x@a"]', "upstreams[0].url", 'has an "@" behind the host'),
        (
            'upstreams = [{ url = "http://a", tier = -1 }]',
            "upstreams[0].tier",
            "must be an integer from 0 to 100, not -1",
        ),
        (
            'upstreams = [{ url = "http://a", timeout_seconds = 1 }]',
            "upstreams[0].connect_timeout_seconds",
            "must be at most timeout_seconds",
        ),
        (
            'upstreams = [{ url = "http://a", headers = { "bad name" = "x" } }]',
            'upstreams[0].headers."bad name"',
            "is not the name of an HTTP header",
        ),
        (
            'upstreams = [{ url = "http://a", headers = { x = "a\\r\\nb: c" } }]',
            'upstreams[0].headers."x"',
            "must hold printable characters only",
        ),
        (
            'upstreams = [{ url = "http://a", name = "n" }, { url = "http://b", name = "n" }]',
            "upstreams",
            'two upstreams have the name "n"',
        ),
    ],
)
def test_wrong_fact_or_upstream_is_refused_with_its_place(tmp_path: Path, line: str, key: str, reason: str) -> None:
    found = problem(tmp_path, f'[networks."base/mainnet"]\n{line}\n')
    assert found.source == str(tmp_path / "my-capstan.toml")
    assert found.key == f'networks."base/mainnet".{key}'
    assert found.reason.startswith(reason)


def test_problem_of_a_network_names_the_variable_it_came_from(tmp_path: Path) -> None:
    environ = {"CAPSTAN_NETWORKS__BASE_MAINNET__UPSTREAMS": '["ftp://a"]'}
    assert problem(tmp_path, environ=environ).source == (
        "environment variable CAPSTAN_NETWORKS__BASE_MAINNET__UPSTREAMS"
    )


def test_own_default_test_network_takes_the_place_of_the_builtin_one(tmp_path: Path) -> None:
    text = """
[networks."ethereum/sepolia"]
upstreams = ["http://a"]
[networks."ethereum/hoodi"]
default_testnet = true
upstreams = ["http://b"]
"""
    settings = load(tmp_path, text)
    assert settings.catalogue().default_testnet("ethereum").network == "hoodi"
    assert [n.network for n in settings.catalogue().for_chain("ethereum") if n.default_testnet] == ["hoodi"]


def test_own_default_also_replaces_a_builtin_one_that_is_not_served(tmp_path: Path) -> None:
    settings = load(tmp_path, '[networks."ethereum/hoodi"]\ndefault_testnet = true\nupstreams = ["http://b"]\n')
    assert settings.catalogue().default_testnet("ethereum").network == "hoodi"


def test_own_development_chain_takes_the_place_of_the_builtin_one(tmp_path: Path) -> None:
    text = '[networks."ethereum/local"]\nchain_id = 1337\nkind = "testnet"\nfamily = "evm"\n'
    text += 'default_in_development = true\nupstreams = ["http://127.0.0.1:8545"]\n'
    settings = load(tmp_path, 'mode = "development"\n' + text)
    assert settings.catalogue().default_testnet("ethereum").network == "local"


def test_two_own_default_test_networks_of_a_chain_are_refused(tmp_path: Path) -> None:
    text = '[networks."base/sepolia"]\ndefault_testnet = true\n[networks."base/extra"]\nchain_id = 9\n'
    text += 'kind = "testnet"\nfamily = "evm"\ndefault_testnet = true\n'
    found = problem(tmp_path, text)
    assert found.key == 'networks."base/extra".default_testnet'
    assert found.reason == "is already set on base/sepolia"


def test_development_mode_resolves_test_keys_to_the_development_chain() -> None:
    overrides = {
        "mode": "development",
        "networks.ethereum/devnet.upstreams": ["http://127.0.0.1:8545"],
    }
    settings: Settings = load_settings(None, {}, overrides)
    assert settings.catalogue().default_testnet("ethereum").name == "ethereum/devnet"
    with pytest.raises(NetworkNotConfigured):
        settings.catalogue().mainnet("ethereum")


def test_builtin_network_of_another_family_keeps_no_fact_of_the_old_one(tmp_path: Path) -> None:
    network = load(tmp_path, '[networks."base/mainnet"]\nfamily = "solana"\n').networks["base/mainnet"]
    assert (network.native_decimals, network.multicall3, network.entry_points) == (9, "", {})
