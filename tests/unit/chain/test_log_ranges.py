"""What refusals of eth_getLogs by nodes and providers say about the range they would take."""

import msgspec
import pytest
from msgspec import Raw

from capstan.chain.errors import (
    NodeError,
    error_from_node,
    is_log_count_error,
    is_log_range_error,
    log_range_limit,
    log_range_proposed,
)
from capstan.core.jsonrpc import ErrorObject


def refusal(message: str, code: int = -32000) -> NodeError:
    error = error_from_node("evm", "node", ErrorObject(code, message), Raw(msgspec.json.encode({"code": code})))
    assert isinstance(error, NodeError), f"{error!r}: another upstream would be asked in vain"
    return error


@pytest.mark.parametrize(
    ("message", "limit", "many_logs"),
    [
        ("eth_getLogs is limited to a 10,000 range", 10_000, False),
        ("eth_getLogs is limited to a 5 range", 5, False),
        ("exceed maximum block range: 50000", 50_000, False),
        ("query exceeds max block range 1000", 1_000, False),
        ("Max range: 800", 800, False),
        ("block range is too wide", None, False),
        ("requested too many blocks from 0 to 16777216, maximum is set to 2048", None, False),
        ("query returned more than 10000 results", None, True),
        (
            "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on "
            "the response size",
            2_000,
            True,
        ),
        ("query exceeds max results 20000, retry with the range 12-34", None, True),
    ],
)
def test_the_limit_in_a_refusal(message: str, limit: int | None, many_logs: bool) -> None:
    error = refusal(message)
    assert is_log_range_error(error)
    found = log_range_limit(error)
    assert found == limit or (many_logs and limit is None)
    assert is_log_count_error(error) == many_logs


def test_the_range_that_a_node_proposes() -> None:
    message = "query returned more than 10000 results. Try with this block range [0xA1, 0xff]."
    assert log_range_proposed(refusal(message)) == ("0xa1", "0xff")
    assert log_range_proposed(refusal("block range is too wide")) is None
