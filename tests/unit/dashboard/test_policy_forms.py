"""The form of a gas policy."""

import secrets
from typing import Any

import msgspec
import pytest

from capstan.core.errors import InvalidRequest
from capstan.dashboard.desk import Form
from capstan.dashboard.policy_forms import change_body, create_body, fields_of
from capstan.gas.policies.models import DecisionHook, Policy, Spending
from capstan.gas.policies.rules import compiled, decode_rules, encode_rules
from tests.support.gas_ledger import NOON

ADDRESS = "0x" + "ab" * 20


def policy(rules: dict[str, Any], hook: DecisionHook | None = None) -> Policy:
    return Policy(
        id=f"gp_{secrets.token_hex(4)}",
        account_id="acc",
        name="test",
        chain="ethereum",
        network="ethereum/devnet",
        rules=msgspec.json.encode(rules).decode(),
        hook=hook,
        status="active",
        all_time=Spending(),
        today=Spending(),
        from_block=0,
        created_at=NOON,
        updated_at=NOON,
    )


def test_a_policy_that_is_saved_unchanged_stays_as_it_is() -> None:
    rules = {
        "max_gas_usd": "0.5",
        "max_total_usd": "10",
        "max_usd_per_day": "2",
        "max_per_user_per_day": 3,
        "allowed_contracts": [ADDRESS],
        "blocked_contracts": [ADDRESS],
        "allowed_senders": [ADDRESS, "0x" + "1" * 40],
        "allowed_methods": ["transfer(address,uint256)", "0xa9059cbb"],
        "rate_limit": "10/minute",
        "valid_from": "2026-01-31T12:00:07Z",
        "valid_until": "2026-02-28T13:00:00.25+01:00",
    }
    hook = DecisionHook(url="https://example.com/hook", timeout_seconds=2.5, on_failure="sponsor")
    before = policy(rules, hook)
    body = change_body(Form(list(fields_of(before).items())), before)
    assert not isinstance(body.rules, msgspec.UnsetType)
    assert compiled(encode_rules(body.rules)) == compiled(encode_rules(decode_rules(before.rules)))
    assert body.name == "test"
    # A hook that stays is left out: its secret would be told again.
    assert body.decision_hook is msgspec.UNSET


def test_an_emptied_address_removes_the_hook_and_an_empty_field_the_rule() -> None:
    before = policy({"max_gas_usd": "1", "max_total_usd": "2"}, DecisionHook(url="https://example.com"))
    fields = {**fields_of(before), "hook_url": "", "max_gas_usd": " "}
    body = change_body(Form(list(fields.items())), before)
    assert body.decision_hook is None
    assert msgspec.to_builtins(body.rules) == {"max_total_usd": "2"}


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "11", "soon"])
def test_a_hook_has_between_nothing_and_ten_seconds(seconds: str) -> None:
    fields = {"name": "test", "network": "ethereum/devnet", "max_total_usd": "1", "hook_url": "https://example.com"}
    with pytest.raises(InvalidRequest, match="Decision hook"):
        create_body(Form(list({**fields, "hook_seconds": seconds}.items())))
