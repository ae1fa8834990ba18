"""The pure parts of the checks: pinning, filters, sameness, and the claims that need no node."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.core.jsonrpc import ErrorObject
from capstan.rpc.integrity.claims import Refuted, check_contents, facts_of
from capstan.rpc.integrity.filters import read_filter
from capstan.rpc.integrity.pinning import NotPinnable, pin
from capstan.rpc.integrity.sameness import same_key, shortened
from tests.unit.rpc.integrity.chain import FixedView

HEAD = 100
ADDRESS = "0x" + "aB" * 20
HASH = "0x" + "cd" * 32


def view() -> FixedView:
    found = FixedView(["0x" + "00" * 32] * (HEAD + 1), 10)
    found.safe_number, found.finalized_number = 90, 80
    return found


def pinned(method: str, *params: Any) -> tuple[list[Any], int | None]:
    found = pin("evm", method, json.dumps(params).encode(), HEAD, view())
    return json.loads(found.params), found.block


@pytest.mark.parametrize(
    ("method", "params", "expected", "block"),
    [
        ("eth_getBalance", [ADDRESS, "latest"], [ADDRESS, "0x64"], 100),
        ("eth_getBalance", [ADDRESS], [ADDRESS, "0x64"], 100),
        ("eth_getBalance", [ADDRESS, None], [ADDRESS, "0x64"], 100),
        ("eth_getBalance", [ADDRESS, "safe"], [ADDRESS, "0x5a"], 90),
        ("eth_getBalance", [ADDRESS, "finalized"], [ADDRESS, "0x50"], 80),
        ("eth_getBalance", [ADDRESS, "earliest"], [ADDRESS, "0x0"], 0),
        ("eth_getBalance", [ADDRESS, "0x7"], [ADDRESS, "0x7"], 7),
        ("eth_getBalance", [ADDRESS, "0xfff"], [ADDRESS, "0xfff"], 100),
        ("eth_getBalance", [ADDRESS, {"blockHash": HASH}], [ADDRESS, {"blockHash": HASH}], 100),
        ("eth_getBalance", [ADDRESS, {"blockNumber": "0x7"}], [ADDRESS, {"blockNumber": "0x7"}], 7),
        ("eth_getStorageAt", [ADDRESS, "0x0"], [ADDRESS, "0x0", "0x64"], 100),
        ("eth_call", [{"to": ADDRESS}, "latest", {}], [{"to": ADDRESS}, "0x64", {}], 100),
        ("eth_getBlockReceipts", [HASH], [HASH], 100),
        ("eth_getTransactionReceipt", [HASH], [HASH], 100),
        ("eth_getLogs", [{}], [{"fromBlock": "0x64", "toBlock": "0x64"}], 100),
        ("eth_getLogs", [{"fromBlock": "0x5"}], [{"fromBlock": "0x5", "toBlock": "0x64"}], 100),
        ("eth_getLogs", [{"fromBlock": "0x5", "toBlock": "0xfff"}], [{"fromBlock": "0x5", "toBlock": "0x64"}], 100),
        ("eth_getLogs", [{"fromBlock": "0x5", "toBlock": "0x6"}], [{"fromBlock": "0x5", "toBlock": "0x6"}], 6),
        ("eth_getLogs", [{"fromBlock": "0x65"}], [{"fromBlock": "0x65"}], 100),
        ("eth_getLogs", [{"blockHash": HASH}], [{"blockHash": HASH}], 100),
    ],
)
def test_a_call_is_about_one_block(method: str, params: list[Any], expected: list[Any], block: int) -> None:
    assert pinned(method, *params) == (expected, block)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_getBalance", [ADDRESS, "pending"]),
        ("eth_getBalance", [ADDRESS, 7]),
        ("eth_getBalance", []),
        ("eth_getLogs", [{"toBlock": "pending"}]),
        ("eth_getLogs", []),
    ],
)
def test_what_names_no_block_is_not_checked(method: str, params: list[Any]) -> None:
    with pytest.raises(NotPinnable):
        pinned(method, *params)


@pytest.mark.parametrize("tag", ["safe", "finalized"])
@pytest.mark.parametrize("method", ["eth_getBalance", "eth_getLogs"])
def test_a_block_that_is_not_known_yet_is_an_error_and_not_passed_on_unchecked(tag: str, method: str) -> None:
    unsure = view()
    unsure.safe_number = unsure.finalized_number = None
    params = [{"fromBlock": "0x1", "toBlock": tag}] if method == "eth_getLogs" else [ADDRESS, tag]
    with pytest.raises(EveryUpstreamFailed, match=f"{tag} block is not known yet"):
        pin("evm", method, json.dumps(params).encode(), HEAD, unsure)


def test_on_solana_any_upstream_will_do() -> None:
    assert pin("solana", "getBlock", b"[5]", HEAD, view()) == pin("solana", "getBlock", b"[5]", 7, view())


def test_a_filter_matches_as_nodes_match() -> None:
    topics = ["0x" + f"{number:02x}" * 32 for number in range(4)]
    log = {"address": ADDRESS.lower(), "topics": topics[:3], "data": "0x"}
    for wanted, matches in (
        ({}, True),
        ({"address": ADDRESS}, True),
        ({"address": [ADDRESS, "0x" + "00" * 20]}, True),
        ({"address": "0x" + "00" * 20}, False),
        ({"address": []}, True),
        ({"topics": []}, True),
        ({"topics": [None, topics[1]]}, True),
        ({"topics": [[topics[3], topics[0]]]}, True),
        ({"topics": [topics[1]]}, False),
        ({"topics": [None, None, None, None]}, False),
        ({"topics": [[], None, topics[2]]}, True),
    ):
        argument = {"fromBlock": "0x0", "toBlock": "0x1", **wanted}
        assert read_filter(json.dumps([argument]).encode()).matches(log) is matches, wanted


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.from_regex(r"0x[0-9a-f]{0,8}\Z"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
)


def spelled_otherwise(value: Any) -> Any:
    """The same JSON in another form: keys turned round, hex in capitals, nulls added."""
    if isinstance(value, dict):
        return {key: spelled_otherwise(value[key]) for key in reversed(value)} | {"added null member": None}
    if isinstance(value, list):
        return [spelled_otherwise(element) for element in value]
    if isinstance(value, str) and value.startswith("0x") and all(one in "0123456789abcdef" for one in value[2:]):
        return "0x" + value[2:].upper()
    return value


@given(json_values)
def test_the_same_answer_in_another_form_is_the_same(value: Any) -> None:
    one, other = Raw(msgspec.json.encode(value)), Raw(json.dumps(spelled_otherwise(value), indent=1).encode())
    assert same_key(one) == same_key(other)


@given(json_values, json_values)
def test_another_answer_is_not_the_same(one: Any, other: Any) -> None:
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: bare(member) for key, member in value.items() if member is not None}
        return [bare(element) for element in value] if isinstance(value, list) else value

    keys = [same_key(Raw(msgspec.json.encode(value))) for value in (one, other)]
    if msgspec.json.encode(bare(one), order="deterministic") == msgspec.json.encode(bare(other), order="deterministic"):
        assert keys[0] == keys[1]
    else:
        assert keys[0] != keys[1]


def failure(message: str, data: Any = None) -> NodeError:
    members = {} if data is None else {"data": Raw(msgspec.json.encode(data))}
    return NodeError(ErrorObject(3, message, **members), Raw(b"{}"))


def test_reverts_are_the_same_when_their_data_is() -> None:
    assert same_key(failure("execution reverted", "0xAB")) == same_key(failure("VM Exception: revert", "0xab"))
    assert same_key(failure("reverted", {"data": "0xab"})) == same_key(failure("reverted", "0xab"))
    assert same_key(failure("reverted", "0xab")) != same_key(failure("reverted", "0xac"))
    assert same_key(failure("nonce too low")) == same_key(failure("insufficient funds"))
    assert same_key(failure("nonce too low")) != same_key(Raw(b'"error"'))


def test_long_answers_are_cut_for_the_log() -> None:
    assert len(shortened(Raw(b'"' + b"a" * 100_000 + b'"'))) == 201
    assert shortened(Raw(b'"0x1"')) == '"0x1"'


def test_a_header_alone_has_no_transactions_to_check() -> None:
    check_contents({"number": "0x5", "transactionsRoot": HASH})
    with pytest.raises(Refuted):
        check_contents({"number": "0x5", "transactionsRoot": HASH, "transactions": [], "hash": HASH})
    with pytest.raises(Refuted, match="not a block"):
        facts_of({"number": "0x5"})


@pytest.mark.parametrize("given", [None, "0x", {}, [HASH], [HASH, {}], [{}, HASH], [None]])
def test_transactions_that_were_asked_for_in_full_must_be_given_so(given: Any) -> None:
    block = {"number": "0x5", "transactionsRoot": HASH, "transactions": given, "hash": HASH}
    with pytest.raises(Refuted):
        check_contents(block, full=True)
