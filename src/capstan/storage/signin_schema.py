"""The tables of people: who may sign in to the dashboard, their sessions, second factors, links and failed tries.

A part of `schema`, in a file of its own; the same rules hold for its columns.
"""

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from capstan.storage.metadata import metadata

users = Table(
    "users",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("email", Text, nullable=False, unique=True),
    Column("password_hash", Text, nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("role IN ('operator', 'member')", name="role"),
    Index(None, "account_id"),
)

# Where people are signed in. The cookie holds a random token, of which only the SHA-256 is stored. `seen_at` is written
# at most once a minute.
user_sessions = Table(
    "user_sessions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("user_id", ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    Column("client", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index(None, "user_id", "seen_at"),
    Index(None, "expires_at"),
)

# Second factors (RFC 6238). The secret is encrypted. `last_step` is the last step whose code was used, so that no code
# counts twice.
user_totp = Table(
    "user_totp",
    metadata,
    Column("user_id", ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Column("secret", LargeBinary, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Links that work once: a new password, an invitation, the first operator. Only the SHA-256 of the token is stored.
user_links = Table(
    "user_links",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("user_id", ForeignKey("users.id", ondelete="CASCADE"), nullable=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=True),
    Column("email", Text, nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    CheckConstraint("kind IN ('reset', 'invite', 'setup')", name="kind"),
    Index(None, "user_id"),
    Index(None, "account_id"),
    Index(None, "expires_at"),
)

# Tries to sign in that failed, by what was tried and from where, within one window of time.
sign_in_failures = Table(
    "sign_in_failures",
    metadata,
    Column("subject", String(80), primary_key=True),
    Column("window_ends_at", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Index(None, "window_ends_at"),
)
