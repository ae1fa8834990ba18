"""The tables of gas policies and sponsorships. A part of `schema`, in a file of its own.

Amounts of money are whole numbers of billionths of a US dollar, so that SQL can add and compare them exactly. Amounts
of wei exceed 64 bits and are decimal text.
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
)

from capstan.storage.metadata import metadata

# `reserved` and `spent` are sums over the policy's sponsorships, kept in the same transaction. Whoever changes them
# locks the row first.
gas_policies = Table(
    "gas_policies",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("chain", String(32), nullable=False),
    Column("network", String(64), nullable=False),
    # The rules and the decision hook as JSON, as they were given.
    Column("rules", Text, nullable=False),
    Column("hook", Text, nullable=True),
    Column("status", String(16), nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    # The part of `spent` whose sponsorships are not kept any more.
    Column("pruned", BigInteger, nullable=False, server_default="0"),
    # The head when the policy was created: no operation that it pays for can be in an earlier block.
    Column("from_block", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    CheckConstraint("status IN ('active', 'paused', 'archived')", name="status"),
    Index(None, "account_id", "created_at", "id"),
    Index(None, "network"),
)

# The same sums for each UTC day (days since 1970-01-01) on which something was sponsored.
gas_policy_days = Table(
    "gas_policy_days",
    metadata,
    Column("policy_id", ForeignKey("gas_policies.id"), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# One row for each signature that was given. `reserved` is the most that the operation can cost. A row that is settled
# or released names the block at which that was decided, so that a reorganisation can undo it.
gas_sponsorships = Table(
    "gas_sponsorships",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("policy_id", ForeignKey("gas_policies.id"), nullable=False),
    Column("network", String(64), nullable=False),
    Column("entry_point", LargeBinary(20), nullable=False),
    Column("paymaster", LargeBinary(20), nullable=False),
    Column("sender", LargeBinary(20), nullable=False),
    Column("nonce", LargeBinary(32), nullable=False),
    # Null where the hash depends on what the sender delegates to (EIP-7702).
    Column("hash", LargeBinary(32), nullable=True),
    Column("day", Integer, nullable=False),
    # US dollars for one native coin, by which both amounts are counted.
    Column("price", Text, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("actual_cost", Text, nullable=True),
    Column("state", String(16), nullable=False),
    # Unix seconds: a later block cannot hold the operation.
    Column("valid_until", BigInteger, nullable=False),
    Column("block_number", BigInteger, nullable=True),
    Column("block_hash", LargeBinary(32), nullable=True),
    Column("transaction_hash", LargeBinary(32), nullable=True),
    Column("success", Boolean, nullable=True),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("state IN ('reserved', 'settled', 'released')", name="state"),
    Index(None, "policy_id", "created_at"),
    Index(None, "policy_id", "sender", "day"),
    Index(None, "network", "sender", "nonce"),
    Index(None, "network", "state", "valid_until"),
    Index(None, "network", "block_hash"),
)

# What has too little left now: deposits of paymasters, and balances of the accounts that send bundles. Amounts in wei.
gas_warnings = Table(
    "gas_warnings",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("kind", String(24), primary_key=True),
    Column("address", LargeBinary(20), primary_key=True),
    Column("version", String(8), nullable=True),
    Column("balance", Text, nullable=False),
    Column("least", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    CheckConstraint("kind IN ('paymaster_deposit', 'signer_balance')", name="kind"),
)
