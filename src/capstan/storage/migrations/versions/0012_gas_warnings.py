"""Warnings about paymasters and signers that have little left; what was spent by sponsorships that are not kept."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "gas_warnings",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(24), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("version", sa.String(8), nullable=True),
        sa.Column("balance", sa.Text(), nullable=False),
        sa.Column("least", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "kind", "address", name="pk_gas_warnings"),
        sa.CheckConstraint("kind IN ('paymaster_deposit', 'signer_balance')", name="ck_gas_warnings_kind"),
    )
    op.add_column("gas_policies", sa.Column("pruned", sa.BigInteger(), nullable=False, server_default="0"))
