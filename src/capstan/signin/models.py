"""The things of signing in: people, their sessions, and the links that are mailed to them. Plain values.

Tokens appear only where they are made, to be put into a cookie or a link; what is stored is their SHA-256.
"""

from datetime import datetime
from typing import Literal, Protocol

import msgspec

from capstan.access.models import Account

Role = Literal["operator", "member"]
LinkKind = Literal["reset", "invite", "setup"]


class User(msgspec.Struct, frozen=True):
    """A person who may sign in."""

    id: str
    account_id: str
    email: str
    role: Role
    created_at: datetime

    @property
    def is_operator(self) -> bool:
        """Whether this person looks after the whole service."""
        return self.role == "operator"


class Session(msgspec.Struct, frozen=True):
    """Where somebody is signed in."""

    id: str
    user_id: str
    client: str
    agent: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


class SignedIn(msgspec.Struct, frozen=True):
    """Whoever is behind a session, with their account."""

    session: Session
    user: User
    account: Account


class Link(msgspec.Struct, frozen=True):
    """What a link that works once is for."""

    kind: LinkKind
    user_id: str | None
    account_id: str | None
    email: str
    role: Role
    expires_at: datetime


class Mail(msgspec.Struct, frozen=True):
    """A message that is to be sent."""

    recipient: str
    subject: str
    body: str


class Visit(msgspec.Struct, frozen=True):
    """Where a request comes from, as far as people are told."""

    client: str
    agent: str


class Secrets(Protocol):
    """Encrypts what must be known again."""

    def seal(self, secret: str, owner: str) -> bytes:
        """The secret as it is stored for this owner."""
        ...

    def unseal(self, sealed: bytes, owner: str) -> str:
        """The secret again."""
        ...
