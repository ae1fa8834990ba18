"""The queries of the bundler's pool: operations, reputations, and the row that orders all changes of a network.

Called by the pool and, inside the transaction of a block, by the consumer of the stream. Every function works on a
connection that the caller opened, because what it changes belongs together with what others change in the same
transaction. It decides nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import RowMapping, and_, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.bundler.entries import (
    POOLED,
    Entry,
    EntryPoint,
    Inclusion,
    decode_operation,
    decode_validated,
    encode_operation,
    encode_validated,
)
from capstan.bundler.reputation import Reputation
from capstan.storage.schema import bundler_pools, bundler_reputations, user_operations
from capstan.userops.versions import Version

# The most values of one IN list; SQLite takes 32,766.
AT_ONCE = 1000


class PoolRow(msgspec.Struct, frozen=True):
    """The row of a network's pool."""

    revision: int
    epoch: int
    hour: int


class PoolStore:
    """The pool of one network in the database."""

    def __init__(self, network: str, entry_points: Mapping[bytes, Version], *, sqlite_dialect: bool) -> None:
        self.network = network
        self._entry_points = entry_points
        self._insert = sqlite.insert if sqlite_dialect else postgresql.insert

    # --- the row of the pool

    async def lock(self, connection: AsyncConnection) -> PoolRow:
        """The row, which nobody else can change until the transaction ends."""
        found = await self._row(connection, lock=True)
        if found is None:
            values = {"network": self.network, "revision": 0, "epoch": 0, "hour": 0}
            await connection.execute(self._insert(bundler_pools).values(**values).on_conflict_do_nothing())
            found = await self._row(connection, lock=True)
        assert found is not None, "the row was just made"
        return found

    async def look(self, connection: AsyncConnection) -> PoolRow:
        """The row as it is now."""
        return await self._row(connection, lock=False) or PoolRow(0, 0, 0)

    async def save(self, connection: AsyncConnection, row: PoolRow) -> None:
        """Write the row."""
        await connection.execute(
            update(bundler_pools)
            .where(bundler_pools.c.network == self.network)
            .values(revision=row.revision, epoch=row.epoch, hour=row.hour)
        )

    async def _row(self, connection: AsyncConnection, *, lock: bool) -> PoolRow | None:
        query = select(bundler_pools.c.revision, bundler_pools.c.epoch, bundler_pools.c.hour).where(
            bundler_pools.c.network == self.network
        )
        row = (await connection.execute(query.with_for_update() if lock else query)).first()
        return None if row is None else PoolRow(*row)

    # --- operations

    async def changed_since(self, connection: AsyncConnection, revision: int) -> list[Entry]:
        """The operations that changed after this revision."""
        return await self._entries(connection, user_operations.c.revision > revision)

    async def in_pool(self, connection: AsyncConnection) -> list[Entry]:
        """All operations of the pool, in the order in which they came."""
        return await self._entries(connection, user_operations.c.state.in_(POOLED))

    async def find(self, connection: AsyncConnection, hashes: Collection[bytes]) -> list[Entry]:
        """The operations with these hashes, whatever their state."""
        ordered, found = sorted(hashes), []
        for start in range(0, len(ordered), AT_ONCE):
            found += await self._entries(connection, user_operations.c.hash.in_(ordered[start : start + AT_ONCE]))
        return found

    async def in_block(self, connection: AsyncConnection, block_hash: bytes) -> list[Entry]:
        """The operations that were included in this block."""
        return await self._entries(connection, user_operations.c.block_hash == block_hash)

    async def in_bundle(self, connection: AsyncConnection, signer: bytes, nonce: int) -> list[Entry]:
        """The operations that wait for this nonce of a signer."""
        return await self._entries(
            connection,
            and_(
                user_operations.c.signer == signer,
                user_operations.c.signer_nonce == nonce,
                user_operations.c.state == "submitted",
            ),
        )

    async def put(self, connection: AsyncConnection, entries: Iterable[Entry], revision: int, now: int) -> None:
        """Write operations, new ones and known ones."""
        for entry in entries:
            changing = {**_columns(entry), "revision": revision, "changed_at": now}
            statement = self._insert(user_operations).values(network=self.network, hash=entry.hash, **changing)
            await connection.execute(statement.on_conflict_do_update(index_elements=["network", "hash"], set_=changing))

    async def forget(self, connection: AsyncConnection) -> None:
        """Delete the operations and reputations of the network."""
        await connection.execute(delete(user_operations).where(user_operations.c.network == self.network))
        await connection.execute(delete(bundler_reputations).where(bundler_reputations.c.network == self.network))

    async def forget_old(self, connection: AsyncConnection, before: int) -> None:
        """Delete operations that left the pool before this moment."""
        await connection.execute(
            delete(user_operations).where(
                user_operations.c.network == self.network,
                user_operations.c.state.not_in(POOLED),
                user_operations.c.changed_at < before,
            )
        )

    async def _entries(self, connection: AsyncConnection, condition: Any) -> list[Entry]:
        query = (
            select(user_operations)
            .where(
                user_operations.c.network == self.network,
                user_operations.c.entry_point.in_(self._entry_points),
                condition,
            )
            .order_by(user_operations.c.created_at, user_operations.c.hash)
        )
        return [self._entry(row) for row in (await connection.execute(query)).mappings()]

    def _entry(self, row: RowMapping) -> Entry:
        entry_point = EntryPoint(row["entry_point"], self._entry_points[row["entry_point"]])
        inclusion = None
        if row["tx_hash"] is not None:
            inclusion = Inclusion(row["tx_hash"], row["block_number"], row["block_hash"], row["success"])
        return Entry(
            hash=row["hash"],
            entry_point=entry_point,
            operation=decode_operation(entry_point.version, row["operation"]),
            validated=decode_validated(row["validated"]),
            state=row["state"],
            reason=row["reason"],
            created_at=row["created_at"],
            signer=row["signer"],
            signer_nonce=row["signer_nonce"],
            inclusion=inclusion,
        )

    # --- reputations

    async def reputations(self, connection: AsyncConnection, since: int | None = None) -> dict[bytes, list[Reputation]]:
        """The counts of all addresses by entry point, or of those that changed after a revision."""
        condition = bundler_reputations.c.network == self.network
        if since is not None:
            condition = and_(condition, bundler_reputations.c.revision > since)
        columns = bundler_reputations.c
        query = select(columns.entry_point, columns.address, columns.seen, columns.included).where(condition)
        found: dict[bytes, list[Reputation]] = {}
        for entry_point, *counts in await connection.execute(query):
            found.setdefault(entry_point, []).append(Reputation(*counts))
        return found

    async def put_reputations(
        self, connection: AsyncConnection, entry_point: bytes, entries: Sequence[Reputation], revision: int
    ) -> None:
        """Write the counts of these addresses."""
        for entry in entries:
            changing = {"seen": entry.seen, "included": entry.included, "revision": revision}
            statement = self._insert(bundler_reputations).values(
                network=self.network, entry_point=entry_point, address=entry.address, **changing
            )
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["network", "entry_point", "address"], set_=changing)
            )

    async def replace_reputations(
        self, connection: AsyncConnection, entry_point: bytes, entries: Sequence[Reputation], revision: int
    ) -> None:
        """Write the counts of all addresses of an entry point; those not named have none."""
        columns = bundler_reputations.c
        await connection.execute(
            delete(bundler_reputations).where(columns.network == self.network, columns.entry_point == entry_point)
        )
        rows = [
            {
                "network": self.network,
                "entry_point": entry_point,
                "address": entry.address,
                "seen": entry.seen,
                "included": entry.included,
                "revision": revision,
            }
            for entry in entries
        ]
        if rows:
            await connection.execute(insert(bundler_reputations), rows)


def _columns(entry: Entry) -> dict[str, Any]:
    where = entry.inclusion
    return {
        "entry_point": entry.entry_point.address,
        "sender": entry.operation.sender,
        "operation": encode_operation(entry),
        "validated": encode_validated(entry.validated),
        "state": entry.state,
        "reason": entry.reason,
        "created_at": entry.created_at,
        "signer": entry.signer,
        "signer_nonce": entry.signer_nonce,
        "tx_hash": None if where is None else where.transaction,
        "block_number": None if where is None else where.block_number,
        "block_hash": None if where is None else where.block_hash,
        "success": None if where is None else where.success,
    }
