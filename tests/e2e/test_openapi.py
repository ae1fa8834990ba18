"""The API description is complete and true: schemathesis sends what it allows and forbids, and compares the answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.devnet import EvmDevnet
from tests.support.http import assert_error, assert_standard_headers
from tests.support.openapi import Described, described_service, find_faults

_EXAMPLES = 10


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Described]:
    """One service for all tests of this file, on the development chain."""
    with described_service(tmp_path_factory.mktemp("openapi"), evm_devnet) as service:
        yield service


def test_schemathesis_finds_no_fault(described: Described, tmp_path: Path) -> None:
    """What the description allows is accepted, what it forbids is refused, every answer is as described.

    The run with more examples is `bench/openapi.py`.
    """
    # It warns of paths that found nothing, as those about contracts do for invented addresses, and of /metrics, which
    # this key may not read. Answers about contracts that exist are compared below.
    done = find_faults(described, tmp_path, "--warnings", "off", examples=_EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout


@pytest.mark.parametrize(("kind", "place"), [("tokens", 0), ("nfts", 0), ("nfts", 1)])
def test_schemathesis_finds_no_fault_in_answers_about_real_tokens(
    described: Described, tmp_path: Path, evm_devnet: EvmDevnet, kind: str, place: int
) -> None:
    """The same for things that exist, so that the answers themselves are compared with their description."""
    contract = getattr(evm_devnet.deployment, kind)[place].address
    holder = evm_devnet.deployment.accounts[0].address
    values = {"chain": "ethereum", "contract": contract, "address": holder, "token_id": "2"}
    lines = [f'"path.{name}" = "{value}"' for name, value in values.items()]
    options = ("--include-path-regex", f"/v1/{kind}/", "--phases", "fuzzing", "--mode", "positive")
    configuration = "\n".join(["[parameters]", *lines, ""])
    done = find_faults(described, tmp_path, *options, examples=10, configuration=configuration)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout, done.stdout


def test_every_path_refuses_a_call_without_a_key(described: Described) -> None:
    document = httpx.get(f"{described.service.base_url}/openapi.json", timeout=20).json()
    keyed = [(path, method) for path, method, operation in _operations(document) if operation.get("security") is None]
    assert len(keyed) >= 4
    for path, method in keyed:
        url = described.service.origin + path.replace("{chain}", "ethereum").replace("{network}", "devnet")
        assert_error(httpx.request(method, url, timeout=20), 401, "unauthorized")


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, op) for path, item in document["paths"].items() for method, op in item.items()]


def test_the_description_is_openapi_3_1_and_complete(described: Described) -> None:
    answer = httpx.get(f"{described.service.base_url}/openapi.json", timeout=20)
    assert_standard_headers(answer)
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": described.service.origin}]
    assert set(document["components"]["securitySchemes"]) == {"apiKey", "bearer", "operator"}
    operations = _operations(document)
    assert {path for path, _, _ in operations} >= {
        "/v1/rpc/{chain}/{network}",
        "/v1/gas/{chain}/prices",
        "/v1/account",
        "/v1/networks",
        "/v1/usage",
        "/v1/openapi.json",
        "/healthz",
        "/readyz",
        "/metrics",
        "/docs",
    }
    for path, method, operation in operations:
        assert operation["summary"], path
        assert operation["description"], path
        wanted = {"400", "405", "408", "413", "429", "431", "500", "503"}
        if operation.get("security") is None:
            wanted |= {"401", "403", "404"}
        assert wanted <= set(operation["responses"]), (path, method)
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (path, parameter["name"])


def test_every_success_names_the_headers_of_every_response(described: Described) -> None:
    document = httpx.get(f"{described.service.base_url}/openapi.json", timeout=20).json()
    for path, _, operation in _operations(document):
        for status, response in operation["responses"].items():
            if int(status) < 400:
                names = set(response["headers"])
                assert {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id"} <= names, (
                    path
                )


def test_the_reference_page_shows_every_operation(described: Described) -> None:
    document = httpx.get(f"{described.service.base_url}/openapi.json", timeout=20).json()
    page = httpx.get(f"{described.service.origin}/docs", timeout=20)
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path, _, _ in _operations(document):
        assert path in page.text
    text = page.text.replace("https://json-schema.org", "").replace("https://example.com", "")
    assert "https://" not in text
