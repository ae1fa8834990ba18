"""The tables of the streams: where each stands, which are needed, and who leads.

A part of `schema`, in a file of its own.
"""

from sqlalchemy import BigInteger, Column, LargeBinary, String, Table

from capstan.storage.metadata import metadata

# Where a durable consumer of a network's stream stands: `number` and `hash` are the last block it has applied, `first`
# the first one ever, `final` the highest block known to be final when it was written.
cursors = Table(
    "cursors",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("role", String(32), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", String(66), nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("final", BigInteger, nullable=True),
    Column("updated_at", BigInteger, nullable=False),
)

# The streams that somebody needs, by the role of their cursor, and the block at which one that never ran has to begin;
# null: at the head. The process that follows the chains need not be the one that was asked.
wanted_streams = Table(
    "wanted_streams",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("role", String(32), primary_key=True),
    Column("first", BigInteger, nullable=True),
)

# The blocks it has applied that may still be taken back, up to that of the cursor.
applied_blocks = Table(
    "applied_blocks",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("role", String(32), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", String(66), nullable=False),
    Column("parent_hash", String(66), nullable=False),
    Column("timestamp", BigInteger, nullable=False),
    Column("header", LargeBinary, nullable=False),
)

# Who may do what only one process at a time may do. The token grows with every new holder; whoever writes under a lease
# compares it in the same transaction, so a holder that slept through its time cannot write.
leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("holder", String(40), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
