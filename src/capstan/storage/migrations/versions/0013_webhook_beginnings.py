"""Webhooks: from which block a network is watched, and transactions that may have been mined before."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("webhook_revisions", sa.Column("first_block", sa.BigInteger(), nullable=True))
    op.create_table(
        "webhook_lookbacks",
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("webhook_id", name="pk_webhook_lookbacks"),
    )
    op.create_index("ix_webhook_lookbacks_network", "webhook_lookbacks", ["network"])
