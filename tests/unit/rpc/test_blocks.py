"""Block parameters: archive reads and log ranges."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.errors import NodeError
from capstan.core.jsonrpc import decode_error
from capstan.rpc.blocks import LogRange, is_archive_read, log_range, range_advice, range_advice_from_node
from capstan.rpc.methods import STATE_READS

HEAD = 1_000


def params(*values: Any) -> bytes:
    return json.dumps(values).encode()


@pytest.mark.parametrize("method", sorted(STATE_READS))
@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("earliest", True),
        ("0x0", True),
        (hex(HEAD - 129), True),
        (hex(HEAD - 128), False),
        (hex(HEAD), False),
        (hex(HEAD + 5), False),
        ("latest", False),
        ("pending", False),
        ("safe", False),
        ("finalized", False),
        ({"blockNumber": "0x1"}, True),
        ({"blockNumber": hex(HEAD)}, False),
        ({"blockHash": "0x" + "1" * 64}, False),
        (None, False),
        (5, False),
        ("nonsense", False),
    ],
)
def test_old_state_is_an_archive_read(method: str, block: object, expected: bool) -> None:
    arguments: list[Any] = [{}] * STATE_READS[method]
    assert is_archive_read(method, params(*arguments, block), HEAD) is expected


def test_without_head_or_block_nothing_is_an_archive_read() -> None:
    assert not is_archive_read("eth_call", params({}, "0x1"), None)
    assert not is_archive_read("eth_call", params({}), HEAD)
    assert not is_archive_read("eth_call", params(), HEAD)


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getLogs", "eth_sendRawTransaction", "getBalance"])
def test_other_methods_are_no_state_reads(method: str) -> None:
    assert not is_archive_read(method, params("0x1", "0x1", "0x1"), HEAD)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_params_are_survived(value: object) -> None:
    is_archive_read("eth_call", params(value, value), HEAD)
    log_range(params(value), HEAD)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"fromBlock": "0x1", "toBlock": "0xa"}, LogRange(1, 10)),
        ({"fromBlock": "0x1"}, LogRange(1, HEAD)),
        ({"fromBlock": "earliest", "toBlock": "latest"}, LogRange(0, HEAD)),
        ({}, LogRange(HEAD, HEAD)),
        ({"fromBlock": None, "toBlock": None}, LogRange(HEAD, HEAD)),
        ({"blockHash": "0x1"}, None),
        ({"fromBlock": "0x5", "toBlock": "0x1"}, None),
        ({"fromBlock": "soon"}, None),
        ("text", None),
    ],
)
def test_log_ranges_are_read(query: object, expected: LogRange | None) -> None:
    assert log_range(params(query), HEAD) == expected


def test_a_range_to_an_unknown_head_is_unknown() -> None:
    assert log_range(params({"fromBlock": "0x1"}), None) is None
    assert log_range(params({"fromBlock": "0x1", "toBlock": "0x2"}), None) == LogRange(1, 2)


def test_advice_names_the_limit_and_a_range_that_fits() -> None:
    assert range_advice(LogRange(16, 5_000), 100) == {"maxRange": 100, "fromBlock": "0x10", "toBlock": hex(115)}
    assert range_advice(LogRange(0, 99), None) == {"maxRange": None, "fromBlock": "0x0", "toBlock": hex(49)}
    assert range_advice(None, 100) == {"maxRange": 100}


def node_error(message: str) -> NodeError:
    raw = msgspec.Raw(msgspec.json.encode({"code": -32000, "message": message}))
    return NodeError(decode_error(raw), raw)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("exceed maximum block range: 5000", {"maxRange": 5000, "fromBlock": "0x0", "toBlock": hex(4999)}),
        (
            "query returned more than 10000 results. Try with this block range [0x0, 0xff].",
            {"maxRange": None, "fromBlock": "0x0", "toBlock": "0xff"},
        ),
        ("block range is too wide", {"maxRange": None, "fromBlock": "0x0", "toBlock": hex(49_999)}),
        # A limit that the question does not exceed cannot be the one meant.
        ("block range limited to 200000", {"maxRange": None, "fromBlock": "0x0", "toBlock": hex(49_999)}),
    ],
)
def test_advice_is_drawn_from_what_the_node_says(message: str, expected: dict[str, object]) -> None:
    assert range_advice_from_node(node_error(message), LogRange(0, 99_999)) == expected
