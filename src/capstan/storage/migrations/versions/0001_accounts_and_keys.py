"""Accounts, users, API keys, and the record of their changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan", sa.String(32), nullable=False),
        sa.Column("overrides", sa.Text(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.CheckConstraint("status IN ('active', 'suspended')", name=op.f("ck_accounts_status")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_users_account_id"),
        sa.UniqueConstraint("email", name="uq_users_email"),
        sa.CheckConstraint("role IN ('operator', 'member')", name=op.f("ck_users_role")),
    )
    op.create_index("ix_users_account_id", "users", ["account_id"])
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(8), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("hint", sa.String(8), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_api_keys_account_id"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
        sa.CheckConstraint("mode IN ('live', 'test')", name=op.f("ck_api_keys_mode")),
    )
    op.create_index("ix_api_keys_account_id_created_at", "api_keys", ["account_id", "created_at"])
    version = op.create_table(
        "access_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_access_version"),
    )
    op.bulk_insert(version, [{"id": 1, "version": 0}])
    op.create_table(
        "access_changes",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_access_changes"),
    )
