"""The API description is complete and true: schemathesis sends what it allows and forbids, and compares the answers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http import assert_error, assert_standard_headers
from tests.support.service import Service, run_json

_EXAMPLES = 40


class Described:
    """A running service and a key for it."""

    def __init__(self, service: Service, key: str) -> None:
        self.service = service
        self.key = key


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, evm_devnet: Any) -> Iterator[Described]:
    """One service for all tests of this file, on the development chain."""
    directory = tmp_path_factory.mktemp("openapi")
    data = str(directory / "data")
    key = run_json("keys", "create", "--plan", "enterprise", "--data-dir", data)["key"]
    # With `debug`, as `capstan dev` has it: internal transfers are found in traces.
    network = f'upstreams = ["{evm_devnet.url}"], extra_namespaces = ["debug"]'
    environment = {
        "CAPSTAN_MODE": "development",
        "CAPSTAN_LOG__ACCESS": "false",
        "CAPSTAN_GAS__SIGNER": evm_devnet.deployment.paymaster_signer.private_key,
        "CAPSTAN_LIMITS__ANONYMOUS_REQUESTS_PER_SECOND": "1000000",
        "CAPSTAN_NETWORKS": f'{{"ethereum/devnet" = {{{network}}}}}',
    }
    service = Service(["--data-dir", data], environment, directory)
    try:
        yield Described(service, key)
    finally:
        service.kill()


def test_schemathesis_finds_no_fault(described: Described, tmp_path: Path) -> None:
    """What the description allows is accepted, what it forbids is refused, every answer is as described."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{described.service.base_url}/openapi.json"),
            *("--header", f"X-API-Key: {described.key}"),
            *("--max-examples", str(_EXAMPLES)),
            *("--seed", "1", "--generation-deterministic", "--no-color"),
            # It warns of paths that found nothing, as those about contracts do for invented addresses, and of /metrics,
            # which this key may not read. Answers about contracts that exist are compared below.
            *("--warnings", "off"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout


@pytest.mark.parametrize(("kind", "place"), [("tokens", 0), ("nfts", 0), ("nfts", 1)])
def test_schemathesis_finds_no_fault_in_answers_about_real_tokens(
    described: Described, tmp_path: Path, evm_devnet: Any, kind: str, place: int
) -> None:
    """The same for things that exist, so that the answers themselves are compared with their description."""
    contract = getattr(evm_devnet.deployment, kind)[place].address
    holder = evm_devnet.deployment.accounts[0].address
    values = {"chain": "ethereum", "contract": contract, "address": holder, "token_id": "2"}
    lines = [f'"path.{name}" = "{value}"' for name, value in values.items()]
    (tmp_path / "schemathesis.toml").write_text("\n".join(["[parameters]", *lines, ""]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{described.service.base_url}/openapi.json"),
            *("--header", f"X-API-Key: {described.key}", "--include-path-regex", f"/v1/{kind}/"),
            *("--max-examples", "10", "--phases", "fuzzing", "--mode", "positive"),
            *("--seed", "1", "--generation-deterministic", "--no-color"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
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
