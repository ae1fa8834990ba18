"""Signing in to the dashboard: sessions, second factors, links that work once, failed tries."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "user_sessions",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("user_id", sa.String(40), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_user_sessions"),
        sa.UniqueConstraint("digest", name="uq_user_sessions_digest"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_user_sessions_user_id", ondelete="CASCADE"),
    )
    op.create_index("ix_user_sessions_user_id_seen_at", "user_sessions", ["user_id", "seen_at"])
    op.create_index("ix_user_sessions_expires_at", "user_sessions", ["expires_at"])
    op.create_table(
        "user_totp",
        sa.Column("user_id", sa.String(40), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_user_totp"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_user_totp_user_id", ondelete="CASCADE"),
    )
    op.create_table(
        "user_links",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("user_id", sa.String(40), nullable=True),
        sa.Column("account_id", sa.String(40), nullable=True),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_user_links"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_user_links_user_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_user_links_account_id"),
        sa.CheckConstraint("kind IN ('reset', 'invite', 'setup')", name=op.f("ck_user_links_kind")),
    )
    for column in ("user_id", "account_id", "expires_at"):
        op.create_index(f"ix_user_links_{column}", "user_links", [column])
    op.create_table(
        "sign_in_failures",
        sa.Column("subject", sa.String(80), nullable=False),
        sa.Column("window_ends_at", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name="pk_sign_in_failures"),
    )
    op.create_index("ix_sign_in_failures_window_ends_at", "sign_in_failures", ["window_ends_at"])
