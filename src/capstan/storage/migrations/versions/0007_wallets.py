"""Smart wallets, and where they appeared on the chain."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "wallets",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("chain", sa.String(32), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("owner", sa.LargeBinary(20), nullable=False),
        sa.Column("owner_text", sa.String(42), nullable=False),
        sa.Column("salt", sa.LargeBinary(32), nullable=False),
        sa.Column("factory", sa.LargeBinary(20), nullable=False),
        sa.Column("entry_point", sa.LargeBinary(20), nullable=False),
        sa.Column("version", sa.String(8), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("absent_at", sa.BigInteger(), nullable=True),
        sa.Column("deployed", sa.Boolean(), nullable=False),
        sa.Column("deploy_block", sa.BigInteger(), nullable=True),
        sa.Column("deploy_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("deploy_tx", sa.LargeBinary(32), nullable=True),
        sa.Column("deployed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_wallets"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_wallets_account_id"),
        sa.UniqueConstraint(
            "account_id", "network", "owner", "salt", "factory", name="uq_wallets_account_id_network_owner_salt_factory"
        ),
    )
    op.create_index("ix_wallets_account_id_created_at_id", "wallets", ["account_id", "created_at", "id"])
    op.create_index("ix_wallets_address_network", "wallets", ["address", "network"])
    op.create_index("ix_wallets_network_deploy_hash", "wallets", ["network", "deploy_hash"])
