"""Daily request counters."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "day_usage",
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "day", name="pk_day_usage"),
    )
    op.create_index("ix_day_usage_day", "day_usage", ["day"])
