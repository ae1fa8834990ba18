"""The rules about gas policies themselves: creating, reading, listing and changing them.

Called by the routes. Nothing is sponsored here. A changed policy holds from the next sponsor call on, because
sponsoring reads it in the transaction that reserves the money.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from capstan.access.models import Caller
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.core.clock import Clock, iso, utc
from capstan.core.decimals import format_units
from capstan.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from capstan.core.ids import new_id
from capstan.core.redact import quoted
from capstan.gas.policies.models import (
    ChangePolicy,
    CreatedPolicy,
    CreatePolicy,
    DecisionHook,
    Policy,
    PolicyList,
    PolicyView,
    Spending,
    SpendingView,
    Status,
)
from capstan.gas.policies.rules import NANO, compiled, decode_rules, encode_rules, faults
from capstan.gas.policies.store import PolicyStore, TooManyPolicies

_DAY_SECONDS = 86_400
_UNSET = msgspec.UNSET

# How many policies the caller's account may have; 0 is no limit.
PolicyLimit: TypeAlias = Callable[[Caller], int]
# The secret of a policy's decision hook, by the policy's id. Raises `ApiError` where none can be had.
HookSecret: TypeAlias = Callable[[str], str]


class Ports(msgspec.Struct, frozen=True):
    """What the service needs of others; the composition root provides it."""

    # The network that a chain and an optional network name mean for a caller. Raises the errors of unknown, unserved
    # and forbidden networks.
    resolve: Callable[[Caller, str, str | None], NetworkFacts]
    # The number of a network's latest block.
    head: Callable[[NetworkFacts], Awaitable[int]]
    limit: PolicyLimit
    hook_secret: HookSecret
    # Raises `InvalidRequest` for an address that a hook may not have.
    check_hook: Callable[[DecisionHook], None]
    # Told of every network that gets a policy, and the block from which its stream is needed.
    needed: Callable[[str, int], Awaitable[None]]


class PolicyService:
    """Gas policies of all accounts."""

    def __init__(self, store: PolicyStore, clock: Clock, ports: Ports) -> None:
        self._store = store
        self._clock = clock
        self._ports = ports
        self._readings: dict[tuple[str, str], asyncio.Future[Policy | None]] = {}

    async def create(self, caller: Caller, body: CreatePolicy) -> CreatedPolicy:
        """A new policy, active at once."""
        facts = self._ports.resolve(caller, body.chain, body.network)
        if facts.family != "evm":
            raise NotFound(f"Network {facts.name} has no gas sponsorship: only EVM chains do.")
        if reason := faults(body.rules):
            raise InvalidRequest(reason)
        policy_id, now = new_id("gp"), utc(self._clock)
        secret = self._secret(policy_id, body.decision_hook)
        policy = Policy(
            id=policy_id,
            account_id=caller.account_id,
            name=body.name,
            chain=facts.chain,
            network=facts.name,
            rules=encode_rules(body.rules),
            hook=body.decision_hook,
            status="active",
            all_time=Spending(),
            today=Spending(),
            from_block=await self._ports.head(facts),
            created_at=now,
            updated_at=now,
        )
        limit = self._ports.limit(caller)
        await self._ports.needed(policy.network, policy.from_block)
        try:
            await self._store.add(policy, at_most=limit)
        except TooManyPolicies:
            raise Forbidden(
                f"the plan {caller.plan} allows {limit} gas policies, and the account has as many; archive one"
            ) from None
        return _created(policy, secret)

    async def read(self, caller: Caller, policy_id: str) -> PolicyView:
        """One of the account's policies."""
        return _view(await self.find(caller, policy_id))

    async def find(self, caller: Caller, policy_id: str) -> Policy:
        """One of the account's policies. Raises `NotFound` for any other."""
        policy = await self._read(caller.account_id, policy_id)
        if policy is None:
            raise NotFound(f"there is no gas policy {quoted(policy_id)} of this account")
        return policy

    async def _read(self, account_id: str, policy_id: str) -> Policy | None:
        """The policy as it is now. Those who ask before the reading begins share it; later ones get another."""
        key = (account_id, policy_id)
        reading = self._readings.get(key)
        if reading is None:
            reading = self._readings[key] = asyncio.ensure_future(self._read_soon(key))
        return await asyncio.shield(reading)

    async def _read_soon(self, key: tuple[str, str]) -> Policy | None:
        # Everybody who asked in this turn of the event loop is here now; whoever comes from now on may want to see
        # what changes from now on.
        await asyncio.sleep(0)
        del self._readings[key]
        return await self._store.find(*key, utc_day_number(self._clock))

    async def page(self, caller: Caller, *, page: int, limit: int) -> PolicyList:
        """One page of the account's policies."""
        found, total = await self._store.page(
            caller.account_id, utc_day_number(self._clock), offset=(page - 1) * limit, limit=limit
        )
        return PolicyList([_view(policy) for policy in found], page, total)

    async def newest(self, caller: Caller, *, after: tuple[int, str] | None, limit: int) -> list[Policy]:
        """The account's policies, the newest first, after the one with this time and id."""
        return await self._store.newest(caller.account_id, utc_day_number(self._clock), after=after, limit=limit)

    async def change(self, caller: Caller, policy_id: str, body: ChangePolicy) -> CreatedPolicy:
        """Change what the body names."""
        policy = await self.find(caller, policy_id)
        if not isinstance(body.rules, msgspec.UnsetType) and (reason := faults(body.rules)):
            raise InvalidRequest(reason)
        secret = None
        hook = policy.hook
        if not isinstance(body.decision_hook, msgspec.UnsetType):
            hook = body.decision_hook
            secret = self._secret(policy.id, hook)
        changed = msgspec.structs.replace(
            policy,
            name=policy.name if body.name is _UNSET else body.name,
            rules=policy.rules if isinstance(body.rules, msgspec.UnsetType) else encode_rules(body.rules),
            status=policy.status if body.status is _UNSET else body.status,
            hook=hook,
            updated_at=utc(self._clock),
        )
        if not await self._store.change(changed):
            raise Conflict(f"the gas policy {policy.id} is archived and cannot be changed; create a new one")
        return _created(changed, secret)

    def _secret(self, policy_id: str, hook: DecisionHook | None) -> str | None:
        if hook is None:
            return None
        self._ports.check_hook(hook)
        return self._ports.hook_secret(policy_id)


def utc_day_number(clock: Clock) -> int:
    """The UTC day as a number: days since 1970-01-01."""
    return int(clock.now()) // _DAY_SECONDS


def status_of(policy: Policy) -> Status:
    """The status as it is shown: an active policy without money is exhausted."""
    if policy.status != "active":
        return policy.status
    rules = compiled(policy.rules)
    spent = rules.max_total is not None and policy.all_time.total >= rules.max_total
    spent_today = rules.max_per_day is not None and policy.today.total >= rules.max_per_day
    return "exhausted" if spent or spent_today else "active"


def _view(policy: Policy) -> PolicyView:
    return msgspec.convert(_shown(policy), PolicyView)


def _created(policy: Policy, secret: str | None) -> CreatedPolicy:
    return msgspec.convert({**_shown(policy), "hook_secret": secret}, CreatedPolicy)


def _shown(policy: Policy) -> dict[str, object]:
    rules = compiled(policy.rules)
    return {
        "id": policy.id,
        "name": policy.name,
        "chain": policy.chain,
        "network": policy.network.partition("/")[2],
        "rules": decode_rules(policy.rules),
        "decision_hook": policy.hook,
        "status": status_of(policy),
        "total": _spending(policy.all_time, rules.max_total),
        "today": _spending(policy.today, rules.max_per_day),
        "created_at": iso(policy.created_at),
        "updated_at": iso(policy.updated_at),
    }


def _spending(spending: Spending, budget: int | None) -> SpendingView:
    return SpendingView(
        spent_usd=format_units(spending.spent, NANO),
        reserved_usd=format_units(spending.reserved, NANO),
        remaining_usd=None if budget is None else format_units(budget - spending.total, NANO),
    )
