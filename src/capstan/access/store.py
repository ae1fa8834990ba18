"""The queries of accounts, keys and users, and the ordered record of their changes. Nothing else.

Called by the access service and the key directory. Every write that changes what a key may do also records a change,
in the same transaction, so that other processes notice.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import RowMapping, Select, delete, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.models import Account, ApiKey, Overrides, Scope
from capstan.storage.database import Database
from capstan.storage.schema import access_changes, access_version, accounts, api_keys, users

# How many changes are kept. A process that fell further behind forgets everything it has cached.
_CHANGES_KEPT = 10_000
# Well below the number of parameters that either database takes in one statement.
_TOUCHED_AT_ONCE = 500


def to_micros(moment: datetime) -> int:
    """A moment as the integer that is stored."""
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def from_micros(value: int) -> datetime:
    """The moment behind a stored integer."""
    return datetime.fromtimestamp(value // 1_000_000, UTC).replace(microsecond=value % 1_000_000)


class AccessStore:
    """Rows of accounts, keys and users."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._glance = database.glance(select(access_version.c.version))

    async def add_account(self, account: Account) -> None:
        """Write a new account."""
        async with self._database.write() as connection:
            await insert_account(connection, account)

    async def account(self, account_id: str) -> Account | None:
        """One account, or None."""
        row = await self._first(select(accounts).where(accounts.c.id == account_id))
        return account_of(row) if row else None

    async def accounts(self) -> list[Account]:
        """Every account, oldest first."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(accounts).order_by(accounts.c.created_at, accounts.c.id))
            return [account_of(row) for row in rows.mappings()]

    async def newest_accounts(self, *, after: tuple[int, str] | None, limit: int) -> list[Account]:
        """Some accounts, the newest first, from behind the one that was created then and has this id."""
        query = select(accounts).order_by(accounts.c.created_at.desc(), accounts.c.id.desc()).limit(limit)
        if after is not None:
            query = query.where(tuple_(accounts.c.created_at, accounts.c.id) < after)
        async with self._database.read() as connection:
            return [account_of(row) for row in (await connection.execute(query)).mappings()]

    async def change_account(self, account_id: str, **values: Any) -> bool:
        """Set columns of one account. False when there is no such account."""
        async with self._database.write() as connection:
            result = await connection.execute(update(accounts).where(accounts.c.id == account_id).values(**values))
            if result.rowcount == 0:
                return False
            await _record_change(connection, account_id)
            return True

    async def add_key(self, key: ApiKey, digest: bytes, *, at_most: int) -> bool:
        """Write a new key. False when the account already has `at_most` keys that are not revoked (0: no limit)."""
        async with self._database.write() as connection:
            # The version row is locked first, so two processes cannot both see room for one more key.
            await _record_change(connection, key.account_id)
            if at_most:
                present = await connection.scalar(
                    select(func.count())
                    .select_from(api_keys)
                    .where(api_keys.c.account_id == key.account_id, api_keys.c.revoked_at.is_(None))
                )
                if (present or 0) >= at_most:
                    return False
            await connection.execute(
                insert(api_keys).values(
                    id=key.id,
                    account_id=key.account_id,
                    name=key.name,
                    mode=key.mode,
                    digest=digest,
                    hint=key.hint,
                    scopes=None if key.scopes is None else msgspec.json.encode(key.scopes).decode(),
                    created_at=to_micros(key.created_at),
                )
            )
            return True

    async def keys(self, account_id: str | None) -> list[ApiKey]:
        """The keys of one account, or of all, oldest first."""
        query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        if account_id is not None:
            query = query.where(api_keys.c.account_id == account_id)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return [_key(row) for row in rows.mappings()]

    async def key(self, key_id: str) -> ApiKey | None:
        """One key by its id."""
        row = await self._first(select(api_keys).where(api_keys.c.id == key_id))
        return _key(row) if row else None

    async def key_by_digest(self, digest: bytes) -> tuple[ApiKey, Account] | None:
        """The key with this digest and its account, whatever their states."""
        async with self._database.read() as connection:
            found = (await connection.execute(select(api_keys).where(api_keys.c.digest == digest))).mappings().first()
            if found is None:
                return None
            owner = await connection.execute(select(accounts).where(accounts.c.id == found["account_id"]))
            return _key(found), account_of(owner.mappings().one())

    async def revoke_key(self, key_id: str, at: datetime) -> bool:
        """Revoke a key for good. False when it does not exist or is revoked already."""
        async with self._database.write() as connection:
            row = (
                (
                    await connection.execute(
                        update(api_keys)
                        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
                        .values(revoked_at=to_micros(at))
                        .returning(api_keys.c.account_id)
                    )
                )
                .mappings()
                .first()
            )
            if row is None:
                return False
            await _record_change(connection, row["account_id"])
            return True

    async def touch_keys(self, key_ids: Collection[str], at: datetime) -> None:
        """Note when keys were last used. Not a change of access, so it is not recorded as one."""
        ordered = sorted(key_ids)
        async with self._database.write() as connection:
            for start in range(0, len(ordered), _TOUCHED_AT_ONCE):
                some = ordered[start : start + _TOUCHED_AT_ONCE]
                await connection.execute(
                    update(api_keys).where(api_keys.c.id.in_(some)).values(last_used_at=to_micros(at))
                )

    async def version(self) -> int:
        """The number of the latest change."""
        async with self._database.read() as connection:
            return int(await connection.scalar(select(access_version.c.version)) or 0)

    async def changes_since(self, version: int) -> tuple[int, list[str] | None]:
        """The latest version, and the accounts changed after `version`; None when too much has happened to list."""
        if [row[0] for row in await self._glance.ask()] == [version]:
            return version, []
        async with self._database.read() as connection:
            latest = int(await connection.scalar(select(access_version.c.version)) or 0)
            if latest < version or latest - version > _CHANGES_KEPT // 2:
                return latest, None
            rows = await connection.scalars(
                select(access_changes.c.account_id).where(access_changes.c.version > version).distinct()
            )
            return latest, list(rows)

    async def add_user(
        self, *, user_id: str, account_id: str, email: str, password_hash: str, role: str, at: datetime
    ) -> None:
        """Write a person who may sign in to the dashboard."""
        async with self._database.write() as connection:
            await insert_user(connection, user_id, account_id, email, password_hash, role, at)

    async def _first(self, query: Select[Any]) -> RowMapping | None:
        async with self._database.read() as connection:
            row: RowMapping | None = (await connection.execute(query)).mappings().first()
            return row


async def insert_account(connection: AsyncConnection, account: Account) -> None:
    """Write a new account within a transaction."""
    await connection.execute(
        insert(accounts).values(
            id=account.id,
            name=account.name,
            plan=account.plan,
            overrides=msgspec.json.encode(account.overrides).decode(),
            status=account.status,
            created_at=to_micros(account.created_at),
        )
    )


async def insert_user(
    connection: AsyncConnection,
    user_id: str,
    account_id: str,
    email: str,
    password_hash: str,
    role: str,
    at: datetime,
) -> None:
    """Write a new person within a transaction."""
    await connection.execute(
        insert(users).values(
            id=user_id,
            account_id=account_id,
            email=email,
            password_hash=password_hash,
            role=role,
            created_at=to_micros(at),
        )
    )


async def _record_change(connection: AsyncConnection, account_id: str) -> None:
    version = await connection.scalar(
        update(access_version).values(version=access_version.c.version + 1).returning(access_version.c.version)
    )
    if version is None:
        raise RuntimeError("the table access_version has lost its row")
    await connection.execute(insert(access_changes).values(version=version, account_id=account_id))
    await connection.execute(delete(access_changes).where(access_changes.c.version <= version - _CHANGES_KEPT))


def account_of(row: RowMapping) -> Account:
    """The account of a row."""
    return Account(
        id=row["id"],
        name=row["name"],
        plan=row["plan"],
        overrides=msgspec.json.decode(row["overrides"], type=Overrides),
        status=row["status"],
        created_at=from_micros(row["created_at"]),
    )


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(
        id=row["id"],
        account_id=row["account_id"],
        name=row["name"],
        mode=row["mode"],
        hint=row["hint"],
        scopes=None if row["scopes"] is None else msgspec.json.decode(row["scopes"], type=tuple[Scope, ...]),
        created_at=from_micros(row["created_at"]),
        last_used_at=None if row["last_used_at"] is None else from_micros(row["last_used_at"]),
        revoked_at=None if row["revoked_at"] is None else from_micros(row["revoked_at"]),
    )
