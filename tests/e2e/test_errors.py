"""Every bad request gets the error body, the right status and the rate-limit headers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http import assert_error, assert_standard_headers, exchange
from tests.support.service import Service, run_json


class Target:
    """A running service with keys of several kinds."""

    def __init__(self, service: Service, keys: dict[str, str]) -> None:
        self.service = service
        self.keys = keys
        self.client = httpx.Client(base_url=service.origin, timeout=20)

    def request(self, method: str, path: str, *, key: str | None = "test", **options: Any) -> httpx.Response:
        """One request, with one of the keys or without."""
        headers = dict(options.pop("headers", {}))
        if key is not None:
            headers["X-API-Key"] = self.keys[key]
        return self.client.request(method, path, headers=headers, **options)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, evm_devnet: Any) -> Iterator[Target]:
    """One service for all tests of this file, on the development chain."""
    directory: Path = tmp_path_factory.mktemp("errors")
    data = directory / "data"
    environment = {
        "CAPSTAN_MODE": "development",
        "CAPSTAN_LIMITS__ANONYMOUS_REQUESTS_PER_SECOND": "1000",
        "CAPSTAN_SERVER__OPERATOR_TOKEN": "operator-token-for-tests",
        "CAPSTAN_NETWORKS": f'{{"ethereum/devnet" = {{upstreams = ["{evm_devnet.url}"]}}}}',
    }
    make = ["keys", "create", "--plan", "enterprise", "--data-dir", str(data)]
    keys = {
        "test": run_json(*make, "--mode", "test")["key"],
        "live": run_json(*make, "--mode", "live")["key"],
        "wallets": run_json(*make, "--mode", "test", "--scope", "wallets:manage")["key"],
        "reader": run_json(*make, "--mode", "test", "--scope", "rpc:read")["key"],
    }
    service = Service(["--data-dir", str(data)], environment, directory)
    try:
        yield Target(service, keys)
    finally:
        service.kill()


RPC = "/v1/rpc/ethereum/devnet"
GAS = "/v1/gas/ethereum/prices"
CALL = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
SEND = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendRawTransaction", "params": ["0x00"]}

# (what it is, method, path, options, status, code, a word the message must hold)
BAD: list[tuple[str, str, str, dict[str, Any], int, str, str]] = [
    ("no key", "GET", GAS, {"key": None}, 401, "unauthorized", "X-API-Key"),
    ("no key on rpc", "POST", RPC, {"key": None, "json": CALL}, 401, "unauthorized", "X-API-Key"),
    ("no key on account", "GET", "/v1/account", {"key": None}, 401, "unauthorized", "key"),
    ("empty key", "GET", GAS, {"key": None, "headers": {"X-API-Key": ""}}, 401, "unauthorized", "key"),
    ("invented key", "GET", GAS, {"key": None, "headers": {"X-API-Key": "svc_test_x"}}, 401, "unauthorized", "valid"),
    (
        "well-formed key that does not exist",
        "GET",
        GAS,
        {"key": None, "headers": {"X-API-Key": "svc_test_0os21GIJOmwAQtjNa06FI1wVKdwdlaWp07vlQg"}},
        401,
        "unauthorized",
        "valid",
    ),
    (
        "bearer nonsense",
        "GET",
        GAS,
        {"key": None, "headers": {"Authorization": "Bearer no"}},
        401,
        "unauthorized",
        "valid",
    ),
    (
        "basic scheme",
        "GET",
        GAS,
        {"key": None, "headers": {"Authorization": "Basic eDp5"}},
        401,
        "unauthorized",
        "bearer",
    ),
    ("bare authorization", "GET", GAS, {"key": None, "headers": {"Authorization": "x"}}, 401, "unauthorized", "bearer"),
    ("two different keys", "GET", GAS, {"headers": {"Authorization": "Bearer other"}}, 401, "unauthorized", "two"),
    ("key in the query only", "GET", GAS + "?apiKey=svc_test_x", {"key": None}, 401, "unauthorized", "key"),
    ("scope missing on gas", "GET", GAS, {"key": "wallets"}, 403, "forbidden", "rpc:read"),
    ("scope missing on rpc", "POST", RPC, {"key": "wallets", "json": CALL}, 403, "forbidden", "rpc:read"),
    ("write scope missing", "POST", RPC, {"key": "reader", "json": SEND}, 403, "forbidden", "rpc:write"),
    ("test key on mainnet", "POST", "/v1/rpc/ethereum/mainnet", {"json": CALL}, 403, "forbidden", "svc_live_"),
    ("test key on mainnet by query", "GET", GAS + "?network=mainnet", {}, 403, "forbidden", "svc_live_"),
    ("unknown chain", "POST", "/v1/rpc/dogecoin/mainnet", {"json": CALL}, 404, "not_found", "dogecoin"),
    ("unknown network", "POST", "/v1/rpc/ethereum/ropsten", {"json": CALL}, 404, "not_found", "ropsten"),
    ("unknown chain on gas", "GET", "/v1/gas/dogecoin/prices", {}, 404, "not_found", "dogecoin"),
    ("unknown network by query", "GET", GAS + "?network=ropsten", {}, 404, "not_found", "ropsten"),
    ("known, not configured", "POST", "/v1/rpc/base/sepolia", {"json": CALL}, 404, "not_found", "not configured"),
    ("live key, mainnet not configured", "GET", GAS, {"key": "live"}, 404, "not_found", "not configured"),
    ("no gas on another family", "GET", "/v1/gas/solana/prices", {}, 404, "not_found", "solana"),
    ("unknown path", "GET", "/v1/nothing", {}, 404, "not_found", "/v1/nothing"),
    ("unknown path without key", "GET", "/v1/nothing", {"key": None}, 404, "not_found", "/v1/nothing"),
    ("unknown root path", "GET", "/nothing", {"key": None}, 404, "not_found", "/nothing"),
    ("the root", "GET", "/", {"key": None}, 404, "not_found", "/docs"),
    ("the framework's own schema", "GET", "/internal/schema", {"key": None}, 404, "not_found", "nothing"),
    ("a file of it", "GET", "/internal/schema/openapi.json", {}, 404, "not_found", "nothing"),
    ("another version", "GET", "/v2/account", {}, 404, "not_found", "/v2/account"),
    ("path with odd characters", "GET", "/v1/%00%ff%3Cscript%3E", {}, 404, "not_found", "nothing"),
    ("long path", "GET", "/v1/" + "x" * 4000, {}, 404, "not_found", "nothing"),
    ("missing file of the reference", "GET", "/docs/none.css", {"key": None}, 404, "not_found", "docs"),
    ("wrong method on rpc", "GET", RPC, {}, 405, "method_not_allowed", "GET"),
    ("wrong method on gas", "POST", GAS, {"json": {}}, 405, "method_not_allowed", "POST"),
    ("wrong method on account", "DELETE", "/v1/account", {}, 405, "method_not_allowed", "DELETE"),
    ("unusual method", "PROPFIND", "/v1/account", {}, 405, "method_not_allowed", "PROPFIND"),
    ("wrong method on health", "POST", "/healthz", {"key": None}, 405, "method_not_allowed", "POST"),
    ("no JSON", "POST", RPC, {"content": b"{"}, 400, "invalid_request", "JSON"),
    ("no text at all", "POST", RPC, {"content": b""}, 400, "invalid_request", ""),
    ("invalid UTF-8", "POST", RPC, {"content": b"\xff\xfe"}, 400, "invalid_request", ""),
    ("a number", "POST", RPC, {"content": b"1"}, 400, "invalid_request", ""),
    ("a string", "POST", RPC, {"content": b'"x"'}, 400, "invalid_request", ""),
    ("no method", "POST", RPC, {"json": {"jsonrpc": "2.0", "id": 1}}, 400, "invalid_request", "method"),
    ("method is a number", "POST", RPC, {"json": {"id": 1, "method": 5}}, 400, "invalid_request", "method"),
    ("empty batch", "POST", RPC, {"json": []}, 400, "invalid_request", "batch"),
    ("batch too large", "POST", RPC, {"json": [CALL] * 101}, 400, "invalid_request", "100"),
    ("nested too deep", "POST", RPC, {"content": b"[" * 5000 + b"]" * 5000}, 400, "invalid_request", ""),
    ("body too large", "POST", RPC, {"content": b" " * 5242881}, 413, "payload_too_large", "large"),
    ("bad query value", "GET", "/v1/networks?served=perhaps", {}, 400, "invalid_request", "served"),
    ("metrics without token", "GET", "/metrics", {"key": None}, 401, "unauthorized", "operator"),
    ("metrics with an API key", "GET", "/metrics", {}, 401, "unauthorized", "operator"),
]


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code", "word"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_bad_request_gets_the_error_body(
    target: Target, method: str, path: str, options: dict[str, Any], status: int, code: str, word: str
) -> None:
    message = assert_error(target.request(method, path, **options), status, code)
    assert word in message


def test_there_are_at_least_forty_of_them() -> None:
    assert len(BAD) >= 40


RAW: list[tuple[str, bytes, int, str]] = [
    ("not HTTP", b"GARBAGE\r\n\r\n", 400, "invalid_request"),
    ("binary", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, "invalid_request"),
    ("bad header", b"GET /v1/account HTTP/1.1\r\nHost: x\r\nbad header: x\r\n\r\n", 400, "invalid_request"),
    (
        "two lengths",
        b"POST /v1/rpc/ethereum/devnet HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        400,
        "invalid_request",
    ),
    ("bad length", b"POST /v1/rpc/a/b HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400, "invalid_request"),
    ("huge head", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000, 431, "headers_too_large"),
]


@pytest.mark.parametrize(("request_bytes", "status", "code"), [row[1:] for row in RAW], ids=[row[0] for row in RAW])
def test_what_is_not_http_gets_the_error_body_too(target: Target, request_bytes: bytes, status: int, code: str) -> None:
    assert_error(exchange(target.service.origin, request_bytes), status, code)


def test_a_message_never_repeats_a_key(target: Target) -> None:
    secret = target.keys["test"]
    answer = target.request("GET", f"/v1/{secret}/x")
    assert secret not in answer.text
    assert secret not in target.service.log_text
    assert "svc_test_[redacted]" in answer.text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/v1/openapi.json", "/v1/account", GAS])
def test_head_answers_as_get_without_the_body(target: Target, path: str) -> None:
    answer = target.request("HEAD", path)
    assert answer.status_code == 200
    assert answer.content == b""
    assert_standard_headers(answer)


def test_a_body_in_a_great_many_pieces_stalls_nobody(target: Target) -> None:
    # Copying all that came before with each piece would take minutes for so many.
    pieces = b"1\r\n \r\n" * 1_000_000
    head = b"POST /v1/rpc/ethereum/devnet HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    began = time.monotonic()
    answer = exchange(target.service.origin, head + pieces + b"0\r\n\r\n", seconds=60)
    assert_error(answer, 401, "unauthorized")
    assert time.monotonic() - began < 30


def test_a_body_over_the_limit_is_counted_against_its_key(target: Target) -> None:
    answer = target.request("POST", RPC, content=b" " * 5_242_881)
    assert_error(answer, 413, "payload_too_large")
    # The key's account has no limit; an address has one.
    assert answer.headers["x-ratelimit-limit"] == "0"


def test_garbage_after_a_request_does_not_take_its_answer_away(target: Target) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x%040x","latest"]}' % 77
    request = b"POST /v1/rpc/ethereum/devnet HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        target.keys["test"].encode(),
        len(body),
        body,
    )
    answer = exchange(target.service.origin, request + b"GARBAGE GARBAGE\r\n\r\n")
    assert answer.status == 200
    assert answer.json()["result"] == "0x0"


def test_wrong_methods_name_the_right_ones(target: Target) -> None:
    assert target.request("DELETE", "/v1/account").headers["allow"] == "GET, OPTIONS"


def test_the_request_id_is_the_callers_if_it_is_sane(target: Target) -> None:
    mine = target.request("GET", "/v1/account", headers={"X-Request-Id": "my-request-0001"})
    assert mine.headers["x-request-id"] == "my-request-0001"
    odd = target.request("GET", "/v1/account", headers={"X-Request-Id": "a b<>"})
    assert odd.headers["x-request-id"].startswith("req_")


def test_both_header_forms_work_alone_and_together(target: Target) -> None:
    key = target.keys["test"]
    for headers in (
        {"X-API-Key": key},
        {"Authorization": f"Bearer {key}"},
        {"authorization": f"bearer {key}"},
        {"X-API-Key": key, "Authorization": f"Bearer {key}"},
    ):
        answer = target.request("GET", GAS, key=None, headers=headers)
        assert answer.status_code == 200, answer.text
        assert_standard_headers(answer)


def test_metrics_answer_the_operator(target: Target) -> None:
    answer = target.request("GET", "/metrics", key=None, headers={"Authorization": "Bearer operator-token-for-tests"})
    assert answer.status_code == 200
    assert "capstan_http_requests_total" in answer.text
    assert target.keys["test"] not in answer.text


def test_gas_prices_are_the_chains(target: Target) -> None:
    body = target.request("GET", GAS).json()
    assert body["chain"] == "ethereum"
    assert set(body["estimates"]) == {"slow", "standard", "fast"}
    for estimate in body["estimates"].values():
        assert set(estimate) == {"max_fee_gwei", "max_priority_fee_gwei", "estimated_seconds"}
        assert isinstance(estimate["max_fee_gwei"], str)
        assert isinstance(estimate["estimated_seconds"], int)
    head = target.request("POST", RPC, json=CALL).json()["result"]
    assert abs(int(head, 16) - body["block_number"]) <= 5
