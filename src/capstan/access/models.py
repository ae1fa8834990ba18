"""The things of access: accounts, keys, scopes, and the caller that a request turns into.

Plain values, shared by the store, the service, the directory and the server. A key's secret appears only in
`IssuedKey`, which is made once, at creation.
"""

from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec

Mode = Literal["live", "test"]
Plan = Literal["free", "growth", "enterprise"]


class Scope(StrEnum):
    """What a key may be restricted to when it is created."""

    RPC_READ = "rpc:read"
    RPC_WRITE = "rpc:write"
    DATA_READ = "data:read"
    WALLETS_MANAGE = "wallets:manage"
    WEBHOOKS_MANAGE = "webhooks:manage"
    GAS_MANAGE = "gas:manage"
    BUNDLER_SEND = "bundler:send"


ALL_SCOPES: frozenset[Scope] = frozenset(Scope)


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits the operator set for one account. `None` means the plan's number, 0 means no limit."""

    requests_per_second: int | None = None
    requests_per_day: int | None = None
    units_per_second: int | None = None
    deliveries_per_day: int | None = None
    webhooks: int | None = None
    wallets: int | None = None
    policies: int | None = None
    keys: int | None = None


NO_OVERRIDES = Overrides()


class Account(msgspec.Struct, frozen=True):
    """Who is billed and limited."""

    id: str
    name: str
    plan: Plan
    overrides: Overrides
    status: Literal["active", "suspended"]
    created_at: datetime


class ApiKey(msgspec.Struct, frozen=True):
    """What is known of a key, never the key itself. `scopes` None means all of them."""

    id: str
    account_id: str
    name: str
    mode: Mode
    hint: str
    scopes: tuple[Scope, ...] | None
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class IssuedKey(msgspec.Struct, frozen=True):
    """A new key with its secret. The secret is shown to its owner and then forgotten."""

    secret: str
    key: ApiKey


class Caller(msgspec.Struct, frozen=True):
    """The authenticated sender of a request."""

    account_id: str
    key_id: str
    mode: Mode
    plan: Plan
    overrides: Overrides
    scopes: frozenset[Scope]
    suspended: bool = False

    def has_scope(self, scope: str) -> bool:
        """Whether the key carries `scope`."""
        return scope in self.scopes
