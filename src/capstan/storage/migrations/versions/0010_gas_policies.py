"""Gas policies, and what was sponsored under them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "gas_policies",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("chain", sa.String(32), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("hook", sa.Text(), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("from_block", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gas_policies"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_gas_policies_account_id"),
        sa.CheckConstraint("status IN ('active', 'paused', 'archived')", name="ck_gas_policies_status"),
    )
    op.create_index("ix_gas_policies_account_id_created_at_id", "gas_policies", ["account_id", "created_at", "id"])
    op.create_index("ix_gas_policies_network", "gas_policies", ["network"])
    op.create_table(
        "gas_policy_days",
        sa.Column("policy_id", sa.String(40), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("policy_id", "day", name="pk_gas_policy_days"),
        sa.ForeignKeyConstraint(["policy_id"], ["gas_policies.id"], name="fk_gas_policy_days_policy_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gas_sponsorships",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("policy_id", sa.String(40), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("entry_point", sa.LargeBinary(20), nullable=False),
        sa.Column("paymaster", sa.LargeBinary(20), nullable=False),
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("nonce", sa.LargeBinary(32), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=True),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("price", sa.Text(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("actual_cost", sa.Text(), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("valid_until", sa.BigInteger(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("transaction_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gas_sponsorships"),
        sa.ForeignKeyConstraint(["policy_id"], ["gas_policies.id"], name="fk_gas_sponsorships_policy_id"),
        sa.CheckConstraint("state IN ('reserved', 'settled', 'released')", name="ck_gas_sponsorships_state"),
    )
    for columns in (
        ["policy_id", "created_at"],
        ["policy_id", "sender", "day"],
        ["network", "sender", "nonce"],
        ["network", "state", "valid_until"],
        ["network", "block_hash"],
    ):
        op.create_index(f"ix_gas_sponsorships_{'_'.join(columns)}", "gas_sponsorships", columns)
