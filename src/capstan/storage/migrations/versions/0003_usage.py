"""The usage ledger: what every key used, by minute and by day."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_LATENCY_BUCKETS = 19


def upgrade() -> None:
    for table, moment in (("usage_minute", "minute"), ("usage_day", "day")):
        op.create_table(
            table,
            sa.Column("account_id", sa.String(40), nullable=False),
            sa.Column(moment, sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("key_id", sa.String(40), nullable=False),
            sa.Column("network", sa.Text(), nullable=False),
            sa.Column("method", sa.Text(), nullable=False),
            *_counts(),
            sa.PrimaryKeyConstraint("account_id", moment, "key_id", "network", "method", name=f"pk_{table}"),
            sqlite_with_rowid=False,
        )
        op.create_index(f"ix_{table}_{moment}", table, [moment])
    op.create_table(
        "usage_flushes",
        sa.Column("process", sa.String(40), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("flushed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("process", name="pk_usage_flushes"),
    )
    op.create_index("ix_usage_flushes_flushed_at", "usage_flushes", ["flushed_at"])


def _counts() -> list[sa.Column[int]]:
    names = ["requests", "units", "errors", "cached", "microseconds"]
    names += [f"latency_{number:02}" for number in range(_LATENCY_BUCKETS)]
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]
