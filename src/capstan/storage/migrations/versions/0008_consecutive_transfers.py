"""Ranges of NFT ids that moved at once (ERC-2309).

Such events of the past were not read before, and sums are kept in another way now. So the index is emptied, and the
history of everything that it follows is fetched anew, up to the block where it stands.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for table in ("transfers", "nft_holdings", "token_holders", "index_coverage"):
        op.execute(f"DELETE FROM {table}")  # noqa: S608 - names of our own tables
    op.execute(
        "UPDATE index_subjects SET claimed_by = NULL, claimed_until = NULL, "
        "seam_number = (SELECT block_number FROM index_networks n WHERE n.id = index_subjects.network_id), "
        "seam_hash = (SELECT block_hash FROM index_networks n WHERE n.id = index_subjects.network_id)"
    )
    op.execute("UPDATE index_subjects SET complete = COALESCE(first_block > seam_number, FALSE)")
    op.drop_table("nft_counts")
    op.drop_table("nft_collections")
    _sums()


def _sums() -> None:
    op.create_table(
        "nft_ranges",
        sa.Column("network_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("block_number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("log_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first_id", sa.LargeBinary(32), nullable=False),
        sa.Column("last_id", sa.LargeBinary(32), nullable=False),
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("receiver", sa.LargeBinary(20), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "contract", "block_number", "log_index", name="pk_nft_ranges"),
        sqlite_with_rowid=False,
    )
    for party in ("sender", "receiver"):
        op.create_index(f"ix_nft_ranges_{party}", "nft_ranges", ["network_id", party])
    op.create_table(
        "nft_counts",
        sa.Column("network_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("key", sa.LargeBinary(32), nullable=False),
        sa.Column("count", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "contract", "key", name="pk_nft_counts"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "nft_collections",
        sa.Column("network_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("owners", sa.BigInteger(), nullable=False),
        sa.Column("ids", sa.BigInteger(), nullable=False),
        sa.Column("supply", sa.Text(), nullable=False),
        sa.Column("erc721_supply", sa.Text(), nullable=False),
        sa.Column("erc721", sa.BigInteger(), nullable=False),
        sa.Column("erc1155", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "contract", name="pk_nft_collections"),
        sqlite_with_rowid=False,
    )
