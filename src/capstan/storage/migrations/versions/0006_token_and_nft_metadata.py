"""What tokens say of themselves, and the metadata documents of NFTs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "token_metadata",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("symbol", sa.Text(), nullable=True),
        sa.Column("decimals", sa.Integer(), nullable=True),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "contract", name="pk_token_metadata"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "nft_metadata",
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("contract", sa.LargeBinary(20), nullable=False),
        sa.Column("token_id", sa.LargeBinary(32), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("network", "contract", "token_id", name="pk_nft_metadata"),
        sqlite_with_rowid=False,
    )
