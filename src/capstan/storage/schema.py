"""Every table of the service, as SQLAlchemy Core metadata.

Stores build their statements from these; the migrations create them, and a test holds the two against each other.
Moments are stored as UTC microseconds in an integer column, because SQLite has no timestamp type and integers compare
and index the same on both dialects. Amounts of tokens, which exceed 64 bits, are stored as decimal text.
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
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from capstan.storage.bundler_schema import bundle_transactions as bundle_transactions
from capstan.storage.bundler_schema import bundler_pools as bundler_pools
from capstan.storage.bundler_schema import bundler_reputations as bundler_reputations
from capstan.storage.bundler_schema import bundles as bundles
from capstan.storage.bundler_schema import user_operations as user_operations
from capstan.storage.gas_schema import gas_policies as gas_policies
from capstan.storage.gas_schema import gas_policy_days as gas_policy_days
from capstan.storage.gas_schema import gas_sponsorships as gas_sponsorships
from capstan.storage.metadata import metadata as metadata
from capstan.storage.signin_schema import users as users
from capstan.storage.stream_schema import applied_blocks as applied_blocks
from capstan.storage.stream_schema import cursors as cursors
from capstan.storage.stream_schema import leases as leases
from capstan.storage.stream_schema import wanted_streams as wanted_streams
from capstan.storage.webhook_schema import webhooks as webhooks

accounts = Table(
    "accounts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", Text, nullable=False),
    Column("plan", String(32), nullable=False),
    # Limits the operator set for this account alone, as a JSON object; empty means the plan's.
    Column("overrides", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("status IN ('active', 'suspended')", name="status"),
    Index(None, "created_at", "id"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("mode", String(8), nullable=False),
    # SHA-256 of the key. The key has 190 bits of randomness, so a slow hash would add nothing.
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    # The last characters, so that a person can tell two keys apart.
    Column("hint", String(8), nullable=False),
    # Scopes as a JSON list; null means all of them.
    Column("scopes", Text, nullable=True),
    Column("created_at", BigInteger, nullable=False),
    Column("last_used_at", BigInteger, nullable=True),
    Column("revoked_at", BigInteger, nullable=True),
    CheckConstraint("mode IN ('live', 'test')", name="mode"),
    Index(None, "account_id", "created_at"),
)

# One row, locked by every change of accounts or keys, so that versions are committed in order: a reader that has seen
# version n has seen every change up to n. A plain sequence does not give that on PostgreSQL.
access_version = Table(
    "access_version",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", BigInteger, nullable=False),
)

access_changes = Table(
    "access_changes",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("account_id", String(40), nullable=False),
)

# Requests reserved from an account's daily limit. A process reserves a little ahead and gives back what it did not use.
day_usage = Table(
    "day_usage",
    metadata,
    Column("subject", String(64), primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("reserved", BigInteger, nullable=False),
    Index(None, "day"),
)

# How many columns the histogram of latencies has. Column n counts the requests that took less than 2^(7+n) microseconds
# and at least half of that; the first has no lower end, the last no upper one. Columns, because SQL can add them up.
LATENCY_BUCKETS = 19


def _usage_counts() -> list[Column[int]]:
    names = ("requests", "units", "errors", "cached", "microseconds")
    buckets = (f"latency_{number:02}" for number in range(LATENCY_BUCKETS))
    return [Column(name, BigInteger, nullable=False) for name in (*names, *buckets)]


# What every key used, by minute (minutes since 1970-01-01 UTC) and by day (days since then). Without SQLite's row ids:
# the rows are small, and with them the primary key would be stored twice.
usage_minute = Table(
    "usage_minute",
    metadata,
    Column("account_id", String(40), primary_key=True),
    Column("minute", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(40), primary_key=True),
    Column("network", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    *_usage_counts(),
    Index(None, "minute"),
    sqlite_with_rowid=False,
)

usage_day = Table(
    "usage_day",
    metadata,
    Column("account_id", String(40), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(40), primary_key=True),
    Column("network", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    *_usage_counts(),
    Index(None, "day"),
    sqlite_with_rowid=False,
)

# The last batch of counts that each process has added to the two tables above, written in the same transaction, so that
# a batch whose commit was not confirmed is never added twice.
usage_flushes = Table(
    "usage_flushes",
    metadata,
    Column("process", String(40), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("flushed_at", BigInteger, nullable=False),
    Index(None, "flushed_at"),
)

# The transfer index. Addresses and hashes are raw bytes, because these tables are large. Ids of NFTs are 32 bytes, most
# significant first, so that they sort as numbers. Amounts are decimal text; they are added up outside of SQL, which has
# no whole numbers of 256 bits on both dialects.

# One row for each indexed network. Whoever writes to the index of a network locks it first.
index_networks = Table(
    "index_networks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    # The last block of the canonical stream that is in the index; null before the first.
    Column("block_number", BigInteger, nullable=True),
    Column("block_hash", LargeBinary(32), nullable=True),
)

# What is followed: everything, one holder or one contract. The stream has all blocks above `seam_number`; those from
# `first_block` to it are history, of which `index_coverage` says what is there.
index_subjects = Table(
    "index_subjects",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("network_id", ForeignKey("index_networks.id"), nullable=False),
    Column("kind", SmallInteger, nullable=False),
    # Empty for the subject that is everything.
    Column("address", LargeBinary(20), nullable=False),
    Column("first_block", BigInteger, nullable=False),
    # Null until the stream has brought its first block.
    Column("seam_number", BigInteger, nullable=True),
    Column("seam_hash", LargeBinary(32), nullable=True),
    Column("complete", Boolean, nullable=False),
    # The process that fetches the history now, and until when it has that right.
    Column("claimed_by", String(40), nullable=True),
    Column("claimed_until", BigInteger, nullable=True),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("network_id", "address", "kind"),
    Index(None, "network_id", "seam_number"),
    Index(None, "complete", "network_id"),
)

# Blocks of a subject's history that are in the index. Ranges do not overlap or touch.
index_coverage = Table(
    "index_coverage",
    metadata,
    Column("subject_id", ForeignKey("index_subjects.id", ondelete="CASCADE"), primary_key=True),
    Column("first_block", BigInteger, primary_key=True, autoincrement=False),
    Column("last_block", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

transfers = Table(
    "transfers",
    metadata,
    Column("network_id", Integer, primary_key=True, autoincrement=False),
    Column("block_number", BigInteger, primary_key=True, autoincrement=False),
    Column("log_index", Integer, primary_key=True, autoincrement=False),
    # The place in an ERC-1155 batch.
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("standard", SmallInteger, nullable=False),
    Column("nft", Boolean, nullable=False),
    Column("contract", LargeBinary(20), nullable=False),
    Column("token_id", LargeBinary(32), nullable=True),
    Column("sender", LargeBinary(20), nullable=False),
    Column("receiver", LargeBinary(20), nullable=False),
    # Above 1 for ERC-721 when a range of so many ids, from `token_id` on, moved at once (ERC-2309).
    Column("amount", Text, nullable=False),
    Column("block_hash", LargeBinary(32), nullable=False),
    Column("transaction_hash", LargeBinary(32), nullable=False),
    # Unix seconds; null where the node did not tell it with the log.
    Column("timestamp", BigInteger, nullable=True),
    Index("ix_transfers_sender", "network_id", "sender", "nft", "block_number", "log_index", "position"),
    Index("ix_transfers_receiver", "network_id", "receiver", "nft", "block_number", "log_index", "position"),
    sqlite_with_rowid=False,
)

# Sums over `transfers`, kept in the same transaction. They hold for a holder or contract that is covered; for others
# they are sums over what happens to be known, and may be negative. What moved in ranges of ids is not in it: whoever
# reads it adds `nft_ranges`.
nft_holdings = Table(
    "nft_holdings",
    metadata,
    Column("network_id", Integer, primary_key=True, autoincrement=False),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("token_id", LargeBinary(32), primary_key=True),
    Column("owner", LargeBinary(20), primary_key=True),
    Column("standard", SmallInteger, primary_key=True, autoincrement=False),
    Column("amount", Text, nullable=False),
    # Whether the amount is above zero. Rows with zero are deleted.
    Column("held", Boolean, nullable=False),
    Index("ix_nft_holdings_owner", "network_id", "owner", "held", "contract", "token_id"),
    sqlite_with_rowid=False,
)

# Ranges of ids that moved at once (ERC-2309), one row for each, whatever its length.
nft_ranges = Table(
    "nft_ranges",
    metadata,
    Column("network_id", Integer, primary_key=True, autoincrement=False),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("block_number", BigInteger, primary_key=True, autoincrement=False),
    Column("log_index", Integer, primary_key=True, autoincrement=False),
    Column("first_id", LargeBinary(32), nullable=False),
    Column("last_id", LargeBinary(32), nullable=False),
    Column("sender", LargeBinary(20), nullable=False),
    Column("receiver", LargeBinary(20), nullable=False),
    Index("ix_nft_ranges_sender", "network_id", "sender"),
    Index("ix_nft_ranges_receiver", "network_id", "receiver"),
    sqlite_with_rowid=False,
)

# Of each NFT contract: how many tokens each owner has (the key is an address: ERC-721 tokens received less those sent,
# and ERC-1155 ids held), and how many holders each ERC-1155 id has (the key is the id). Decimal text.
nft_counts = Table(
    "nft_counts",
    metadata,
    Column("network_id", Integer, primary_key=True, autoincrement=False),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("key", LargeBinary(32), primary_key=True),
    Column("count", Text, nullable=False),
    sqlite_with_rowid=False,
)

nft_collections = Table(
    "nft_collections",
    metadata,
    Column("network_id", Integer, primary_key=True, autoincrement=False),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("owners", BigInteger, nullable=False),
    # ERC-1155 ids that somebody holds.
    Column("ids", BigInteger, nullable=False),
    # Minted less burned: over all ids, and of ERC-721 alone.
    Column("supply", Text, nullable=False),
    Column("erc721_supply", Text, nullable=False),
    # Transfers seen of each standard.
    Column("erc721", BigInteger, nullable=False),
    Column("erc1155", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# The ERC-20 contracts that an address sent or received, by the number of such transfers.
token_holders = Table(
    "token_holders",
    metadata,
    Column("network_id", Integer, primary_key=True, autoincrement=False),
    Column("holder", LargeBinary(20), primary_key=True),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("count", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# What ERC-20 contracts say of themselves, as it was read at `read_at`. Null is what a contract does not say.
token_metadata = Table(
    "token_metadata",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("name", Text, nullable=True),
    Column("symbol", Text, nullable=True),
    Column("decimals", Integer, nullable=True),
    Column("read_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Metadata documents of NFTs. The id has 32 bytes, most significant first; it is empty for the document of a collection.
# `document` is what could be used of it, as JSON, and null while it could not be fetched; `failures` counts the tries
# since it last could. It is fetched again after `next_at`.
nft_metadata = Table(
    "nft_metadata",
    metadata,
    Column("network", String(64), primary_key=True),
    Column("contract", LargeBinary(20), primary_key=True),
    Column("token_id", LargeBinary(32), primary_key=True),
    Column("uri", Text, nullable=False),
    Column("document", Text, nullable=True),
    Column("failures", Integer, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Smart wallets. The same wallet may belong to several accounts, each with a row of its own. `absent_at` is the last
# block known without code at the address; the `deploy_…` columns say where the code appeared, as far as is known.
wallets = Table(
    "wallets",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("chain", String(32), nullable=False),
    Column("network", String(64), nullable=False),
    Column("address", LargeBinary(20), nullable=False),
    Column("owner", LargeBinary(20), nullable=False),
    Column("owner_text", String(42), nullable=False),
    Column("salt", LargeBinary(32), nullable=False),
    Column("factory", LargeBinary(20), nullable=False),
    Column("entry_point", LargeBinary(20), nullable=False),
    Column("version", String(8), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("absent_at", BigInteger, nullable=True),
    Column("deployed", Boolean, nullable=False),
    Column("deploy_block", BigInteger, nullable=True),
    Column("deploy_hash", LargeBinary(32), nullable=True),
    Column("deploy_tx", LargeBinary(32), nullable=True),
    Column("deployed_at", BigInteger, nullable=True),
    UniqueConstraint("account_id", "network", "owner", "salt", "factory"),
    Index(None, "account_id", "created_at", "id"),
    Index(None, "address", "network"),
    Index(None, "network", "deploy_hash"),
)
