"""Whether the rules of a policy allow an operation, as far as that follows from the operation and the time alone.

Called by sponsoring before anything is reserved. The rules that count what was sponsored before are applied by the
ledger, in the transaction that writes the reservation. Pure.
"""

from capstan.core.decimals import format_units
from capstan.core.hexes import to_checksum_address, to_data
from capstan.gas.policies.models import Policy
from capstan.gas.policies.rules import NANO, Compiled
from capstan.gas.sponsor.calls import Call, Undecodable, calls_of
from capstan.userops.models import UserOperation


class Refused(Exception):
    """A rule of the policy does not allow it. The message names the rule first."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason


def judge(policy: Policy, rules: Compiled, operation: UserOperation, now: float) -> None:
    """Raise `Refused` for the first rule that the operation breaks."""
    judge_status(policy)
    if rules.valid_from is not None and now < rules.valid_from:
        raise Refused("valid_from", "the policy is not valid yet")
    if rules.valid_until is not None and now >= rules.valid_until:
        raise Refused("valid_until", "the policy is not valid any more")
    if rules.allowed_senders is not None and operation.sender not in rules.allowed_senders:
        raise Refused("allowed_senders", f"{to_checksum_address(operation.sender)} is not one of them")
    if rules.looks_into_calls:
        _judge_calls(rules, operation)


def judge_status(policy: Policy) -> None:
    """Raise `Refused` unless the policy is active."""
    if policy.status != "active":
        raise Refused("status", f"the policy is {policy.status}")


def judge_cost(rules: Compiled, cost: int) -> None:
    """Raise `Refused` when the operation may cost too much, in billionths of a US dollar."""
    if rules.max_gas is not None and cost > rules.max_gas:
        raise Refused("max_gas_usd", f"it may cost {_usd(cost)} US dollars, the rule allows {_usd(rules.max_gas)}")


def judge_budget(rules: Compiled, cost: int, *, total: int, today: int) -> None:
    """Raise `Refused` when a budget does not have as much left."""
    if rules.max_total is not None and total + cost > rules.max_total:
        left = max(0, rules.max_total - total)
        raise Refused("max_total_usd", f"it may cost {_usd(cost)} US dollars, and {_usd(left)} of the budget is left")
    if rules.max_per_day is not None and today + cost > rules.max_per_day:
        left = max(0, rules.max_per_day - today)
        raise Refused("max_usd_per_day", f"it may cost {_usd(cost)} US dollars, and {_usd(left)} is left for today")


def _judge_calls(rules: Compiled, operation: UserOperation) -> None:
    try:
        calls = calls_of(operation.sender, operation.call_data)
    except Undecodable as error:
        rule = next(
            name
            for name, given in (
                ("allowed_contracts", rules.allowed_contracts),
                ("blocked_contracts", rules.blocked_contracts),
                ("allowed_methods", rules.allowed_methods),
            )
            if given is not None
        )
        raise Refused(rule, f"it cannot be seen what the operation calls: {error}") from None
    for call in calls:
        _judge_call(rules, call)


def _judge_call(rules: Compiled, call: Call) -> None:
    target = to_checksum_address(call.target)
    allowed = rules.allowed_contracts is not None and call.target in rules.allowed_contracts
    if rules.allowed_contracts is not None and not allowed:
        raise Refused("allowed_contracts", f"the operation calls {target}, which is not one of them")
    if rules.blocked_contracts is not None:
        if call.target in rules.blocked_contracts:
            raise Refused("blocked_contracts", f"the operation calls {target}")
        if call.delegated and not allowed:
            raise Refused("blocked_contracts", f"the operation lets {target} act in its name, which may call anything")
    if rules.allowed_methods is not None and call.selector not in rules.allowed_methods:
        method = "no method" if call.selector is None else to_data(call.selector)
        raise Refused("allowed_methods", f"the operation calls {method} of {target}, which is not one of them")


def _usd(nano: int) -> str:
    return format_units(nano, NANO)
