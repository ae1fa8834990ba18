"""The method tables."""

from typing import Any

import pytest

from capstan.chain.models import UpstreamSpec
from capstan.rpc.methods import READ_SCOPE, WRITE_SCOPE, Kind, Method, look_up
from tests.support.faulty_node import network_spec

NODE = UpstreamSpec(name="node", url="http://127.0.0.1:9")


def kind(name: str, **changes: Any) -> Kind:
    return look_up(network_spec(NODE, **changes), name).kind


@pytest.mark.parametrize(
    "name", ["eth_call", "eth_getBalance", "eth_getLogs", "net_version", "web3_sha3", "eth_simulateV1"]
)
def test_reads_need_the_read_scope(name: str) -> None:
    assert look_up(network_spec(NODE), name) == Method(Kind.READ, READ_SCOPE)


@pytest.mark.parametrize(
    "name", ["eth_sendRawTransaction", "eth_sendRawTransactionSync", "eth_sendRawTransactionConditional"]
)
def test_submitting_needs_the_write_scope(name: str) -> None:
    assert look_up(network_spec(NODE), name) == Method(Kind.SUBMIT, WRITE_SCOPE)


@pytest.mark.parametrize("name", ["eth_getFilterChanges", "eth_uninstallFilter"])
def test_filters_are_read_but_not_repeated(name: str) -> None:
    assert look_up(network_spec(NODE), name) == Method(Kind.ACTION, READ_SCOPE)


NEVER = [
    "admin_peers",
    "personal_unlockAccount",
    "miner_start",
    "engine_newPayloadV3",
    "eth_sign",
    "eth_signTransaction",
    "eth_signTypedData_v4",
    "eth_sendTransaction",
]


@pytest.mark.parametrize("name", NEVER)
def test_administration_and_keys_are_never_reached(name: str) -> None:
    everything: dict[str, Any] = {
        "method_groups": frozenset({"debug", "trace", "txpool"}),
        "dev_methods": True,
        "extra_methods": frozenset({name}),
    }
    assert kind(name, **everything) is Kind.BLOCKED


@pytest.mark.parametrize(
    ("group", "name"), [("debug", "debug_traceTransaction"), ("trace", "trace_block"), ("txpool", "txpool_status")]
)
def test_a_group_is_reached_only_where_it_is_enabled(group: str, name: str) -> None:
    assert kind(name) is Kind.DISABLED
    assert kind(name, method_groups=frozenset({group})) is Kind.READ
    others = frozenset({"debug", "trace", "txpool"} - {group})
    assert kind(name, method_groups=others) is Kind.DISABLED


@pytest.mark.parametrize("name", ["debug_setHead", "debug_startCPUProfile", "debug_chaindbCompact", "debug_nonsense"])
def test_the_administration_inside_a_group_stays_out(name: str) -> None:
    assert kind(name, method_groups=frozenset({"debug"})) is Kind.UNKNOWN


@pytest.mark.parametrize("name", ["hardhat_setBalance", "evm_mine", "anvil_mine"])
def test_development_methods_exist_on_development_chains_only(name: str) -> None:
    assert kind(name) is Kind.UNKNOWN
    assert look_up(network_spec(NODE, dev_methods=True), name) == Method(Kind.ACTION, WRITE_SCOPE)


@pytest.mark.parametrize(
    "name", ["", "eth_", "eth_nonsense", "getBalance", "ETH_CALL", "linea_estimateGas", "rpc_modules"]
)
def test_other_names_are_unknown(name: str) -> None:
    assert kind(name) is Kind.UNKNOWN


def test_a_network_may_have_methods_of_its_own() -> None:
    assert kind("linea_estimateGas", extra_methods=frozenset({"linea_estimateGas"})) is Kind.READ


def test_accounts_and_subscriptions() -> None:
    assert kind("eth_accounts") is Kind.NO_ACCOUNTS
    assert kind("eth_subscribe") is kind("eth_unsubscribe") is Kind.SUBSCRIPTION


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("getBalance", Method(Kind.READ)),
        ("simulateTransaction", Method(Kind.READ)),
        ("sendTransaction", Method(Kind.SUBMIT, WRITE_SCOPE)),
        ("requestAirdrop", Method(Kind.ACTION, WRITE_SCOPE)),
        ("accountSubscribe", Method(Kind.SUBSCRIPTION)),
        ("eth_call", Method(Kind.UNKNOWN)),
        ("debug_traceTransaction", Method(Kind.UNKNOWN)),
        ("evm_mine", Method(Kind.UNKNOWN)),
    ],
)
def test_solana_has_a_table_of_its_own(name: str, method: Method) -> None:
    groups = frozenset({"debug"})
    spec = network_spec(NODE, family="solana", dev_methods=True, method_groups=groups)
    assert look_up(spec, name) == method
