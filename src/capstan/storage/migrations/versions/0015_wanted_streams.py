"""Which streams are wanted, so that a process which follows the chains learns of it from one that serves requests."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "wanted_streams",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("network", "role", name="pk_wanted_streams"),
    )
