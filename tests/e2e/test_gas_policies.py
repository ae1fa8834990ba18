"""Gas policies over HTTP: creating, reading, listing, changing, and everything that is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.devnet import EvmDevnet
from tests.support.gas import Gas, serving_gas
from tests.support.http import assert_error, assert_standard_headers

CONTRACT = "0x70997970c51812dc3a010c7d01b50e0d17dc79C8"
EVERY_RULE: dict[str, Any] = {
    "max_gas_usd": "0.50",
    "max_total_usd": "1000",
    "max_usd_per_day": "10.000000001",
    "max_per_user_per_day": 5,
    "allowed_contracts": [CONTRACT],
    "blocked_contracts": ["0x" + "11" * 20],
    "allowed_senders": ["0x" + "22" * 20],
    "allowed_methods": ["transfer(address,uint256)", "0xa9059cbb"],
    "rate_limit": {"requests": 10, "per_seconds": 60},
    "valid_from": "2026-01-01T00:00:00Z",
    "valid_until": "2036-01-01T00:00:00Z",
}


@pytest.fixture(scope="module")
def gas(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Gas]:
    with serving_gas(tmp_path_factory.mktemp("policies"), evm_devnet) as running:
        yield running


def test_a_policy_is_created_active_with_every_rule_as_it_was_given(gas: Gas) -> None:
    answer = gas.create(EVERY_RULE, name="Onboarding")
    assert answer.status_code == 201, answer.text
    assert_standard_headers(answer)
    policy = answer.json()
    assert policy["id"].startswith("gp_")
    assert (policy["name"], policy["chain"], policy["network"]) == ("Onboarding", "ethereum", "devnet")
    assert policy["status"] == "active"
    assert policy["rules"] == EVERY_RULE
    assert policy["total"] == {"spent_usd": "0", "reserved_usd": "0", "remaining_usd": "1000"}
    assert policy["today"] == {"spent_usd": "0", "reserved_usd": "0", "remaining_usd": "10.000000001"}
    assert policy.pop("hook_secret") is None
    assert gas.read(policy["id"]).json() == policy


@pytest.mark.parametrize("rate", ["10/minute", "1/second", "5/hour", "7/day", 10])
def test_rate_limits_are_taken_in_every_form(gas: Gas, rate: Any) -> None:
    assert gas.policy({"rate_limit": rate})["rules"] == {"rate_limit": rate}


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({}, "at least one rule"),
        ({"max_gas": "1"}, "max_gas"),
        ({"max_gas_usd": "1", "unknown_rule": 1}, "unknown_rule"),
        ({"max_gas_usd": 1}, "max_gas_usd"),
        ({"max_gas_usd": "-1"}, "max_gas_usd"),
        ({"max_gas_usd": "1e3"}, "max_gas_usd"),
        ({"max_gas_usd": "0.1234567891"}, "max_gas_usd"),
        ({"max_total_usd": "1000000000"}, "max_total_usd"),
        ({"max_per_user_per_day": 0}, "max_per_user_per_day"),
        ({"max_per_user_per_day": 1.5}, "max_per_user_per_day"),
        ({"allowed_contracts": []}, "allowed_contracts"),
        ({"allowed_contracts": ["0x12"]}, "allowed_contracts"),
        ({"allowed_senders": CONTRACT}, "allowed_senders"),
        ({"allowed_methods": ["transfer"]}, "allowed_methods"),
        ({"allowed_methods": ["0xa9059c"]}, "allowed_methods"),
        ({"rate_limit": "10/fortnight"}, "rate_limit"),
        ({"rate_limit": 0}, "rate_limit"),
        ({"rate_limit": {"requests": 1}}, "per_seconds"),
        ({"rate_limit": {"requests": 1, "per_seconds": 1, "burst": 1}}, "burst"),
        ({"valid_from": "2026-01-01"}, "valid_from"),
        ({"valid_from": "2026-01-01T00:00:00"}, "valid_from"),
    ],
)
def test_bad_rules_are_refused_and_named(gas: Gas, rules: dict[str, Any], named: str) -> None:
    body = json.dumps({"name": "test", "chain": "ethereum", "rules": rules})
    answer = gas.client.post("/gas/policies", content=body, headers={"Content-Type": "application/json"})
    assert named in assert_error(answer, 400, "invalid_request")


@pytest.mark.parametrize("field", ["name", "chain", "rules"])
def test_missing_fields_are_named(gas: Gas, field: str) -> None:
    body = {"name": "test", "chain": "ethereum", "rules": {"max_gas_usd": "1"}}
    del body[field]
    assert field in assert_error(gas.client.post("/gas/policies", json=body), 400, "invalid_request")


def test_changes_hold_and_what_is_left_out_stays(gas: Gas) -> None:
    policy = gas.policy({"max_gas_usd": "1"}, name="first")
    changed = gas.change(policy["id"], name="second")
    assert changed.status_code == 200, changed.text
    assert changed.json()["name"] == "second"
    assert changed.json()["rules"] == {"max_gas_usd": "1"}
    assert gas.change(policy["id"], rules={"max_total_usd": "2"}).json()["rules"] == {"max_total_usd": "2"}
    assert gas.change(policy["id"], status="paused").json()["status"] == "paused"
    assert gas.read(policy["id"]).json()["status"] == "paused"
    assert gas.change(policy["id"], status="active").json()["status"] == "active"


def test_a_budget_of_nothing_is_exhausted_until_it_is_raised(gas: Gas) -> None:
    policy = gas.policy({"max_total_usd": "0"})
    assert policy["status"] == "exhausted"
    assert gas.change(policy["id"], rules={"max_total_usd": "0.000000001"}).json()["status"] == "active"
    assert gas.change(policy["id"], rules={"max_usd_per_day": "0"}).json()["status"] == "exhausted"


def test_an_archived_policy_stays_as_it_is(gas: Gas) -> None:
    policy = gas.policy()
    assert gas.change(policy["id"], status="archived").json()["status"] == "archived"
    message = assert_error(gas.change(policy["id"], status="active"), 409, "conflict")
    assert policy["id"] in message


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"status": "exhausted"}, "status"),
        ({"status": "deleted"}, "status"),
        ({"rules": {}}, "at least one rule"),
        ({"rules": {"nonsense": 1}}, "nonsense"),
        ({"name": ""}, "name"),
    ],
)
def test_bad_changes_are_refused_and_named(gas: Gas, body: dict[str, Any], named: str) -> None:
    policy = gas.policy()
    assert named in assert_error(gas.change(policy["id"], **body), 400, "invalid_request")


def test_policies_of_other_accounts_do_not_exist(gas: Gas) -> None:
    policy, other = gas.policy(), gas.with_key()
    for answer in (other.read(policy["id"]), other.change(policy["id"], name="mine")):
        assert policy["id"] in assert_error(answer, 404, "not_found")
    assert other.page().json() == {"policies": [], "page": 1, "total": 0}


def test_lists_have_pages_and_the_newest_first(gas: Gas) -> None:
    own = gas.with_key("--plan", "growth")
    made = [own.policy(name=str(number))["id"] for number in range(5)][::-1]
    assert [each["id"] for each in own.page().json()["policies"]] == made
    second = own.page(page=2, limit=2).json()
    assert ([each["id"] for each in second["policies"]], second["page"], second["total"]) == (made[2:4], 2, 5)


def test_the_plan_bounds_the_number_of_policies_that_are_not_archived(gas: Gas) -> None:
    own = gas.with_key("--plan", "free")
    first = own.policy()
    own.policy()
    assert "2 gas policies" in assert_error(own.create(), 403, "forbidden")
    assert own.change(first["id"], status="archived").status_code == 200
    own.policy()


def test_the_scope_is_needed(gas: Gas) -> None:
    reader = gas.with_key("--scope", "rpc:read")
    for answer in (reader.create(), reader.read("gp_1"), reader.page(), reader.change("gp_1", name="x")):
        assert "gas:manage" in assert_error(answer, 403, "forbidden")


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"chain": "nowhere"}, 404, "nowhere"),
        ({"chain": "ethereum", "network": "mainnet"}, 403, "ethereum/mainnet"),
        ({"chain": "polygon"}, 404, "polygon/amoy"),
    ],
)
def test_networks_without_policies_are_named(gas: Gas, body: dict[str, Any], status: int, named: str) -> None:
    assert named in assert_error(gas.create(**body), status, "not_found" if status == 404 else "forbidden")
