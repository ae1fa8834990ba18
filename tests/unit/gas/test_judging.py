"""The rules that follow from the operation and the time alone, each at its edge."""

from typing import Any

import msgspec
import pytest

from capstan.core.clock import ManualClock, utc
from capstan.gas.policies.models import Policy, Spending
from capstan.gas.policies.rules import compiled
from capstan.gas.sponsor.judging import Refused, judge, judge_budget, judge_cost
from capstan.userops.abi import address_word, dynamic, members, word
from capstan.userops.codec import codec_for
from capstan.userops.models import UserOperation

SENDER, TARGET, OTHER = b"\x11" * 20, b"\x22" * 20, b"\x22" * 19 + b"\x23"
TRANSFER = bytes.fromhex("a9059cbb")
# 2026-01-31T12:00:00Z.
NOON = 1_769_860_800
EXECUTE = bytes.fromhex("b61d27f6")


def text(address: bytes) -> str:
    return "0x" + address.hex()


def operation(call_data: bytes = b"", sender: bytes = SENDER) -> UserOperation:
    given = {"sender": text(sender), "nonce": "0x0", "callData": text(call_data), "signature": "0x"}
    limits = ("callGasLimit", "verificationGasLimit", "preVerificationGas", "maxFeePerGas", "maxPriorityFeePerGas")
    return codec_for("0.8").parse({**given, **dict.fromkeys(limits, "0x1")})


def execute(target: bytes, data: bytes) -> bytes:
    return EXECUTE + members([address_word(target), word(0), dynamic(data)])


def refusal(rules: dict[str, Any], given: UserOperation, now: float = NOON) -> str | None:
    clock = ManualClock(NOON)
    encoded = msgspec.json.encode(rules).decode()
    policy = Policy(
        id="gp_1",
        account_id="acc_1",
        name="test",
        chain="ethereum",
        network="ethereum/devnet",
        rules=encoded,
        hook=None,
        status="active",
        all_time=Spending(),
        today=Spending(),
        from_block=0,
        created_at=utc(clock),
        updated_at=utc(clock),
    )
    try:
        judge(policy, compiled(encoded), given, now)
    except Refused as refused:
        return refused.rule
    return None


@pytest.mark.parametrize(
    ("rule", "now", "refused"),
    [
        ("valid_from", NOON - 0.001, True),
        ("valid_from", NOON, False),
        ("valid_until", NOON - 0.001, False),
        ("valid_until", NOON, True),
    ],
)
def test_times_begin_at_their_first_moment_and_end_at_their_last(rule: str, now: float, refused: bool) -> None:
    # The same moment in another zone.
    for moment in ("2026-01-31T12:00:00Z", "2026-01-31T17:30:00+05:30"):
        assert refusal({rule: moment}, operation(), now) == (rule if refused else None)


def test_senders_are_those_of_the_list_and_no_others() -> None:
    rules = {"allowed_senders": [text(OTHER), text(SENDER).upper().replace("0X", "0x")]}
    assert refusal(rules, operation()) is None
    assert refusal(rules, operation(sender=TARGET)) == "allowed_senders"


@pytest.mark.parametrize(
    ("rules", "target", "data", "refused"),
    [
        ({"allowed_contracts": [text(TARGET)]}, TARGET, TRANSFER, None),
        ({"allowed_contracts": [text(TARGET)]}, OTHER, TRANSFER, "allowed_contracts"),
        ({"blocked_contracts": [text(TARGET)]}, OTHER, TRANSFER, None),
        ({"blocked_contracts": [text(TARGET)]}, TARGET, TRANSFER, "blocked_contracts"),
        ({"allowed_contracts": [text(TARGET)], "blocked_contracts": [text(TARGET)]}, TARGET, b"", "blocked_contracts"),
        ({"allowed_methods": ["transfer(address,uint256)"]}, TARGET, TRANSFER, None),
        ({"allowed_methods": ["0xa9059cbb"]}, TARGET, TRANSFER + b"\x00", None),
        ({"allowed_methods": ["0xa9059cbb"]}, TARGET, TRANSFER[:3] + b"\xbc", "allowed_methods"),
        ({"allowed_methods": ["0xa9059cbb"]}, TARGET, b"", "allowed_methods"),
        ({"allowed_methods": ["0xa9059cbb"]}, TARGET, TRANSFER[:3], "allowed_methods"),
    ],
)
def test_contracts_and_methods_are_those_of_the_lists(
    rules: dict[str, Any], target: bytes, data: bytes, refused: str | None
) -> None:
    assert refusal(rules, operation(execute(target, data))) == refused


@pytest.mark.parametrize("rule", ["allowed_contracts", "blocked_contracts", "allowed_methods"])
def test_what_cannot_be_read_is_refused_when_a_rule_asks_for_it(rule: str) -> None:
    value = ["0xa9059cbb"] if rule == "allowed_methods" else [text(TARGET)]
    assert refusal({rule: value}, operation(b"\x12\x34\x56\x78")) == rule
    assert refusal({"max_gas_usd": "1"}, operation(b"\x12\x34\x56\x78")) is None


@pytest.mark.parametrize("rule", ["max_gas_usd", "max_total_usd", "max_usd_per_day"])
def test_amounts_are_kept_to_a_billionth(rule: str) -> None:
    rules = compiled(msgspec.json.encode({rule: "1.5"}).decode())

    def judge_both(cost: int) -> None:
        judge_cost(rules, cost)
        judge_budget(rules, cost - 1_000_000_000, total=1_000_000_000, today=1_000_000_000)

    judge_both(1_500_000_000)
    with pytest.raises(Refused, match=rule):
        judge_both(1_500_000_001)
