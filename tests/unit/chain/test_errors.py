"""Which errors of nodes are final, worth another node, or the provider's own refusal."""

import msgspec
import pytest

from capstan.chain.errors import (
    ChainError,
    NodeError,
    NodeUnable,
    UpstreamRefused,
    error_from_node,
    is_already_known,
    is_log_range_error,
    is_nonce_used,
)
from capstan.chain.models import Family
from capstan.core.jsonrpc import decode_error


def classified(code: int, message: str, family: Family = "evm") -> ChainError:
    raw = msgspec.Raw(msgspec.json.encode({"code": code, "message": message}))
    return error_from_node(family, "node", decode_error(raw), raw)


FINAL = [
    (3, "header not found"),
    (3, "execution reverted: header not found"),
    (-32000, "execution reverted: rate limit exceeded"),
    (-32603, "Error: VM Exception while processing transaction: reverted with reason string 'x'"),
    (-32000, "nonce too low: next nonce 5, tx nonce 1"),
    (-32000, "insufficient funds for gas * price + value"),
    (-32000, "already known"),
    (-32000, "replacement transaction underpriced"),
    (-32000, "intrinsic gas too low"),
    (-32000, "gas required exceeds allowance (21000)"),
    (-32000, "filter not found"),
    (-32602, "invalid argument 0: hex string has length 2, want 40"),
    (-32602, "missing value for required argument 1"),
    (-32600, "invalid request"),
    (-32005, "query returned more than 10000 results"),
    (-32000, "exceed maximum block range: 5000"),
    (-32000, "something never seen before"),
]
UNABLE = [
    (-32000, "header not found"),
    (-32000, "missing trie node 1a2b (path ) state 0x1 is not available"),
    (-32000, "required historical state unavailable (reexec=128)"),
    (-32000, "block not found: 0x123"),
    (-32001, "resource not found"),
    (-32603, "Internal error"),
    (-32601, "the method debug_traceCall does not exist/is not available"),
    (-32004, "this request method is not supported"),
    (-32002, "request timed out"),
    (-32000, "distance to target block exceeds maximum proof window"),
]
REFUSED = [
    (429, "Too Many Requests"),
    (-32005, "limit exceeded"),
    (-32005, "daily request count exceeded, request rate limited"),
    (-32000, "Your app has exceeded its compute units per second capacity"),
    (-32000, "rate limit reached"),
    (-32600, "Must be authenticated! Invalid API key"),
    (-32000, "Archive requests are not included in your current plan"),
]


@pytest.mark.parametrize(("code", "message"), FINAL)
def test_errors_of_the_call_are_final(code: int, message: str) -> None:
    error = classified(code, message)
    assert type(error) is NodeError
    assert not error.may_retry_elsewhere


@pytest.mark.parametrize(("code", "message"), UNABLE)
def test_errors_of_the_node_are_worth_another_node(code: int, message: str) -> None:
    error = classified(code, message)
    assert type(error) is NodeUnable
    assert error.may_retry_elsewhere
    assert (error.code, error.message) == (code, message)


@pytest.mark.parametrize(("code", "message"), REFUSED)
def test_a_providers_refusal_is_no_answer_and_is_not_shown(code: int, message: str) -> None:
    error = classified(code, message)
    assert type(error) is UpstreamRefused
    assert error.may_retry_elsewhere
    assert not error.maybe_delivered
    assert message not in str(error)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (-32002, "Transaction simulation failed: Blockhash not found", NodeError),
        (-32003, "Transaction signature verification failure", NodeError),
        (-32007, "Slot 1 was skipped, or missing due to ledger jump to recent snapshot", NodeError),
        (-32015, "Transaction version (0) is not supported by the requesting client", NodeError),
        (-32602, "Invalid param: Invalid", NodeError),
        (-32004, "Block not available for slot 5", NodeUnable),
        (-32005, "Node is behind by 42 slots", NodeUnable),
        (-32009, "Slot 1 was skipped, or missing in long-term storage", NodeUnable),
        (-32016, "Minimum context slot has not been reached", NodeUnable),
        (429, "Too many requests for a specific RPC call", UpstreamRefused),
    ],
)
def test_solana_has_codes_of_its_own(code: int, message: str, kind: type[ChainError]) -> None:
    assert type(classified(code, message, "solana")) is kind


def node_error(code: int, message: str) -> NodeError:
    error = classified(code, message)
    assert isinstance(error, NodeError)
    return error


@pytest.mark.parametrize(
    "message",
    [
        "query returned more than 10000 results. Try with this block range [0x1, 0x2].",
        "exceed maximum block range: 5000",
        "block range is too wide",
        "eth_getLogs and eth_newFilter are limited to a 10,000 blocks range; max range exceeded",
    ],
)
def test_log_range_errors_are_recognised(message: str) -> None:
    assert is_log_range_error(node_error(-32000, message))


def test_a_revert_is_no_log_range_error() -> None:
    assert not is_log_range_error(node_error(3, "execution reverted: block range"))
    assert not is_log_range_error(node_error(-32000, "header not found"))


@pytest.mark.parametrize("message", ["already known", "ALREADY_EXISTS: already known", "Known transaction: 0x12"])
def test_already_known_is_recognised(message: str) -> None:
    assert is_already_known(node_error(-32000, message))
    assert not is_nonce_used(node_error(-32000, message))


@pytest.mark.parametrize(
    "message", ["nonce too low: address 0x1, tx: 0 state: 1", "Nonce too low. Expected nonce to be 5 but got 4."]
)
def test_a_used_nonce_is_recognised(message: str) -> None:
    assert is_nonce_used(node_error(-32000, message))
    assert not is_already_known(node_error(-32000, message))
