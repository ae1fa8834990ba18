"""Compute units follow the price list, and an operator's changes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from capstan.catalogue.units import UnitPrices, UnitTable, builtin_prices, load_units

PRICES = {
    0: ["eth_chainId", "net_version", "eth_syncing"],
    1: ["eth_blockNumber", "eth_subscribe", "eth_feeHistory", "eth_maxPriorityFeePerGas", "eth_supportedEntryPoints"],
    2: ["eth_getBalance", "eth_getBlockByNumber", "eth_getTransactionByHash", "eth_getTransactionReceipt"],
    3: ["eth_call"],
    4: ["eth_sendRawTransaction", "debug_traceTransaction", "trace_block", "getBlock", "getTransaction"],
    6: ["eth_getLogs"],
    10: ["eth_sendUserOperation", "eth_estimateUserOperationGas"],
    16: ["getSupply", "getProgramAccounts"],
}
REST = {
    "rest.data_read": 2,
    "rest.list": 10,
    "rest.gas_prices": 1,
    "rest.sponsor": 10,
    "rest.control": 1,
    "ws.push": 1,
}
ARCHIVE = {
    "eth_call": 30,
    "eth_getBalance": 20,
    "eth_getCode": 20,
    "eth_getStorageAt": 20,
    "eth_getTransactionCount": 20,
    "eth_getProof": 20,
    "eth_estimateGas": 20,
    "debug_traceCall": 40,
}
TABLE = load_units(archive_factor=10)


@pytest.mark.parametrize(("cost", "methods"), PRICES.items())
def test_methods_cost_what_the_price_list_says(cost: int, methods: list[str]) -> None:
    assert {method: TABLE.cost(method) for method in methods} == dict.fromkeys(methods, cost)


@pytest.mark.parametrize(("name", "cost"), REST.items())
def test_rest_calls_and_pushed_messages_have_prices(name: str, cost: int) -> None:
    assert TABLE.cost(name) == cost


@pytest.mark.parametrize("method", ["eth_gasPrice", "eth_newFilter", "linea_estimateGas", "getAccountInfo", "x", ""])
def test_filters_and_methods_that_are_not_listed_cost_two(method: str) -> None:
    assert TABLE.cost(method) == 2


@pytest.mark.parametrize(("method", "cost"), ARCHIVE.items())
def test_state_reads_at_old_blocks_cost_ten_times(method: str, cost: int) -> None:
    assert TABLE.cost(method, archive=True) == cost
    assert TABLE.cost(method) * 10 == cost
    assert TABLE.is_archive_priced(method)


@pytest.mark.parametrize("method", ["eth_blockNumber", "eth_getLogs", "debug_traceBlockByNumber", "unheard_of"])
def test_other_methods_cost_the_same_at_old_blocks(method: str) -> None:
    assert TABLE.cost(method, archive=True) == TABLE.cost(method)
    assert not TABLE.is_archive_priced(method)


def test_exactly_the_decided_methods_are_archive_priced() -> None:
    assert set(builtin_prices().archive_methods) == set(ARCHIVE)


def test_override_changes_one_price_and_its_archive_price() -> None:
    table = load_units(archive_factor=5, overrides={"eth_call": 7, "made_up": 9, "rest.list": 0})
    assert table.cost("eth_call") == 7
    assert table.cost("eth_call", archive=True) == 35
    assert table.cost("made_up") == 9
    assert table.cost("rest.list") == 0
    assert table.cost("eth_getLogs") == 6


def test_override_of_a_namespace_changes_all_of_it_but_listed_methods() -> None:
    table = load_units(archive_factor=10, overrides={"debug_*": 50, "acme_*": 3, "debug_traceCall": 1})
    assert table.cost("debug_traceTransaction") == 50
    assert table.cost("acme_anything") == 3
    assert table.cost("debug_traceCall") == 1
    assert table.cost("debug_traceCall", archive=True) == 10
    assert table.cost("trace_block") == 4


@hypothesis_settings(deadline=None)
@given(st.text(), st.booleans())
def test_any_text_has_a_price(method: str, archive: bool) -> None:
    assert TABLE.cost(method, archive=archive) >= 0


def test_price_file_with_a_negative_price_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"methods"):
        msgspec.convert(
            {"default": 2, "archive_methods": [], "prefixes": {}, "methods": {"eth_call": -1}},
            UnitPrices,
        )


def test_table_without_overrides_is_the_price_list() -> None:
    prices = builtin_prices()
    table = UnitTable(prices, archive_factor=1)
    assert all(table.cost(name) == cost for name, cost in prices.methods.items())
