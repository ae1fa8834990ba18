"""Indexes for lists of user operations: the newest, those of a sender, those of a state."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_index("ix_user_operations_created_at", "user_operations", ["created_at", "hash"])
    op.create_index("ix_user_operations_sender", "user_operations", ["sender", "created_at"])
    op.create_index("ix_user_operations_state", "user_operations", ["state", "created_at"])
