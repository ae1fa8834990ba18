"""The form of a gas policy: what its fields say, as a body of the API, and the other way round.

Used by the page of gas policies. The rules themselves are checked by the same types and the same service as requests
to the API; here only text becomes values. An empty field is a rule that is not there.
"""

import re
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from capstan.core.errors import InvalidRequest
from capstan.dashboard.desk import Form
from capstan.gas.policies.models import ChangePolicy, CreatePolicy, Policy
from capstan.gas.policies.rules import compiled, decode_rules

AMOUNTS = {
    "max_gas_usd": "One operation costs at most",
    "max_usd_per_day": "Budget for each day",
    "max_total_usd": "Budget for all time",
}
LISTS = {
    "allowed_contracts": "Contracts that may be called",
    "blocked_contracts": "Contracts that may not be called",
    "allowed_methods": "Methods that may be called",
    "allowed_senders": "Senders that are paid for",
}
RULES = {
    **AMOUNTS,
    **LISTS,
    "max_per_user_per_day": "Operations of one sender each day",
    "rate_limit": "Rate",
    "valid_from": "Valid from",
    "valid_until": "Valid until",
    "status": "Status of the policy",
    "decision_hook": "Decision hook",
}
_MOMENTS = ("valid_from", "valid_until")
_PLACE = re.compile(r"`\$\.(?:rules\.)?(\w+)")
_HINTS = {
    **dict.fromkeys(AMOUNTS, "write US dollars with at most nine places, such as 0.50"),
    **dict.fromkeys(LISTS, "write one address of 40 hex digits in each line, beginning with 0x"),
    "allowed_methods": "write one method in each line, such as transfer(address,uint256) or 0xa9059cbb",
    "max_per_user_per_day": "write a whole number from 1 to 1,000,000",
    "rate_limit": "write whole numbers: operations from 1 to 1,000,000, in 1 to 86,400 seconds",
    "name": "give the policy a name of at most 200 characters",
    "decision_hook": "the address must begin with https://, and the time be above 0 and at most 10 seconds",
}
_Body = TypeVar("_Body", CreatePolicy, ChangePolicy)


def create_body(form: Form) -> CreatePolicy:
    """The body of a new policy. Raises `InvalidRequest`."""
    chain, _, network = form.get("network").partition("/")
    return _convert({**_common(form), "chain": chain, "network": network}, CreatePolicy)


def change_body(form: Form, policy: Policy) -> ChangePolicy:
    """The body of a change. A hook that stays the same is left out, so that its secret is not told again."""
    body = _common(form)
    if policy.hook is not None and body["decision_hook"] == msgspec.to_builtins(policy.hook):
        del body["decision_hook"]
    return _convert(body, ChangePolicy)


def fields_of(policy: Policy) -> dict[str, str]:
    """What the fields of the form say for a policy."""
    rules = decode_rules(policy.rules)
    given = {name: getattr(rules, name) for name in rules.__struct_fields__}
    fields = {name: _text(value) for name, value in given.items() if value is not msgspec.UNSET}
    rate = compiled(policy.rules).rate_limit
    if rate is not None:
        fields |= {"rate_requests": str(rate.requests), "rate_seconds": str(rate.per_seconds)}
    if policy.hook is not None:
        hook = policy.hook
        fields |= {"hook_url": hook.url, "hook_seconds": f"{hook.timeout_seconds:g}", "hook_failure": hook.on_failure}
    return {**fields, "name": policy.name, "network": policy.network}


def sent_fields(form: Form) -> dict[str, str]:
    """What was sent, to be shown again."""
    further = ("name", "network", "rate_requests", "rate_seconds", "hook_url", "hook_seconds", "hook_failure")
    return {name: form.get(name) for name in (*RULES, *further)}


def _common(form: Form) -> dict[str, Any]:
    rules: dict[str, Any] = {name: form.get(name) for name in AMOUNTS if form.get(name)}
    for name in LISTS:
        if lines := [line.strip() for line in form.get(name).splitlines() if line.strip()]:
            rules[name] = lines
    if form.get("max_per_user_per_day"):
        rules["max_per_user_per_day"] = _whole("max_per_user_per_day", form.get("max_per_user_per_day"))
    if form.get("rate_requests"):
        rules["rate_limit"] = {
            "requests": _whole("rate_limit", form.get("rate_requests")),
            "per_seconds": _whole("rate_limit", form.get("rate_seconds") or "60"),
        }
    for name in _MOMENTS:
        if form.get(name):
            rules[name] = _moment(name, form.get(name))
    return {"name": form.get("name"), "rules": rules, "decision_hook": _hook(form)}


def _hook(form: Form) -> dict[str, Any] | None:
    if not form.get("hook_url"):
        return None
    try:
        seconds = float(form.get("hook_seconds") or "2")
    except ValueError:
        raise _wrong("decision_hook") from None
    return {"url": form.get("hook_url"), "timeout_seconds": seconds, "on_failure": form.get("hook_failure") or "refuse"}


def _convert(body: dict[str, Any], kind: type[_Body]) -> _Body:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        raise _wrong(place[1] if place is not None else "", str(error)) from None


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise _wrong(name)
    return int(text)


def _moment(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest(f"{RULES[name]}: write a date and a time, such as 2026-01-31T12:00") from None


def _wrong(name: str, otherwise: str = "") -> InvalidRequest:
    label = RULES.get(name) or name.replace("_", " ").capitalize()
    return InvalidRequest(f"{label}: {_HINTS.get(name) or otherwise}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(value)
    # Fields of browsers have no time zone; the form says that it is UTC.
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() if isinstance(value, datetime) else str(value)
