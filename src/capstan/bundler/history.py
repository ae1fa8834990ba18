"""Reads operations of the bundler for people: lists of them, and one with all that is known. Changes nothing.

Called by the dashboard. An operation belongs to no account: whoever knows its hash may see it, as with the methods of
the bundler. The list of an account has the operations of its wallets.
"""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import RowMapping, Select, and_, exists, select, tuple_

from capstan.access.store import from_micros
from capstan.bundler.entries import State, decode_validated
from capstan.storage.database import Database
from capstan.storage.schema import bundle_transactions, user_operations, wallets

_MOST_TRANSACTIONS = 20


class OperationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a list."""

    # `chain/network`.
    network: str
    hash: bytes
    entry_point: bytes
    sender: bytes
    state: State
    # Why it left the pool without being included; of an included one, why its call reverted.
    reason: str
    created_at: datetime
    changed_at: datetime
    signer: bytes | None
    signer_nonce: int | None
    transaction: bytes | None
    block_number: int | None
    success: bool | None


class BundleTransaction(msgspec.Struct, frozen=True):
    """A transaction that was signed for the bundle. Fees are in wei."""

    hash: bytes
    created_at: datetime
    max_fee: int


class OperationDetail(msgspec.Struct, frozen=True):
    """One operation with all that is known."""

    row: OperationRow
    # As JSON-RPC has it.
    operation: dict[str, Any]
    # The block on whose state it was last found good.
    validated_at: int
    # In the order in which they were signed.
    transactions: list[BundleTransaction]


class Wanted(msgspec.Struct, frozen=True):
    """Which operations a list shows; None is any."""

    # The account whose wallets are the senders.
    account_id: str | None = None
    sender: bytes | None = None
    state: State | None = None


class OperationHistory:
    """Operations of all networks, for reading."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest(self, wanted: Wanted, *, after: tuple[int, bytes] | None, limit: int) -> list[OperationRow]:
        """The newest that are wanted, after the one with this time (in microseconds) and hash."""
        columns = user_operations.c
        query = _list_query(wanted)
        if after is not None:
            # The first condition says the same less exactly; it is what indexes are searched with.
            query = query.where(
                columns.created_at <= after[0], tuple_(columns.created_at, columns.hash) < tuple_(*after)
            )
        query = query.order_by(columns.created_at.desc(), columns.hash.desc()).limit(limit)
        async with self._database.read() as connection:
            return [_row(row) for row in (await connection.execute(query)).mappings()]

    async def find(self, network: str, operation_hash: bytes) -> OperationDetail | None:
        """One operation, if this bundler has it."""
        columns = user_operations.c
        query = select(user_operations).where(columns.network == network, columns.hash == operation_hash)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
            if row is None:
                return None
            rows = await connection.execute(_transactions_query(row))
            transactions = [
                BundleTransaction(each.hash, from_micros(each.created_at), int(each.max_fee))
                for each in rows
                if operation_hash in _hashes(each.operations)
            ]
        validated = decode_validated(row["validated"])
        return OperationDetail(_row(row), msgspec.json.decode(row["operation"]), validated.block.number, transactions)


def _list_query(wanted: Wanted) -> Select[Any]:
    columns = user_operations.c
    # Without what is long: the operation and what validation found.
    query = select(*(column for column in columns if column.name not in ("operation", "validated")))
    if wanted.sender is not None:
        query = query.where(columns.sender == wanted.sender)
    if wanted.state is not None:
        query = query.where(columns.state == wanted.state)
    if wanted.account_id is not None:
        query = query.where(
            exists().where(
                and_(
                    wallets.c.address == columns.sender,
                    wallets.c.network == columns.network,
                    wallets.c.account_id == wanted.account_id,
                )
            )
        )
    return query


def _transactions_query(row: RowMapping) -> Select[Any]:
    """The transactions for the nonce it waits for; of one on the chain, for the nonce of its transaction."""
    columns, mined = bundle_transactions.c, bundle_transactions.alias()
    query = select(columns.hash, columns.created_at, columns.max_fee, columns.operations)
    if row["tx_hash"] is None:
        query = query.where(columns.signer == row["signer"], columns.nonce == row["signer_nonce"])
    else:
        same = (mined.c.network == columns.network, mined.c.signer == columns.signer, mined.c.nonce == columns.nonce)
        query = query.join(mined, and_(*same)).where(mined.c.network == row["network"], mined.c.hash == row["tx_hash"])
    query = query.where(columns.network == row["network"])
    return query.order_by(columns.created_at, columns.hash).limit(_MOST_TRANSACTIONS)


def _hashes(joined: bytes) -> set[bytes]:
    return {joined[start : start + 32] for start in range(0, len(joined), 32)}


def _row(row: RowMapping) -> OperationRow:
    return OperationRow(
        network=row["network"],
        hash=row["hash"],
        entry_point=row["entry_point"],
        sender=row["sender"],
        state=row["state"],
        reason=row["reason"],
        created_at=from_micros(row["created_at"]),
        changed_at=from_micros(row["changed_at"]),
        signer=row["signer"],
        signer_nonce=row["signer_nonce"],
        transaction=row["tx_hash"],
        block_number=row["block_number"],
        success=row["success"],
    )
