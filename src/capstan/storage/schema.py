"""Every table of the service, as SQLAlchemy Core metadata.

Stores build their statements from these; the migrations create them, and a test holds the two against each other.
Moments are stored as UTC microseconds in an integer column, because SQLite has no timestamp type and integers compare
and index the same on both dialects. Amounts of tokens, which exceed 64 bits, are stored as decimal text.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", Text, nullable=False),
    Column("plan", String(32), nullable=False),
    # Limits the operator set for this account alone, as a JSON object; empty means the plan's.
    Column("overrides", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("status IN ('active', 'suspended')", name="status"),
)

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

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("mode", String(8), nullable=False),
    # SHA-256 of the key. The key has 190 bits of randomness, so a slow hash would add nothing.
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    # The last characters, so that a person can tell two keys apart.
    Column("hint", String(8), nullable=False),
    # Scopes as a JSON list; null means all of them.
    Column("scopes", Text, nullable=True),
    Column("created_at", BigInteger, nullable=False),
    Column("last_used_at", BigInteger, nullable=True),
    Column("revoked_at", BigInteger, nullable=True),
    CheckConstraint("mode IN ('live', 'test')", name="mode"),
    Index(None, "account_id", "created_at"),
)

# One row, locked by every change of accounts or keys, so that versions are committed in order: a reader that has seen
# version n has seen every change up to n. A plain sequence does not give that on PostgreSQL.
access_version = Table(
    "access_version",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", BigInteger, nullable=False),
)

access_changes = Table(
    "access_changes",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("account_id", String(40), nullable=False),
)

# Requests reserved from an account's daily limit. A process reserves a little ahead and gives back what it did not use.
day_usage = Table(
    "day_usage",
    metadata,
    Column("subject", String(64), primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("reserved", BigInteger, nullable=False),
    Index(None, "day"),
)
