"""The queries of gas policies, and nothing else. Called by the policy service and, for one policy, by sponsoring."""

from typing import Any

import msgspec
from sqlalchemy import RowMapping, and_, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.store import from_micros, to_micros
from capstan.gas.policies.models import DecisionHook, Policy, Spending
from capstan.storage.database import Database
from capstan.storage.schema import accounts, cursors, gas_policies, gas_policy_days

# The name of the cursor of the stream that settles sponsorships.
STREAM_ROLE = "gas"


class TooManyPolicies(Exception):
    """The account has as many policies as its plan allows."""


class PolicyStore:
    """Rows of policies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, policy: Policy, *, at_most: int) -> None:
        """Write a policy. Raises `TooManyPolicies` when the account has `at_most` that are not archived (0: any)."""
        async with self._database.write() as connection:
            # The account's row is locked, so that two processes cannot both see room for one more.
            await connection.execute(select(accounts.c.id).where(accounts.c.id == policy.account_id).with_for_update())
            living = and_(gas_policies.c.account_id == policy.account_id, gas_policies.c.status != "archived")
            count = await connection.scalar(select(func.count()).select_from(gas_policies).where(living))
            if at_most and int(count or 0) >= at_most:
                raise TooManyPolicies
            await connection.execute(insert(gas_policies).values(**_columns(policy)))

    async def find(self, account_id: str, policy_id: str, day: int) -> Policy | None:
        """A policy of the account, with the sums of a UTC day."""
        async with self._database.read() as connection:
            row = await _first(connection, account_id, policy_id, day)
            return None if row is None else _policy(row)

    async def page(
        self, account_id: str, day: int, *, offset: int, limit: int, status: str | None = None
    ) -> tuple[list[Policy], int]:
        """Some of the account's policies, the newest first, and how many there are."""
        matching = gas_policies.c.account_id == account_id
        if status is not None:
            matching = and_(matching, gas_policies.c.status == status)
        query = (
            _with_day(day)
            .where(matching)
            .order_by(gas_policies.c.created_at.desc(), gas_policies.c.id.desc())
            .offset(offset)
            .limit(limit)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
            total = await connection.scalar(select(func.count()).select_from(gas_policies).where(matching))
            return [_policy(row) for row in rows], int(total or 0)

    async def newest(self, account_id: str, day: int, *, after: tuple[int, str] | None, limit: int) -> list[Policy]:
        """The account's policies, the newest first, after the one created then (in microseconds) with that id."""
        columns = gas_policies.c
        query = _with_day(day).where(columns.account_id == account_id)
        if after is not None:
            query = query.where(tuple_(columns.created_at, columns.id) < tuple_(*after))
        query = query.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit)
        async with self._database.read() as connection:
            return [_policy(row) for row in (await connection.execute(query)).mappings()]

    async def change(self, policy: Policy) -> bool:
        """Write name, rules, hook and status; false when the policy was archived meanwhile."""
        names = ("name", "rules", "hook", "status", "updated_at")
        values = {name: value for name, value in _columns(policy).items() if name in names}
        async with self._database.write() as connection:
            done = await connection.execute(
                update(gas_policies)
                .where(gas_policies.c.id == policy.id, gas_policies.c.status != "archived")
                .values(**values)
            )
            return bool(done.rowcount)

    async def networks(self) -> dict[str, int | None]:
        """The networks with policies; for those whose stream never ran, the block at which it has to begin."""
        async with self._database.read() as connection:
            rows = await connection.execute(
                select(gas_policies.c.network, func.min(gas_policies.c.from_block)).group_by(gas_policies.c.network)
            )
            known = set(await connection.scalars(select(cursors.c.network).where(cursors.c.role == STREAM_ROLE)))
            return {network: None if network in known else first for network, first in rows}


async def locked_policy(connection: AsyncConnection, policy_id: str, day: int) -> Policy | None:
    """A policy whose row is locked until the end of the transaction."""
    # SQLite has one writer at a time, which is a lock already. Elsewhere the row is locked before anything is read:
    # what is read with the lock may be from before the wait for it.
    if connection.dialect.name != "sqlite":
        await connection.execute(select(gas_policies.c.id).where(gas_policies.c.id == policy_id).with_for_update())
    return await present_policy(connection, policy_id, day)


async def present_policy(connection: AsyncConnection, policy_id: str, day: int) -> Policy | None:
    """A policy as it is now, without a lock."""
    row = (await connection.execute(_with_day(day).where(gas_policies.c.id == policy_id))).mappings().first()
    return None if row is None else _policy(row)


async def _first(connection: AsyncConnection, account_id: str, policy_id: str, day: int) -> RowMapping | None:
    query = _with_day(day).where(gas_policies.c.id == policy_id, gas_policies.c.account_id == account_id)
    return (await connection.execute(query)).mappings().first()


def _with_day(day: int) -> Any:
    days = gas_policy_days.c
    return select(gas_policies, days.reserved.label("day_reserved"), days.spent.label("day_spent")).outerjoin(
        gas_policy_days, and_(days.policy_id == gas_policies.c.id, days.day == day)
    )


def _columns(policy: Policy) -> dict[str, Any]:
    return {
        "id": policy.id,
        "account_id": policy.account_id,
        "name": policy.name,
        "chain": policy.chain,
        "network": policy.network,
        "rules": policy.rules,
        "hook": None if policy.hook is None else msgspec.json.encode(policy.hook).decode(),
        "status": policy.status,
        "reserved": policy.all_time.reserved,
        "spent": policy.all_time.spent,
        "from_block": policy.from_block,
        "created_at": to_micros(policy.created_at),
        "updated_at": to_micros(policy.updated_at),
    }


def _policy(row: RowMapping) -> Policy:
    return Policy(
        id=row["id"],
        account_id=row["account_id"],
        name=row["name"],
        chain=row["chain"],
        network=row["network"],
        rules=row["rules"],
        hook=None if row["hook"] is None else msgspec.json.decode(row["hook"], type=DecisionHook),
        status=row["status"],
        all_time=Spending(row["reserved"], row["spent"]),
        today=Spending(row["day_reserved"] or 0, row["day_spent"] or 0),
        from_block=row["from_block"],
        created_at=from_micros(row["created_at"]),
        updated_at=from_micros(row["updated_at"]),
    )
