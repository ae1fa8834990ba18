"""Webhooks: subscriptions, events, attempts, quotas, and mail that is to be sent."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    _subscriptions()
    _events()
    _others()


def _subscriptions() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("chain", sa.String(32), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_type", sa.String(32), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_until", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(16), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_webhooks_account_id"),
        sa.CheckConstraint("status IN ('active', 'paused', 'disabled')", name=op.f("ck_webhooks_status")),
    )
    op.create_index("ix_webhooks_account_id_created_at_id", "webhooks", ["account_id", "created_at", "id"])
    op.create_index("ix_webhooks_network_revision", "webhooks", ["network", "revision"])
    op.create_table(
        "webhook_revisions",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", name="pk_webhook_revisions"),
    )
    op.create_table(
        "webhook_lanes",
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed_until", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("webhook_id", name="pk_webhook_lanes"),
    )
    op.create_index("ix_webhook_lanes_due_at", "webhook_lanes", ["due_at"])


def _events() -> None:
    op.create_table(
        "webhook_events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("phase", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("ready_block", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("needs", sa.Text(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_webhook_events"),
        sa.UniqueConstraint("id", name="uq_webhook_events_id"),
        sa.CheckConstraint(
            "state IN ('waiting', 'pending', 'quota_held', 'delivered', 'failed')", name=op.f("ck_webhook_events_state")
        ),
    )
    op.create_index("ix_webhook_events_lane", "webhook_events", ["webhook_id", "state", "due_at"])
    op.create_index("ix_webhook_events_block", "webhook_events", ["network", "block_hash"])
    op.create_index("ix_webhook_events_ready", "webhook_events", ["network", "ready_block"])
    retrying = sa.text("retries > 0 AND state = 'pending'")
    op.create_index(
        "ix_webhook_events_retry", "webhook_events", ["due_at"], sqlite_where=retrying, postgresql_where=retrying
    )
    op.create_index("ix_webhook_events_created_at", "webhook_events", ["created_at"])
    op.create_table(
        "webhook_attempts",
        sa.Column("event_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("response", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("event_seq", "number", name="pk_webhook_attempts"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_webhook_attempts_webhook_id_at", "webhook_attempts", ["webhook_id", "at"])
    op.create_index("ix_webhook_attempts_at", "webhook_attempts", ["at"])


def _others() -> None:
    op.create_table(
        "webhook_days",
        sa.Column("account_id", sa.String(40), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "day", name="pk_webhook_days"),
    )
    op.create_table(
        "webhook_traces",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("block_number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("timestamp", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "block_number", "block_hash", name="pk_webhook_traces"),
    )
    op.create_table(
        "mails",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_mails"),
    )
    op.create_index("ix_mails_due_at", "mails", ["due_at"])
