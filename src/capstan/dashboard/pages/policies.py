"""Gas policies: the list, one policy with its budgets, rules and ledger, the editor, and the dry run."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.access.store import to_micros
from capstan.catalogue.networks import Networks
from capstan.core.decimals import format_units
from capstan.core.errors import ApiError, InvalidRequest
from capstan.dashboard.desk import Asked, Desk, Page, segment
from capstan.dashboard.menu import Entry
from capstan.dashboard.paging import PAGE_ROWS, cursor_number, cursor_of, page_of
from capstan.dashboard.policy_forms import AMOUNTS, LISTS, RULES, change_body, create_body, fields_of, sent_fields
from capstan.gas.policies.models import ChangePolicy, Policy, Spending
from capstan.gas.policies.rules import NANO, compiled
from capstan.gas.policies.service import PolicyService, status_of
from capstan.gas.sponsor.history import SponsorshipHistory
from capstan.gas.sponsor.service import SponsorService, Trial

ENTRY = Entry("Gas Policies", "/dashboard/policies", "fuel")

_STATES = {"pause": "paused", "resume": "active", "archive": "archived"}
_MOST_OPERATION = 300_000


class Budget(msgspec.Struct, frozen=True):
    """A bar: what is spent, reserved and free of a budget, in billionths of a US dollar."""

    label: str
    spending: Spending
    # None: no budget is set.
    limit: int | None

    @property
    def free(self) -> int:
        """What is left."""
        return 0 if self.limit is None else max(0, self.limit - self.spending.total)

    def part(self, amount: int) -> int:
        """The share of an amount in thousandths of the bar. What there is at all can be seen."""
        whole = max(self.limit or 0, self.spending.total, 1)
        return 0 if amount == 0 else max(4, amount * 1000 // whole)


class PolicyRow(msgspec.Struct, frozen=True):
    """One policy of the list."""

    policy: Policy
    status: str
    budget: Budget


def policy_pages(
    desk: Desk,
    policies: PolicyService,
    history: SponsorshipHistory,
    sponsor: SponsorService,
    networks: Callable[[], Networks],
) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    def editor(request: Asked, values: Mapping[str, Any], error: ApiError | None = None) -> Page:
        served = sorted(each.name for each in networks().served if each.family == "evm")
        shown = {"amounts": AMOUNTS, "lists": LISTS, "networks": [(name, name) for name in served], **values}
        if error is not None:
            return desk.problem(request, "policy_edit.html", error, shown)
        return desk.page(request, "policy_edit.html", shown)

    async def one(request: Asked, policy_id: str, error: ApiError | None = None, **further: Any) -> Page:
        caller, after = desk.visitor(request).caller, desk.query(request).get("after")
        policy, place = await policies.find(caller, policy_id), cursor_of(after, 2)
        cursor = None if place is None else (cursor_number(place[0]), place[1])
        rows = await history.newest(caller, policy_id, after=cursor, limit=PAGE_ROWS + 1)
        last = rows[:PAGE_ROWS][-1] if rows else None
        path = f"{ENTRY.path}/{segment(policy_id)}"
        found = page_of(rows, path=path, after=after, filters={}, cursor=() if last is None else (last[0], last[1].id))
        values = {
            "policy": policy,
            "status": status_of(policy),
            "budgets": _budgets(policy),
            "at": path,
            "rules": _rules(policy),
            "page": found,
            "trial": None,
            "operation": "",
            "secret": None,
            **further,
        }
        if error is not None:
            return desk.problem(request, "policy.html", error, values)
        return desk.page(request, "policy.html", values)

    @get("/policies")
    async def listing(request: Asked) -> Page:
        """The policies of the account, the newest first."""
        after = desk.query(request).get("after")
        place = cursor_of(after, 2)
        cursor = None if place is None else (cursor_number(place[0]), place[1])
        found = await policies.newest(desk.visitor(request).caller, after=cursor, limit=PAGE_ROWS + 1)
        last = found[:PAGE_ROWS][-1] if found else None
        rows = [PolicyRow(policy, status_of(policy), _budgets(policy)[0]) for policy in found]
        key = () if last is None else (to_micros(last.created_at), last.id)
        page = page_of(rows, path=ENTRY.path, after=after, cursor=key, filters={})
        return desk.page(request, "policies.html", {"page": page})

    @get("/policies/new")
    async def new(request: Asked) -> Page:
        """The form of a new policy."""
        return editor(request, {"policy": None, "fields": {}, "action": ENTRY.path})

    @post("/policies")
    async def create(request: Asked) -> Page:
        """Make a policy."""
        form = desk.form(request)
        try:
            made = await policies.create(desk.visitor(request).caller, create_body(form))
        except ApiError as error:
            return editor(request, {"policy": None, "fields": sent_fields(form), "action": ENTRY.path}, error)
        desk.note(request, "policy_created", policy=made.id)
        if made.hook_secret is not None:
            return await one(request, made.id, secret=made.hook_secret)
        return desk.go(f"{ENTRY.path}/{segment(made.id)}", done="policy-created")

    @get("/policies/{policy_id:str}")
    async def show(request: Asked, policy_id: str) -> Page:
        """One policy."""
        return await one(request, policy_id)

    @get("/policies/{policy_id:str}/edit")
    async def edit(request: Asked, policy_id: str) -> Page:
        """The form with what the policy says now."""
        policy = await policies.find(desk.visitor(request).caller, policy_id)
        action = f"{ENTRY.path}/{segment(policy_id)}/edit"
        return editor(request, {"policy": policy, "fields": fields_of(policy), "action": action})

    @post("/policies/{policy_id:str}/edit")
    async def change(request: Asked, policy_id: str) -> Page:
        """Replace the rules of a policy."""
        caller, form = desk.visitor(request).caller, desk.form(request)
        policy = await policies.find(caller, policy_id)
        try:
            changed = await policies.change(caller, policy_id, change_body(form, policy))
        except ApiError as error:
            action = f"{ENTRY.path}/{segment(policy_id)}/edit"
            return editor(request, {"policy": policy, "fields": sent_fields(form), "action": action}, error)
        desk.note(request, "policy_changed", policy=policy_id)
        if changed.hook_secret is not None:
            return await one(request, policy_id, secret=changed.hook_secret)
        return desk.go(f"{ENTRY.path}/{segment(policy_id)}", done="policy-changed")

    @post("/policies/{policy_id:str}/status")
    async def status(request: Asked, policy_id: str) -> Page:
        """Pause, resume or archive a policy."""
        wanted = desk.form(request).get("status")
        if wanted not in _STATES:
            raise InvalidRequest("status: there is no such status")
        body = msgspec.convert({"status": _STATES[wanted]}, ChangePolicy)
        await policies.change(desk.visitor(request).caller, policy_id, body)
        desk.note(request, f"policy_{_STATES[wanted]}", policy=policy_id)
        return desk.go(f"{ENTRY.path}/{segment(policy_id)}", done=f"policy-{wanted}")

    @post("/policies/{policy_id:str}/try")
    async def try_out(request: Asked, policy_id: str) -> Page:
        """Say whether an operation would be sponsored. Nothing is reserved."""
        text = desk.form(request).get("operation")
        try:
            trial = await sponsor.try_out(desk.visitor(request).caller, policy_id, _operation(text))
        except ApiError as error:
            return await one(request, policy_id, error, operation=text)
        return await one(request, policy_id, operation=text, trial=_shown(trial))

    return [listing, new, create, show, edit, change, status, try_out]


def _operation(text: str) -> dict[str, Any]:
    """The operation of the dry run: the object itself, or what holds it in a request to the API."""
    if len(text) > _MOST_OPERATION:
        raise InvalidRequest("the operation is too long")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("the operation is not JSON; paste it as eth_sendUserOperation takes it") from None
    if isinstance(found, dict) and isinstance(found.get("user_operation"), dict):
        found = found["user_operation"]
    if not isinstance(found, dict):
        raise InvalidRequest("the operation must be an object with sender, nonce and callData")
    return found


def _shown(trial: Trial) -> dict[str, Any]:
    rule = None if trial.rule is None else RULES.get(trial.rule, trial.rule)
    cost = None if trial.cost is None else format_units(trial.cost, NANO)
    return {"name": trial.rule, "rule": rule, "reason": trial.reason, "cost": cost, "asks_hook": trial.asks_hook}


def _budgets(policy: Policy) -> list[Budget]:
    rules = compiled(policy.rules)
    return [Budget("All time", policy.all_time, rules.max_total), Budget("Today, UTC", policy.today, rules.max_per_day)]


def _rules(policy: Policy) -> list[tuple[str, list[str]]]:
    """The rules of a policy for people: a label, and its values."""
    fields, shown = fields_of(policy), []
    for name, label in RULES.items():
        if name == "rate_limit" and "rate_requests" in fields:
            shown.append((label, [f"{fields['rate_requests']} in {fields['rate_seconds']} seconds"]))
        elif name == "decision_hook" and policy.hook is not None:
            failing = f"{fields['hook_seconds']} s, then {fields['hook_failure']}"
            shown.append((label, [policy.hook.url, failing]))
        elif fields.get(name) and name != "rate_limit":
            suffix = " USD" if name in AMOUNTS else " UTC" if name.startswith("valid") else ""
            shown.append((label, [line + suffix for line in fields[name].splitlines()]))
    return shown
