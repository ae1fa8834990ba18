"""Hedging, broadcast, quorum, checks and retention: from the file to what the chain package is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.catalogue import builtin_networks
from capstan.catalogue.agreement import agreeable, block_position, can_agree
from capstan.chain.models import Family, Integrity, MethodGroup, NetworkSpec, Quorum
from capstan.rpc.methods import Kind, look_up
from capstan.settings import Settings
from capstan.wiring import network_specs
from tests.support.faulty_node import network_spec

from .support import load, problem, problems

THREE = 'upstreams = ["http://a.example", "http://b.example", "http://c.example"]\n'
BASE = f'[networks."base/mainnet"]\n{THREE}'


def spec_of(settings: Settings, name: str = "base/mainnet") -> NetworkSpec:
    return next(spec for spec in network_specs(settings) if spec.name == name)


def test_nothing_is_checked_unless_asked_for(tmp_path: Path) -> None:
    spec = spec_of(load(tmp_path, BASE))
    assert spec.integrity is None
    assert (spec.broadcast, spec.hedge_share, spec.max_log_range) == (3, 0.1, 10_000)
    assert {(upstream.hedge, upstream.hedge_quantile) for upstream in spec.upstreams} == {(True, 0.9)}


def test_hedging_and_broadcast_are_set_for_all_networks_or_for_one(tmp_path: Path) -> None:
    text = f"""
[network_defaults]
hedge_quantile = 0.95
hedge_share = 0.02
broadcast = 1
{BASE}
[networks."base/sepolia"]
{THREE}
hedge = false
broadcast = 2
"""
    settings = load(tmp_path, text)
    main, test = spec_of(settings), spec_of(settings, "base/sepolia")
    assert (main.broadcast, main.hedge_share) == (1, 0.02)
    assert {(upstream.hedge, upstream.hedge_quantile) for upstream in main.upstreams} == {(True, 0.95)}
    assert test.broadcast == 2
    assert not any(upstream.hedge for upstream in test.upstreams)


def test_quorum_and_verify_reach_the_network(tmp_path: Path) -> None:
    text = BASE + 'verify = true\n[networks."base/mainnet".quorum]\neth_getBalance = { agree = 2, of = 3 }\n'
    spec = spec_of(load(tmp_path, text))
    expected = Integrity({"eth_getBalance": Quorum(2, 3)}, True, frozenset({"header", "bloom", "receipts"}))
    assert spec.integrity == expected


def test_a_quorum_can_come_from_the_environment(tmp_path: Path) -> None:
    variable = {"CAPSTAN_NETWORKS__BASE_MAINNET__QUORUM": '{"eth_call": {"agree": 3, "of": 3}}'}
    spec = spec_of(load(tmp_path, BASE, environ=variable))
    assert spec.integrity == Integrity({"eth_call": Quorum(3, 3)}, False, frozenset({"header", "bloom", "receipts"}))


def test_where_logs_are_checked_the_range_is_narrower(tmp_path: Path) -> None:
    assert spec_of(load(tmp_path, BASE + "verify = true\n")).max_log_range == 100
    assert spec_of(load(tmp_path, BASE + "verify = true\nverify_log_blocks = 2000\n")).max_log_range == 2000
    assert spec_of(load(tmp_path, BASE + "verify = true\nmax_log_blocks = 50\n")).max_log_range == 50
    assert spec_of(load(tmp_path, BASE + "verify = true\nmax_log_blocks = 0\n")).max_log_range == 100


def test_chains_whose_blocks_prove_less_say_so(tmp_path: Path) -> None:
    names = ("arbitrum/mainnet", "polygon/mainnet", "solana/mainnet")
    tables = "".join(f'[networks."{name}"]\n{THREE}' for name in names)
    settings = load(tmp_path, "[network_defaults]\nverify = true\n" + tables)
    assert spec_of(settings, "arbitrum/mainnet").integrity == Integrity({}, True, frozenset({"bloom"}))
    assert spec_of(settings, "polygon/mainnet").integrity == Integrity({}, True, frozenset())
    # Nothing of Solana can be checked so.
    assert spec_of(settings, "solana/mainnet").integrity is None


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("eth_getBalance = { agree = 4, of = 3 }", "must have agree at most of: 4 of 3 cannot agree"),
        (
            "eth_getBalance = { agree = 2, of = 4 }",
            "must have agree above half of of: with 2 of 4 two answers could both win",
        ),
        ("eth_getBalance = { agree = 3, of = 4 }", "asks 4 upstreams, but the network has 3"),
        ("eth_gasPrice = { agree = 2, of = 3 }", "is not a read that nodes of base/mainnet can agree on"),
        ("eth_sendRawTransaction = { agree = 2, of = 3 }", "is not a read that nodes of base/mainnet can agree on"),
        (
            "eth_getBalanc = { agree = 2, of = 3 }",
            'is not a read that nodes of base/mainnet can agree on; did you mean "eth_getBalance"?',
        ),
    ],
)
def test_a_quorum_that_cannot_be_is_refused(tmp_path: Path, rule: str, reason: str) -> None:
    found = problems(tmp_path, f'{BASE}[networks."base/mainnet".quorum]\n{rule}\n')
    assert any(one.reason.startswith(reason) for one in found)
    assert all(one.key == f'networks."base/mainnet".quorum.{rule.partition(" ")[0]}' for one in found)


@pytest.mark.parametrize("rule", ["eth_call = 2", "eth_call = { agree = 2 }", "eth_call = { agree = 1, of = 2 }"])
def test_a_quorum_of_another_form_is_refused(tmp_path: Path, rule: str) -> None:
    found = problem(tmp_path, f'{BASE}[networks."base/mainnet".quorum]\n{rule}\n')
    assert found.reason.startswith("must be a table of rules such as { agree = 2, of = 3 }")


@pytest.mark.parametrize("setting", ["hedge_quantile = 0", "hedge_quantile = 1.5", "hedge_share = -1", "broadcast = 0"])
def test_values_out_of_range_are_refused(tmp_path: Path, setting: str) -> None:
    assert problem(tmp_path, f"[network_defaults]\n{setting}\n").reason.startswith("must be")


def test_proofs_of_a_solana_network_are_refused(tmp_path: Path) -> None:
    text = f'[networks."solana/mainnet"]\n{THREE}block_proofs = ["bloom"]\n'
    assert problem(tmp_path, text).reason == "must be empty on a Solana network"


def test_every_method_that_may_have_a_quorum_is_a_read_of_its_family() -> None:
    families: tuple[Family, ...] = ("evm", "solana")
    for family in families:
        groups: frozenset[MethodGroup] = frozenset({"debug", "trace"}) if family == "evm" else frozenset()
        spec = network_spec(family=family, method_groups=groups)
        for method in agreeable(family):
            assert look_up(spec, method).kind is Kind.READ, method
    assert not can_agree("evm", "eth_blockNumber")
    assert block_position("evm", "eth_getStorageAt") == 2


def test_every_network_says_what_its_blocks_prove() -> None:
    proofs = {network.name: set(network.block_proofs) for network in builtin_networks()}
    assert proofs["ethereum/mainnet"] == {"header", "bloom", "receipts"}
    assert all(not found for name, found in proofs.items() if name.startswith("solana/"))
