"""Accounts in the order in which they were made, for the operator's list."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_index("ix_accounts_created_at_id", "accounts", ["created_at", "id"])
