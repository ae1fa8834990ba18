"""The bundler: its pool, the reputations of entities, and the transactions that carry bundles."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "bundler_pools",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", name="pk_bundler_pools"),
    )
    op.create_table(
        "user_operations",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("entry_point", sa.LargeBinary(20), nullable=False),
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("validated", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("signer", sa.LargeBinary(20), nullable=True),
        sa.Column("signer_nonce", sa.BigInteger(), nullable=True),
        sa.Column("tx_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("network", "hash", name="pk_user_operations"),
        sa.CheckConstraint(
            "state IN ('pending', 'submitted', 'included', 'failed')", name=op.f("ck_user_operations_state")
        ),
    )
    op.create_index("ix_user_operations_network_revision", "user_operations", ["network", "revision"])
    op.create_index("ix_user_operations_network_block_hash", "user_operations", ["network", "block_hash"])
    op.create_index(
        "ix_user_operations_network_signer_signer_nonce", "user_operations", ["network", "signer", "signer_nonce"]
    )
    op.create_table(
        "bundler_reputations",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("entry_point", sa.LargeBinary(20), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("included", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "entry_point", "address", name="pk_bundler_reputations"),
    )
    op.create_index("ix_bundler_reputations_network_revision", "bundler_reputations", ["network", "revision"])
    op.create_table(
        "bundles",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("signer", sa.LargeBinary(20), nullable=False),
        sa.Column("nonce", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("entry_point", sa.LargeBinary(20), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("tx_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=True),
        sa.PrimaryKeyConstraint("network", "signer", "nonce", name="pk_bundles"),
        sa.CheckConstraint("state IN ('open', 'mined', 'lost')", name=op.f("ck_bundles_state")),
    )
    op.create_index("ix_bundles_network_state", "bundles", ["network", "state"])
    op.create_index("ix_bundles_network_block_hash", "bundles", ["network", "block_hash"])
    op.create_table(
        "bundle_transactions",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("signer", sa.LargeBinary(20), nullable=False),
        sa.Column("nonce", sa.BigInteger(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("operations", sa.LargeBinary(), nullable=False),
        sa.Column("max_fee", sa.Text(), nullable=False),
        sa.Column("max_priority_fee", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "hash", name="pk_bundle_transactions"),
    )
    op.create_index(
        "ix_bundle_transactions_network_signer_nonce", "bundle_transactions", ["network", "signer", "nonce"]
    )
