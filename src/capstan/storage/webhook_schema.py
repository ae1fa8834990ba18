"""The tables of webhooks: subscriptions, events, attempts, quotas, and mail that is to be sent.

A part of `schema`, in a file of its own; the same rules hold for its columns.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    text,
)

from capstan.storage.metadata import metadata

# Webhooks. `config` is JSON as the request had it; the secrets are encrypted. `revision` is that of the last change on
# its network, by which those who match events notice it. A deleted one stays as an empty row until all have noticed.
webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("chain", String(32), nullable=False),
    Column("network", String(64), nullable=False),
    Column("url", Text, nullable=False),
    Column("event_type", String(32), nullable=False),
    Column("config", Text, nullable=False),
    Column("secret", LargeBinary, nullable=False),
    # The secret before the last rotation, which signs too until then.
    Column("previous_secret", LargeBinary, nullable=True),
    Column("previous_until", BigInteger, nullable=True),
    Column("status", String(16), nullable=False),
    Column("reason", String(16), nullable=True),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger, nullable=True),
    CheckConstraint("status IN ('active', 'paused', 'disabled')", name="status"),
    Index(None, "account_id", "created_at", "id"),
    Index(None, "network", "revision"),
)

# The last revision of each network, one row each, locked by every change, so that revisions are committed in order.
webhook_revisions = Table(
    "webhook_revisions",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    # The first block that counts, until the stream of the network has a cursor. None: the head.
    Column("first_block", BigInteger, nullable=True),
)

# Webhooks whose transactions may have been mined before they were there, or before their filter was changed.
webhook_lookbacks = Table(
    "webhook_lookbacks",
    metadata,
    Column("webhook_id", String(40), primary_key=True),
    Column("network", String(64), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index(None, "network"),
)

# The events of each webhook are delivered by one worker at a time: it claims the lane until `claimed_until`. `due_at`
# is when there is something to do. Apart from `webhooks`, whose rows may be large.
webhook_lanes = Table(
    "webhook_lanes",
    metadata,
    Column("webhook_id", String(40), primary_key=True),
    Column("due_at", BigInteger, nullable=False),
    Column("claimed_until", BigInteger, nullable=False),
    # Counts the claims, so that whoever lost one notices.
    Column("token", BigInteger, nullable=False),
    Index(None, "due_at"),
)

# Events of webhooks, in the order in which they happened. `body` is what is sent, byte for byte. `needs` is JSON that
# tells what is still to be looked up for it before it is first sent.
webhook_events = Table(
    "webhook_events",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("webhook_id", String(40), nullable=False),
    Column("network", String(64), nullable=False),
    Column("block_number", BigInteger, nullable=True),
    Column("block_hash", LargeBinary(32), nullable=True),
    Column("position", Text, nullable=False),
    # Even: the block was applied; odd: it was taken back. Two more each time it comes back.
    Column("phase", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    # While it waits for confirmations: the number of the block that gives the last one.
    Column("ready_block", BigInteger, nullable=True),
    Column("body", LargeBinary, nullable=False),
    Column("needs", Text, nullable=True),
    Column("due_at", BigInteger, nullable=False),
    # Retries since the first attempt, or since the webhook was resumed or the event replayed.
    Column("retries", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    # Whether it was counted in the daily quota.
    Column("counted", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("state IN ('waiting', 'pending', 'quota_held', 'delivered', 'failed')", name="state"),
    Index("ix_webhook_events_lane", "webhook_id", "state", "due_at"),
    Index("ix_webhook_events_block", "network", "block_hash"),
    Index("ix_webhook_events_ready", "network", "ready_block"),
    Index(
        "ix_webhook_events_retry",
        "due_at",
        sqlite_where=text("retries > 0 AND state = 'pending'"),
        postgresql_where=text("retries > 0 AND state = 'pending'"),
    ),
    Index(None, "created_at"),
)

webhook_attempts = Table(
    "webhook_attempts",
    metadata,
    Column("event_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("webhook_id", String(40), nullable=False),
    Column("at", BigInteger, nullable=False),
    # None when there was no answer; then `error` says why.
    Column("status", Integer, nullable=True),
    Column("latency_ms", Integer, nullable=False),
    Column("error", Text, nullable=True),
    # The beginning of what the receiver said.
    Column("response", LargeBinary, nullable=True),
    Index(None, "webhook_id", "at"),
    Index(None, "at"),
    sqlite_with_rowid=False,
)

# First attempts of an account on a UTC day.
webhook_days = Table(
    "webhook_days",
    metadata,
    Column("account_id", String(40), primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("used", BigInteger, nullable=False),
)

# Blocks whose calls are still to be traced for internal transfers.
webhook_traces = Table(
    "webhook_traces",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("block_number", BigInteger, primary_key=True, autoincrement=False),
    Column("block_hash", LargeBinary(32), primary_key=True),
    Column("timestamp", BigInteger, nullable=False),
)

# Mail that is still to be sent.
mails = Table(
    "mails",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("recipient", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Index(None, "due_at"),
)
