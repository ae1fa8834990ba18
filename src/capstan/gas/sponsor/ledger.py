"""Reserves money for sponsorships: the rules that count what was sponsored before, and the reservation, as one step.

Called by sponsoring. Calls that come at the same time share one transaction, in which the row of their policy is
locked; of any number of them, exactly those are granted for which there is money. What is granted is committed before
anybody sees the signature. How a reservation ends is in `settlement`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog
from sqlalchemy import and_, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.store import to_micros
from capstan.core.errors import Unavailable
from capstan.core.money import plain
from capstan.gas.policies.models import Policy
from capstan.gas.policies.rules import Compiled, compiled
from capstan.gas.policies.store import locked_policy, present_policy
from capstan.gas.sponsor.judging import Refused, judge_budget, judge_cost, judge_status
from capstan.gas.sponsor.models import Draft
from capstan.storage.database import Database
from capstan.storage.schema import gas_policies, gas_policy_days, gas_sponsorships

log = structlog.get_logger(__name__)

_AT_ONCE = 64
_MOST_WAITING = 10_000
_DAY_MICROS = 86_400 * 1_000_000

_Waiting = tuple[Draft, asyncio.Future[None]]


class Ledger:
    """Reservations of all policies. `close` at the end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def reserve(self, draft: Draft) -> None:
        """Reserve the money. Raises `Refused` when a rule does not allow it."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Unavailable("too many sponsorships wait to be written; try again shortly")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="gas ledger")
        await done

    async def judge(self, draft: Draft) -> None:
        """Raise `Refused` if `reserve` would do so now. Reserves nothing, and promises nothing."""
        day = day_of(draft)
        async with self._database.read() as connection:
            policy = await present_policy(connection, draft.policy_id, day)
            if policy is None:
                raise Refused("status", "the policy is gone")
            counts = _Counts(connection, policy, compiled(policy.rules), day)
            await counts.load({draft.sender})
            await counts.take(draft)

    async def close(self) -> None:
        """Write what is under way, and stop."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        """Write until nobody waits. What comes meanwhile goes into the next transaction."""
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
                await self._write(batch)
        finally:
            self._task = None
            for _, done in self._waiting:
                done.cancel()

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        try:
            async with self._database.write() as connection:
                outcomes = await _reserve(connection, [draft for draft, _ in batch])
        except Exception as error:
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            if done.done():
                continue
            if outcome is None:
                done.set_result(None)
            else:
                done.set_exception(outcome)


async def _reserve(connection: AsyncConnection, drafts: Sequence[Draft]) -> list[Refused | None]:
    """Judge and write all of them; for each, why it was refused."""
    outcomes: dict[str, Refused | None] = {}
    accepted: list[Draft] = []
    # Always in the same order, so that two processes cannot wait for each other.
    for policy_id in sorted({draft.policy_id for draft in drafts}):
        group = [draft for draft in drafts if draft.policy_id == policy_id]
        for day in sorted({day_of(draft) for draft in group}):
            accepted += await _reserve_day(connection, policy_id, day, group, outcomes)
    if accepted:
        await connection.execute(insert(gas_sponsorships), [_columns(draft) for draft in accepted])
    return [outcomes[draft.id] for draft in drafts]


async def _reserve_day(
    connection: AsyncConnection,
    policy_id: str,
    day: int,
    group: Sequence[Draft],
    outcomes: dict[str, Refused | None],
) -> list[Draft]:
    policy = await locked_policy(connection, policy_id, day)
    drafts = [draft for draft in group if day_of(draft) == day]
    if policy is None:
        outcomes.update({draft.id: Refused("status", "the policy is gone") for draft in drafts})
        return []
    counts = _Counts(connection, policy, compiled(policy.rules), day)
    await counts.load({draft.sender for draft in drafts})
    accepted = []
    for draft in drafts:
        try:
            await counts.take(draft)
        except Refused as refusal:
            outcomes[draft.id] = refusal
        else:
            outcomes[draft.id] = None
            accepted.append(draft)
    if accepted:
        await move(connection, policy_id, day, reserved=sum(draft.cost for draft in accepted), spent=0)
    return accepted


class _Counts:
    """What was sponsored under one policy on one day, with what this transaction adds to it."""

    def __init__(self, connection: AsyncConnection, policy: Policy, rules: Compiled, day: int) -> None:
        self._connection = connection
        self._policy = policy
        self._rules = rules
        self._day = day
        self._added = 0
        self._nonces: dict[bytes, set[bytes]] = {}
        self._recent: list[int] | None = None

    async def load(self, senders: set[bytes]) -> None:
        """Read the operations of these senders today, where a rule counts them."""
        if self._rules.max_per_user_per_day is None:
            return
        self._nonces = {sender: set() for sender in senders}
        rows = await self._connection.execute(
            select(gas_sponsorships.c.sender, gas_sponsorships.c.nonce)
            .where(
                gas_sponsorships.c.policy_id == self._policy.id,
                gas_sponsorships.c.sender.in_(sorted(senders)),
                gas_sponsorships.c.day == self._day,
                gas_sponsorships.c.state != "released",
            )
            .distinct()
        )
        for sender, nonce in rows:
            self._nonces[sender].add(nonce)

    async def take(self, draft: Draft) -> None:
        """Count one more. Raises `Refused` when that is too much, and counts nothing then."""
        judge_status(self._policy)
        judge_cost(self._rules, draft.cost)
        policy = self._policy
        judge_budget(
            self._rules, draft.cost, total=policy.all_time.total + self._added, today=policy.today.total + self._added
        )
        nonces = self._check_user(draft)
        recent = await self._check_rate(draft)
        self._added += draft.cost
        if nonces is not None:
            nonces.add(_nonce(draft))
        if recent is not None:
            recent.append(to_micros(draft.created_at))

    def _check_user(self, draft: Draft) -> set[bytes] | None:
        most = self._rules.max_per_user_per_day
        if most is None:
            return None
        nonces = self._nonces[draft.sender]
        if len(nonces | {_nonce(draft)}) > most:
            raise Refused("max_per_user_per_day", f"the sender had {most} operations sponsored today")
        return nonces

    async def _check_rate(self, draft: Draft) -> list[int] | None:
        limit = self._rules.rate_limit
        if limit is None:
            return None
        since = to_micros(draft.created_at) - limit.per_seconds * 1_000_000
        if self._recent is None:
            rows = await self._connection.scalars(
                select(gas_sponsorships.c.created_at)
                .where(gas_sponsorships.c.policy_id == draft.policy_id, gas_sponsorships.c.created_at > since)
                .order_by(gas_sponsorships.c.created_at.desc())
                .limit(limit.requests)
            )
            self._recent = list(rows)
        if sum(moment > since for moment in self._recent) >= limit.requests:
            raise Refused("rate_limit", f"{limit.requests} operations were sponsored in {limit.per_seconds} seconds")
        return self._recent


async def move(connection: AsyncConnection, policy_id: str, day: int, *, reserved: int, spent: int) -> None:
    """Add to the sums of a policy, for all time and for the day of the sponsorship. Either may be negative."""
    await connection.execute(
        update(gas_policies)
        .where(gas_policies.c.id == policy_id)
        .values(reserved=gas_policies.c.reserved + reserved, spent=gas_policies.c.spent + spent)
    )
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    row = dialect.insert(gas_policy_days).values(policy_id=policy_id, day=day, reserved=reserved, spent=spent)
    columns = gas_policy_days.c
    await connection.execute(
        row.on_conflict_do_update(
            index_elements=[columns.policy_id, columns.day],
            set_={"reserved": columns.reserved + reserved, "spent": columns.spent + spent},
        )
    )


def day_of(draft: Draft) -> int:
    """The UTC day to which a sponsorship counts, in days since 1970-01-01."""
    return to_micros(draft.created_at) // _DAY_MICROS


async def imbalance(database: Database) -> list[str]:
    """Policies whose sums are not those of their sponsorships. Always none; for tests and the doctor."""
    rows = gas_sponsorships.c
    reserved = func.coalesce(func.sum(rows.reserved).filter(rows.state == "reserved"), 0)
    spent = func.coalesce(func.sum(rows.spent).filter(rows.state == "settled"), 0)
    true = (
        select(gas_policies.c.id, reserved.label("reserved"), spent.label("spent"))
        .select_from(gas_policies.outerjoin(gas_sponsorships, rows.policy_id == gas_policies.c.id))
        .group_by(gas_policies.c.id)
        .subquery()
    )
    days = (
        select(
            gas_policy_days.c.policy_id,
            func.sum(gas_policy_days.c.reserved).label("reserved"),
            func.sum(gas_policy_days.c.spent).label("spent"),
        )
        .group_by(gas_policy_days.c.policy_id)
        .subquery()
    )
    query = (
        select(gas_policies.c.id)
        .join(true, true.c.id == gas_policies.c.id)
        .outerjoin(days, days.c.policy_id == gas_policies.c.id)
        .where(
            or_(
                gas_policies.c.reserved != true.c.reserved,
                gas_policies.c.spent != true.c.spent + gas_policies.c.pruned,
                and_(days.c.reserved.is_not(None), days.c.reserved != true.c.reserved),
                and_(days.c.spent.is_not(None), days.c.spent != gas_policies.c.spent),
            )
        )
    )
    async with database.read() as connection:
        return list(await connection.scalars(query))


def _nonce(draft: Draft) -> bytes:
    return draft.nonce.to_bytes(32, "big")


def _columns(draft: Draft) -> dict[str, object]:
    return {
        "id": draft.id,
        "policy_id": draft.policy_id,
        "network": draft.network,
        "entry_point": draft.entry_point,
        "paymaster": draft.paymaster,
        "sender": draft.sender,
        "nonce": _nonce(draft),
        "hash": draft.hash,
        "day": day_of(draft),
        "price": plain(draft.price),
        "reserved": draft.cost,
        "spent": 0,
        "state": "reserved",
        "valid_until": draft.valid_until,
        "created_at": to_micros(draft.created_at),
    }
