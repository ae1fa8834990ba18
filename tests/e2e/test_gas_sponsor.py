"""Sponsorship over HTTP on a real chain: operations land and are paid for, and everything that is refused."""

import concurrent.futures
import math
from collections.abc import Iterator
from typing import Any

import pytest

from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet
from tests.support.gas import Gas, Sender, actual_cost, serving_gas
from tests.support.http import assert_error

VERSIONS: list[Version] = ["0.6", "0.7", "0.8"]
PRICE = 2500


@pytest.fixture(scope="module")
def gas(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Gas]:
    with serving_gas(tmp_path_factory.mktemp("sponsor"), evm_devnet) as running:
        yield running


def usd(wei: int) -> str:
    """What so much is worth, rounded up to a billionth."""
    nano = math.ceil(wei * PRICE / 10**9) if wei < 2**40 else -(-wei * PRICE // 10**9)
    whole, rest = divmod(nano, 10**9)
    return f"{whole}.{rest:09}".rstrip("0").rstrip(".")


def prefund(operation: dict[str, Any], version: Version, answer: dict[str, Any]) -> int:
    names = ("callGasLimit", "preVerificationGas")
    limits = sum(int(operation[name], 16) for name in names)
    verification = int(operation["verificationGasLimit"], 16)
    if version == "0.6":
        limits += 3 * verification
    else:
        limits += verification + int(answer["paymasterVerificationGasLimit"], 16)
        limits += int(answer["paymasterPostOpGasLimit"], 16)
    return limits * int(operation["maxFeePerGas"], 16)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wallet_without_money_is_paid_for_and_the_ledger_says_what_it_cost(gas: Gas, version: Version) -> None:
    policy = gas.policy({"max_total_usd": "1000"})
    sender = Sender(gas.devnet, version)
    operation = sender.operation()
    answer = gas.sponsored(policy["id"], operation, entry_point=sender.entry_point)
    assert answer["paymaster"] == gas.devnet.deployment.paymasters[version]
    most = usd(prefund(operation, version, answer))
    assert answer["sponsored_gas_usd"] == most
    total = gas.read(policy["id"]).json()["total"]
    assert (total["reserved_usd"], total["spent_usd"]) == (most, "0")
    receipt = sender.land(sender.signed(operation, answer))
    assert receipt["status"] == "0x1"
    spent = usd(actual_cost(receipt))
    gas.wait_for(policy["id"], reserved_usd="0", spent_usd=spent)
    (entry,) = gas.sponsorships(policy["id"])
    assert entry["state"] == "settled"
    assert entry["success"] is True
    assert entry["spent_usd"] == spent
    assert entry["actual_gas_cost"] == str(actual_cost(receipt))
    assert entry["transaction_hash"] == receipt["transactionHash"]
    assert entry["id"] == answer["sponsorship_id"]


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_gas_limits_are_estimated_and_suffice(gas: Gas, version: Version) -> None:
    policy = gas.policy()
    sender = Sender(gas.devnet, version)
    operation = sender.operation(callGasLimit=None, verificationGasLimit=None, preVerificationGas=None)
    answer = gas.sponsored(policy["id"], operation, entry_point=sender.entry_point)
    assert {"callGasLimit", "verificationGasLimit", "preVerificationGas"} <= set(answer)
    assert sender.land(sender.signed(operation, answer))["status"] == "0x1"
    again = sender.operation(nonce="0x1", callGasLimit=None, verificationGasLimit=None, preVerificationGas=None)
    answer = gas.sponsored(policy["id"], again, entry_point=sender.entry_point)
    assert sender.land(sender.signed(again, answer))["status"] == "0x1"


def test_the_shape_decides_without_an_entry_point(gas: Gas) -> None:
    policy = gas.policy()
    old, new = Sender(gas.devnet, "0.6"), Sender(gas.devnet, "0.8")
    first = gas.sponsored(policy["id"], old.operation())
    assert first["paymasterAndData"] == first["paymaster"].lower() + first["paymasterData"][2:]
    second = gas.sponsored(policy["id"], new.operation())
    assert "paymasterAndData" not in second
    assert second["paymaster"] == gas.devnet.deployment.paymasters["0.8"]


def test_a_changed_operation_is_not_paid_for(gas: Gas) -> None:
    policy, sender = gas.policy(), Sender(gas.devnet, "0.7")
    answer = gas.sponsored(policy["id"], sender.operation(), entry_point=sender.entry_point)
    dearer = sender.signed(sender.operation(maxFeePerGas=hex(21 * 10**9)), answer)
    assert sender.land(dearer)["status"] == "0x0"


def test_the_other_sponsorships_of_an_operation_are_released_when_one_lands(gas: Gas) -> None:
    policy, other = gas.policy(), gas.policy()
    sender = Sender(gas.devnet, "0.8")
    cheap, dear = sender.operation(), sender.operation(maxFeePerGas=hex(30 * 10**9))
    first = gas.sponsored(policy["id"], cheap)
    gas.sponsored(policy["id"], dear)
    gas.sponsored(other["id"], dear)
    receipt = sender.land(sender.signed(cheap, first))
    gas.wait_for(policy["id"], reserved_usd="0", spent_usd=usd(actual_cost(receipt)))
    gas.wait_for(other["id"], reserved_usd="0", spent_usd="0")
    assert [entry["state"] for entry in gas.sponsorships(policy["id"])] == ["released", "settled"]


def refusal(gas: Gas, rules: dict[str, Any], **changes: Any) -> str:
    sender = Sender(gas.devnet, "0.8")
    answer = gas.sponsor(gas.policy(rules)["id"], sender.operation(**changes))
    return assert_error(answer, 403, "forbidden")


TOKEN_METHOD = "mint(address,uint256)"


def test_rules_about_calls_see_the_real_targets(gas: Gas) -> None:
    token = gas.devnet.deployment.tokens[0].address
    other = gas.devnet.deployment.tokens[1].address
    sender = Sender(gas.devnet, "0.8")
    for rules in (
        {"allowed_contracts": [token.lower()]},
        {"allowed_methods": [TOKEN_METHOD]},
        {"allowed_methods": ["0x40c10f19"], "allowed_contracts": [other, token]},
        {"blocked_contracts": [other]},
        {"allowed_senders": [sender.address]},
    ):
        gas.sponsored(gas.policy(rules)["id"], sender.operation())
    assert "allowed_contracts" in refusal(gas, {"allowed_contracts": [other]})
    assert "allowed_methods" in refusal(gas, {"allowed_methods": ["transfer(address,uint256)"]})
    assert "blocked_contracts" in refusal(gas, {"blocked_contracts": [token]})
    assert "allowed_senders" in refusal(gas, {"allowed_senders": [token]})
    for rule in ("allowed_contracts", "blocked_contracts"):
        assert rule in refusal(gas, {rule: [token]}, callData="0xdeadbeef")
    assert "allowed_methods" in refusal(gas, {"allowed_methods": [TOKEN_METHOD]}, callData="0xdeadbeef")


def test_times_of_a_policy_are_kept(gas: Gas) -> None:
    assert "valid_from" in refusal(gas, {"valid_from": "2036-01-01T00:00:00Z"})
    assert "valid_until" in refusal(gas, {"valid_until": "2026-01-01T00:00:00Z"})


def test_amounts_are_judged_at_their_edge(gas: Gas) -> None:
    sender = Sender(gas.devnet, "0.8")
    cost = gas.sponsored(gas.policy()["id"], sender.operation())["sponsored_gas_usd"]
    nano = round(float(cost) * 10**9)
    less = f"{(nano - 1) // 10**9}.{(nano - 1) % 10**9:09}"
    for rule in ("max_gas_usd", "max_total_usd", "max_usd_per_day"):
        gas.sponsored(gas.policy({rule: cost})["id"], sender.operation())
        message = assert_error(gas.sponsor(gas.policy({rule: less})["id"], sender.operation()), 403, "forbidden")
        assert rule in message
    spent = gas.policy({"max_total_usd": cost})
    gas.sponsored(spent["id"], sender.operation())
    assert gas.read(spent["id"]).json()["status"] == "exhausted"
    assert "max_total_usd" in assert_error(gas.sponsor(spent["id"], sender.operation()), 403, "forbidden")
    gas.change(spent["id"], rules={"max_total_usd": "1000"})
    gas.sponsored(spent["id"], sender.operation())


def test_counts_are_judged_at_their_edge(gas: Gas) -> None:
    sender, other = Sender(gas.devnet, "0.8"), Sender(gas.devnet, "0.8")
    policy = gas.policy({"max_per_user_per_day": 2})["id"]
    for nonce in ("0x0", "0x1", "0x0"):
        gas.sponsored(policy, sender.operation(nonce=nonce))
    assert "max_per_user_per_day" in assert_error(gas.sponsor(policy, sender.operation(nonce="0x2")), 403, "forbidden")
    gas.sponsored(policy, other.operation())
    limited = gas.policy({"rate_limit": {"requests": 2, "per_seconds": 86_400}})["id"]
    gas.sponsored(limited, sender.operation())
    gas.sponsored(limited, sender.operation())
    assert "rate_limit" in assert_error(gas.sponsor(limited, other.operation()), 403, "forbidden")


def test_of_fifty_at_once_exactly_those_are_granted_that_can_be_paid(gas: Gas) -> None:
    sender = Sender(gas.devnet, "0.8")
    cost = gas.sponsored(gas.policy()["id"], sender.operation())["sponsored_gas_usd"]
    nano = 10 * round(float(cost) * 10**9)
    policy = gas.policy({"max_total_usd": f"{nano // 10**9}.{nano % 10**9:09}"})["id"]
    operations = [sender.operation(nonce=hex(number << 64)) for number in range(50)]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda operation: gas.sponsor(policy, operation), operations))
    assert sorted(answer.status_code for answer in answers) == [200] * 10 + [403] * 40
    assert gas.read(policy).json()["total"]["remaining_usd"] == "0"


def test_states_refuse_and_unknown_policies_are_not_found(gas: Gas) -> None:
    sender, policy = Sender(gas.devnet, "0.8"), gas.policy()["id"]
    gas.change(policy, status="paused")
    assert "paused" in assert_error(gas.sponsor(policy, sender.operation()), 403, "forbidden")
    gas.change(policy, status="active")
    gas.sponsored(policy, sender.operation())
    gas.change(policy, status="archived")
    assert "archived" in assert_error(gas.sponsor(policy, sender.operation()), 403, "forbidden")
    assert_error(gas.sponsor("gp_unknown", sender.operation()), 404, "not_found")
    assert_error(gas.with_key().sponsor(policy, sender.operation()), 404, "not_found")
    reader = gas.with_key("--scope", "wallets:manage")
    assert "gas:manage" in assert_error(reader.sponsor(policy, sender.operation()), 403, "forbidden")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(({name: None}, name) for name in ("sender", "nonce", "callData", "maxFeePerGas", "maxPriorityFeePerGas")),
        ({"sender": "0x12"}, "sender"),
        ({"nonce": 5}, "nonce"),
        ({"callData": "nothing"}, "callData"),
        ({"callGasLimit": "0x" + "f" * 33}, "callGasLimit"),
        ({"factory": None, "factoryData": None}, "factory and factoryData"),
        ({"factoryData": None}, "factoryData"),
        ({"callData": "0x" + "11" * 8_193}, "8192"),
        ({"maxFeePerGas": "0x" + "f" * 31}, "million"),
    ],
)
def test_malformed_operations_are_refused_and_the_field_is_named(gas: Gas, changes: dict[str, Any], named: str) -> None:
    sender = Sender(gas.devnet, "0.8")
    answer = gas.sponsor(gas.policy()["id"], sender.operation(**changes))
    assert named in assert_error(answer, 400, "invalid_request")


def test_other_networks_and_entry_points_are_refused(gas: Gas) -> None:
    sender, policy = Sender(gas.devnet, "0.8"), gas.policy()["id"]
    assert "ethereum/devnet" in assert_error(
        gas.sponsor(policy, sender.operation(), chain="polygon"), 400, "invalid_request"
    )
    answer = gas.sponsor(policy, sender.operation(), entry_point=sender.address)
    assert "entry_point" in assert_error(answer, 400, "invalid_request")
    wrong_shape = gas.sponsor(policy, sender.operation(), entry_point=gas.devnet.deployment.entry_points["0.6"])
    assert_error(wrong_shape, 400, "invalid_request")


def test_without_a_signer_nothing_is_sponsored(tmp_path: Any, evm_devnet: EvmDevnet) -> None:
    with serving_gas(tmp_path, evm_devnet, {"gas.signer": ""}) as bare:
        policy = bare.policy()["id"]
        message = assert_error(bare.sponsor(policy, Sender(evm_devnet, "0.8").operation()), 503, "unavailable")
        assert "gas.signer" in message
