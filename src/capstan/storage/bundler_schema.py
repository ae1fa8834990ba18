"""The tables of the bundler: its pool, the reputations, and the transactions that carry bundles.

A part of `schema`, in a file of its own. Moments are UTC microseconds, as everywhere.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
)

from capstan.storage.metadata import metadata

# One row for each network. Whoever changes its pool locks the row, and gives what it wrote the next revision: a process
# then reads only what others changed since it last looked. A new epoch says that all of it must be read anew. `hour` is
# the whole hour since 1970 up to which the reputations have faded.
bundler_pools = Table(
    "bundler_pools",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("hour", BigInteger, nullable=False),
)

# Operations that were accepted. Those in the states `pending` and `submitted` are the pool; `submitted` ones are in a
# bundle of `signer` with the nonce `signer_nonce`. `operation` is JSON as in JSON-RPC, `validated` what was found
# out about it (MessagePack). The columns after that say where it was included.
user_operations = Table(
    "user_operations",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("hash", LargeBinary(32), primary_key=True),
    Column("entry_point", LargeBinary(20), nullable=False),
    Column("sender", LargeBinary(20), nullable=False),
    Column("operation", Text, nullable=False),
    Column("validated", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("signer", LargeBinary(20), nullable=True),
    Column("signer_nonce", BigInteger, nullable=True),
    Column("tx_hash", LargeBinary(32), nullable=True),
    Column("block_number", BigInteger, nullable=True),
    Column("block_hash", LargeBinary(32), nullable=True),
    Column("success", Boolean, nullable=True),
    CheckConstraint("state IN ('pending', 'submitted', 'included', 'failed')", name="state"),
    Index(None, "network", "revision"),
    Index(None, "network", "block_hash"),
    Index(None, "network", "signer", "signer_nonce"),
    # For lists: all, those of a sender, those of a state.
    Index("ix_user_operations_created_at", "created_at", "hash"),
    Index("ix_user_operations_sender", "sender", "created_at"),
    Index("ix_user_operations_state", "state", "created_at"),
)

# How often each entity was seen and included (ERC-7562).
bundler_reputations = Table(
    "bundler_reputations",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("entry_point", LargeBinary(20), primary_key=True),
    Column("address", LargeBinary(20), primary_key=True),
    Column("seen", BigInteger, nullable=False),
    Column("included", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index(None, "network", "revision"),
)

# The nonces of signers that were used. A nonce is `open` until one of its transactions is on the chain.
bundles = Table(
    "bundles",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("signer", LargeBinary(20), primary_key=True),
    Column("nonce", BigInteger, primary_key=True, autoincrement=False),
    Column("entry_point", LargeBinary(20), nullable=False),
    Column("state", String(8), nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("tx_hash", LargeBinary(32), nullable=True),
    Column("block_number", BigInteger, nullable=True),
    Column("block_hash", LargeBinary(32), nullable=True),
    CheckConstraint("state IN ('open', 'mined', 'lost')", name="state"),
    Index(None, "network", "state"),
    Index(None, "network", "block_hash"),
)

# Every transaction that was ever signed for a bundle, whole, written before it is sent. `operations` are the hashes of
# those in it, one after the other; none in a transaction that only uses up the nonce.
bundle_transactions = Table(
    "bundle_transactions",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("hash", LargeBinary(32), primary_key=True),
    Column("signer", LargeBinary(20), nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("operations", LargeBinary, nullable=False),
    Column("max_fee", Text, nullable=False),
    Column("max_priority_fee", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_block", BigInteger, nullable=False),
    Index(None, "network", "signer", "nonce"),
)
