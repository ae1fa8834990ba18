"""The durable side of the canonical stream: cursors, the blocks that may still be taken back, and leases."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "cursors",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(66), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("final", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "role", name="pk_cursors"),
    )
    op.create_table(
        "applied_blocks",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(66), nullable=False),
        sa.Column("parent_hash", sa.String(66), nullable=False),
        sa.Column("timestamp", sa.BigInteger(), nullable=False),
        sa.Column("header", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("network", "role", "number", name="pk_applied_blocks"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("holder", sa.String(40), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
