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

# How many columns the histogram of latencies has. Column n counts the requests that took less than 2^(7+n) microseconds
# and at least half of that; the first has no lower end, the last no upper one. Columns, because SQL can add them up.
LATENCY_BUCKETS = 19


def _usage_counts() -> list[Column[int]]:
    names = ("requests", "units", "errors", "cached", "microseconds")
    buckets = (f"latency_{number:02}" for number in range(LATENCY_BUCKETS))
    return [Column(name, BigInteger, nullable=False) for name in (*names, *buckets)]


# What every key used, by minute (minutes since 1970-01-01 UTC) and by day (days since then). Without SQLite's row ids:
# the rows are small, and with them the primary key would be stored twice.
usage_minute = Table(
    "usage_minute",
    metadata,
    Column("account_id", String(40), primary_key=True),
    Column("minute", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(40), primary_key=True),
    Column("network", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    *_usage_counts(),
    Index(None, "minute"),
    sqlite_with_rowid=False,
)

usage_day = Table(
    "usage_day",
    metadata,
    Column("account_id", String(40), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(40), primary_key=True),
    Column("network", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    *_usage_counts(),
    Index(None, "day"),
    sqlite_with_rowid=False,
)

# The last batch of counts that each process has added to the two tables above, written in the same transaction, so that
# a batch whose commit was not confirmed is never added twice.
usage_flushes = Table(
    "usage_flushes",
    metadata,
    Column("process", String(40), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("flushed_at", BigInteger, nullable=False),
    Index(None, "flushed_at"),
)
