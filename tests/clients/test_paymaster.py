"""viem and permissionless.js, unchanged, with our address as the paymaster: wallets without money on every version."""

from __future__ import annotations

import secrets
from typing import Any

import httpx
import pytest
from eth_account import Account

from capstan.userops.versions import Version
from tests.clients.inputs import inputs
from tests.clients.test_python import headers_of
from tests.support.development import Development
from tests.support.javascript import Report, RunScript
from tests.support.node import Node
from tests.support.servers import wait_until

VERSIONS: tuple[Version, ...] = ("0.6", "0.7", "0.8")
every_version = pytest.mark.parametrize("version", VERSIONS)
_OWNER = 13
_SECONDS = 60.0


class Ran:
    """What the clients reported, and where to ask about it."""

    def __init__(self, development: Development, javascript: RunScript) -> None:
        self.development = development
        self.node = Node(development.document["node_url"])
        self.receivers = {version: Account.create().address for version in VERSIONS}
        document, salt = development.document, secrets.randbits(64)
        given = inputs(development, _OWNER)
        rules = {"allowed_contracts": [given["token"]], "max_total_usd": "100000"}
        body = {"name": "clients", "chain": "ethereum", "rules": rules}
        self.policy: dict[str, Any] = self.ask("POST", "/gas/policies", body)
        given |= {
            "bundler_url": f"{development.base_url}/bundler/ethereum/devnet",
            "policy": self.policy["id"],
            "accounts": [
                {
                    "version": version,
                    "entryPoint": document["entry_points"][version],
                    "factory": document["factories"][version],
                    "index": str(salt),
                    "receiver": self.receivers[version],
                }
                for version in VERSIONS
            ],
        }
        self.given = given
        self.report: Report = javascript("paymaster.mjs", given)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the API."""
        url = f"{self.development.base_url}{path}"
        headers = headers_of(self.development)
        answer = httpx.request(method, url, json=body, headers=headers, timeout=_SECONDS, trust_env=False)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def balance(self, address: str) -> int:
        """What an address has of the sample token."""
        data = "0x70a08231" + address[2:].lower().rjust(64, "0")
        return int(self.node.ask("eth_call", {"to": self.given["token"], "data": data}, "latest"), 16)


@pytest.fixture(scope="module")
def ran(development: Development, javascript: RunScript) -> Ran:
    return Ran(development, javascript)


@every_version
def test_wallets_without_money_send_operations(ran: Ran, version: Version) -> None:
    receipt = ran.report[f"{version} receipt"]
    assert receipt["success"] is True
    assert receipt["paymaster"].lower() == ran.development.document["paymasters"][version].lower()
    assert ran.report[f"{version} transaction"].startswith("0x")
    assert ran.balance(ran.receivers[version]) == 12
    address = ran.report[f"{version} address"]
    assert int(ran.node.ask("eth_getBalance", address, "latest"), 16) == 0


@every_version
def test_what_the_policy_does_not_allow_is_refused_by_name(ran: Ran, version: Version) -> None:
    refused = ran.report[f"{version} refused"]
    assert refused["code"] == -32501
    assert "allowed_contracts" in refused["text"]


def test_the_ledger_says_what_the_operations_cost(ran: Ran) -> None:
    def settled() -> bool:
        entries = ran.ask("GET", f"/gas/policies/{ran.policy['id']}/sponsorships?limit=100")["sponsorships"]
        return [entry["state"] for entry in entries].count("settled") == 2 * len(VERSIONS)

    wait_until(settled, seconds=_SECONDS)
    entries = ran.ask("GET", f"/gas/policies/{ran.policy['id']}/sponsorships?limit=100")["sponsorships"]
    costs = {entry["user_operation_hash"]: entry["actual_gas_cost"] for entry in entries}
    for version in VERSIONS:
        receipt = ran.report[f"{version} receipt"]
        assert costs[receipt["userOpHash"]] == str(receipt["actualGasCost"])
