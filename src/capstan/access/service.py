"""The rules for accounts and keys: creating, listing, revoking, suspending.

Called by the command line and the dashboard. Checking a key on a request is the directory's work, not this module's.
"""

from collections.abc import Callable, Iterable

import msgspec
from argon2 import PasswordHasher

from capstan.access.models import Account, ApiKey, IssuedKey, Mode, Overrides, Plan, Scope
from capstan.access.secrets import digest, hint, new_secret
from capstan.access.store import AccessStore
from capstan.core.clock import Clock, utc
from capstan.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from capstan.core.ids import new_id

_NAME_LENGTH = 200


class AccessService:
    """Creates and changes accounts and keys."""

    def __init__(self, store: AccessStore, clock: Clock, *, key_limit: Callable[[Account], int]) -> None:
        self._store = store
        self._clock = clock
        self._key_limit = key_limit

    async def create_account(self, name: str, plan: Plan, overrides: Overrides | None = None) -> Account:
        """A new, active account."""
        account = Account(
            id=new_id("acc"),
            name=_checked_name(name),
            plan=plan,
            overrides=overrides or Overrides(),
            status="active",
            created_at=utc(self._clock),
        )
        await self._store.add_account(account)
        return account

    async def account(self, account_id: str) -> Account:
        """One account."""
        account = await self._store.account(account_id)
        if account is None:
            raise NotFound(f"account {account_id!r} does not exist; see: capstan accounts list")
        return account

    async def accounts(self) -> list[Account]:
        """Every account."""
        return await self._store.accounts()

    async def newest_accounts(self, *, after: tuple[int, str] | None, limit: int) -> list[Account]:
        """Some accounts, the newest first; `after` is the moment, in microseconds, and the id of the last one seen."""
        return await self._store.newest_accounts(after=after, limit=limit)

    async def change_limits(self, account_id: str, plan: Plan, overrides: Overrides) -> Account:
        """Another plan, or limits of its own, for an account. Every process acts on it within a second."""
        kept = msgspec.json.encode(overrides).decode()
        if not await self._store.change_account(account_id, plan=plan, overrides=kept):
            raise NotFound(f"account {account_id!r} does not exist; see: capstan accounts list")
        return await self.account(account_id)

    async def set_suspended(self, account_id: str, suspended: bool) -> Account:
        """Suspend an account, or lift the suspension. Every process acts on it within a second."""
        if not await self._store.change_account(account_id, status="suspended" if suspended else "active"):
            raise NotFound(f"account {account_id!r} does not exist; see: capstan accounts list")
        return await self.account(account_id)

    async def create_key(
        self, account_id: str, *, name: str, mode: Mode, scopes: Iterable[Scope] | None = None
    ) -> IssuedKey:
        """A new key of an account. Without scopes it has them all."""
        account = await self.account(account_id)
        secret = new_secret(mode)
        chosen = None if scopes is None else tuple(sorted(set(scopes)))
        key = ApiKey(
            id=new_id("key"),
            account_id=account.id,
            name=_checked_name(name),
            mode=mode,
            hint=hint(secret),
            scopes=chosen or None,
            created_at=utc(self._clock),
            last_used_at=None,
            revoked_at=None,
        )
        limit = self._key_limit(account)
        if not await self._store.add_key(key, digest(secret), at_most=limit):
            raise Forbidden(f"the plan {account.plan} allows {limit} keys; revoke one first or change the plan")
        return IssuedKey(secret=secret, key=key)

    async def keys(self, account_id: str | None = None) -> list[ApiKey]:
        """The keys of one account, or of all."""
        if account_id is not None:
            await self.account(account_id)
        return await self._store.keys(account_id)

    async def own_key(self, account_id: str, key_id: str) -> ApiKey:
        """A key of this very account."""
        key = await self._store.key(key_id)
        if key is None or key.account_id != account_id:
            raise NotFound(f"key {key_id!r} does not exist")
        return key

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key for good. Every process refuses it within a second."""
        revoked = await self._store.revoke_key(key_id, utc(self._clock))
        key = await self._store.key(key_id)
        if key is None:
            raise NotFound(f"key {key_id!r} does not exist; see: capstan keys list")
        if not revoked:
            raise Conflict(f"key {key_id!r} is revoked already")
        return key

    async def create_user(self, account_id: str, *, email: str, password: str, role: str) -> str:
        """A person who may sign in to the dashboard. The password is kept as an argon2id hash."""
        user_id = new_id("usr")
        await self._store.add_user(
            user_id=user_id,
            account_id=account_id,
            email=email.strip().lower(),
            password_hash=PasswordHasher().hash(password),
            role=role,
            at=utc(self._clock),
        )
        return user_id


def _checked_name(name: str) -> str:
    cleaned = name.strip()
    if not cleaned or len(cleaned) > _NAME_LENGTH or not cleaned.isprintable():
        raise InvalidRequest(f"name must be 1 to {_NAME_LENGTH} printable characters")
    return cleaned
