"""The transfer index: networks, subjects and their coverage, transfers, and the sums over them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    _subjects()
    op.create_table(
        "transfers",
        *_key("network_id", "block_number", "log_index", "position"),
        sa.Column("standard", sa.SmallInteger(), nullable=False),
        sa.Column("nft", sa.Boolean(), nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("token_id", sa.LargeBinary(32), nullable=True),
        sa.Column("sender", sa.LargeBinary(20), nullable=False),
        sa.Column("receiver", sa.LargeBinary(20), nullable=False),
        sa.Column("amount", sa.Text(), nullable=False),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("transaction_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("timestamp", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("network_id", "block_number", "log_index", "position", name="pk_transfers"),
        sqlite_with_rowid=False,
    )
    for party in ("sender", "receiver"):
        columns = ["network_id", party, "nft", "block_number", "log_index", "position"]
        op.create_index(f"ix_transfers_{party}", "transfers", columns)
    _sums()


def _subjects() -> None:
    op.create_table(
        "index_networks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.LargeBinary(32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_index_networks"),
        sa.UniqueConstraint("name", name="uq_index_networks_name"),
    )
    op.create_table(
        "index_subjects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("network_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("address", sa.LargeBinary(20), nullable=False),
        sa.Column("first_block", sa.BigInteger(), nullable=False),
        sa.Column("seam_number", sa.BigInteger(), nullable=True),
        sa.Column("seam_hash", sa.LargeBinary(32), nullable=True),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("claimed_by", sa.String(40), nullable=True),
        sa.Column("claimed_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_index_subjects"),
        sa.ForeignKeyConstraint(["network_id"], ["index_networks.id"], name="fk_index_subjects_network_id"),
        sa.UniqueConstraint("network_id", "address", "kind", name="uq_index_subjects_network_id_address_kind"),
    )
    op.create_index("ix_index_subjects_network_id_seam_number", "index_subjects", ["network_id", "seam_number"])
    op.create_index("ix_index_subjects_complete_network_id", "index_subjects", ["complete", "network_id"])
    op.create_table(
        "index_coverage",
        sa.Column("subject_id", sa.Integer(), nullable=False),
        sa.Column("first_block", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject_id", "first_block", name="pk_index_coverage"),
        sa.ForeignKeyConstraint(
            ["subject_id"], ["index_subjects.id"], name="fk_index_coverage_subject_id", ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
    )


def _sums() -> None:
    op.create_table(
        "nft_holdings",
        *_key("network_id"),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("token_id", sa.LargeBinary(32), nullable=False),
        sa.Column("owner", sa.LargeBinary(20), nullable=False),
        sa.Column("standard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("amount", sa.Text(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "contract", "token_id", "owner", "standard", name="pk_nft_holdings"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_nft_holdings_owner", "nft_holdings", ["network_id", "owner", "held", "contract", "token_id"])
    op.create_table(
        "nft_counts",
        *_key("network_id"),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("key", sa.LargeBinary(32), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "contract", "key", name="pk_nft_counts"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "nft_collections",
        *_key("network_id"),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("owners", sa.BigInteger(), nullable=False),
        sa.Column("ids", sa.BigInteger(), nullable=False),
        sa.Column("supply", sa.Text(), nullable=False),
        sa.Column("erc721", sa.BigInteger(), nullable=False),
        sa.Column("erc1155", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "contract", name="pk_nft_collections"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "token_holders",
        *_key("network_id"),
        sa.Column("holder", sa.LargeBinary(20), nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network_id", "holder", "contract", name="pk_token_holders"),
        sqlite_with_rowid=False,
    )


def _key(*names: str) -> list[sa.Column[int]]:
    """Whole numbers of a primary key. Block numbers need 64 bits."""
    return [
        sa.Column(
            name,
            sa.BigInteger() if name == "block_number" else sa.Integer(),
            autoincrement=False,
            nullable=False,
        )
        for name in names
    ]
