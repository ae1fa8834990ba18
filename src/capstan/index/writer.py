"""Writes transfers, and with them everything that is summed over them, in the transaction of the caller.

Called by the stream consumer and by the backfill. The caller holds the lock of the network (`Subjects.lock`). A
transfer that is there already is left alone, so whoever brings it a second time changes nothing. It does not decide
which transfers belong into the index.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Table, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index.bulk import BulkTable
from capstan.index.models import Standard, Transfer
from capstan.index.sums import Sums
from capstan.storage.schema import nft_collections, nft_counts, nft_holdings, nft_ranges, token_holders, transfers

_TABLES: tuple[Table, ...] = (transfers, nft_holdings, nft_ranges, nft_counts, nft_collections, token_holders)
# What a `Transfer` is made of, in its order; the rest of the row follows from it.
_COLUMNS = tuple(transfers.c[name] for name in Transfer.__struct_fields__)


class IndexConflict(Exception):
    """Another block of the same number is in the index. A mistake of ours: it must have been reverted before."""


class TransferWriter:
    """The writing side of the tables of transfers."""

    def __init__(self, *, sqlite: bool) -> None:
        self._transfers = BulkTable(transfers, sqlite=sqlite)
        self._sums = Sums(sqlite=sqlite)

    async def add(self, connection: AsyncConnection, network_id: int, found: Sequence[Transfer]) -> int:
        """Add transfers; returns how many of them were not there before."""
        fresh = await self._fresh(connection, network_id, found)
        await self._transfers.insert(connection, [_row(network_id, transfer) for transfer in fresh])
        await self._sums.add(connection, network_id, fresh, 1)
        return len(fresh)

    async def remove_from(self, connection: AsyncConnection, network_id: int, block_number: int) -> int:
        """Remove all transfers of this block and of those above it; returns how many there were."""
        statement = (
            delete(transfers)
            .where(transfers.c.network_id == network_id, transfers.c.block_number >= block_number)
            .returning(*_COLUMNS)
        )
        gone = [transfer_from(row) for row in (await connection.execute(statement)).all()]
        await self._sums.add(connection, network_id, gone, -1)
        return len(gone)

    async def wipe(self, connection: AsyncConnection, network_id: int) -> None:
        """Remove everything of a network: its chain is another one now."""
        for table in _TABLES:
            await connection.execute(delete(table).where(table.c.network_id == network_id))

    async def _fresh(
        self, connection: AsyncConnection, network_id: int, found: Sequence[Transfer]
    ) -> Sequence[Transfer]:
        """Those that are not there, each once."""
        keys = {(network_id, item.block_number, item.log_index, item.position): item for item in found}
        if not keys or not await self._any_between(connection, network_id, found):
            return list(keys.values())
        present = await self._transfers.load(connection, keys)
        place = transfers.columns.keys().index("block_hash") - len(transfers.primary_key.columns)
        for key, row in present.items():
            if bytes(row[place]) != keys[key].block_hash:
                raise IndexConflict(f"block {key[1]} is in the index as 0x{bytes(row[place]).hex()}")
        return [item for key, item in keys.items() if key not in present]

    async def _any_between(self, connection: AsyncConnection, network_id: int, found: Sequence[Transfer]) -> bool:
        numbers = [item.block_number for item in found]
        column = transfers.c.block_number
        statement = select(column).where(
            transfers.c.network_id == network_id, column >= min(numbers), column <= max(numbers)
        )
        return (await connection.execute(statement.limit(1))).first() is not None


def transfer_from(row: Any) -> Transfer:
    """The transfer of a row with the columns of `transfer_columns`."""
    number, index, position, standard, contract, token_id, *rest = row
    sender, receiver, amount, block_hash, transaction_hash, timestamp = rest
    return Transfer(
        number,
        index,
        position,
        Standard(standard),
        contract,
        None if token_id is None else int.from_bytes(token_id),
        sender,
        receiver,
        int(amount),
        block_hash,
        transaction_hash,
        timestamp,
    )


def transfer_columns() -> Iterable[Any]:
    """The columns that `transfer_from` expects, in its order."""
    return _COLUMNS


def _row(network_id: int, transfer: Transfer) -> tuple[Any, ...]:
    token_id = transfer.token_id
    return (
        network_id,
        transfer.block_number,
        transfer.log_index,
        transfer.position,
        int(transfer.standard),
        token_id is not None,
        transfer.contract,
        None if token_id is None else token_id.to_bytes(32),
        transfer.sender,
        transfer.receiver,
        str(transfer.amount),
        transfer.block_hash,
        transfer.transaction_hash,
        transfer.timestamp,
    )
