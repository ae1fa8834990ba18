"""The nonces of signers and the transactions signed for them, in the database.

A nonce is opened together with its first transaction, before that is sent, and stays open until one of its transactions
is on the chain. While it is open its signer signs nothing with another nonce. The worker opens nonces and adds
transactions; the consumer of the stream closes them when it sees them, and opens them again when a reorganisation
takes them back. Functions work on a connection of the caller's transaction.
"""

from collections.abc import Collection

import msgspec
from sqlalchemy import ColumnElement, and_, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.bundler.fees import Fees
from capstan.storage.schema import bundle_transactions, bundles

_HASH_BYTES = 32


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction signed for a nonce."""

    hash: bytes
    raw: bytes
    # The hashes of the operations in it; none in one that only uses up the nonce.
    operations: tuple[bytes, ...]
    fees: Fees
    # Microseconds since 1970, and the latest block when it was made.
    created_at: int
    created_block: int


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A nonce of a signer that is open, with the transactions signed for it, oldest first."""

    signer: bytes
    nonce: int
    entry_point: bytes
    attempts: tuple[Attempt, ...] = ()

    @property
    def place(self) -> tuple[bytes, int]:
        """What names it."""
        return self.signer, self.nonce

    @property
    def last(self) -> Attempt:
        """The newest transaction."""
        return self.attempts[-1]


class Mined(msgspec.Struct, frozen=True):
    """The transaction that used a nonce, and its block."""

    transaction: bytes
    block_number: int
    block_hash: bytes


class SlotStore:
    """The nonces of the signers of one network."""

    def __init__(self, network: str) -> None:
        self._network = network

    async def open_slots(self, connection: AsyncConnection) -> list[Slot]:
        """The nonces that are open, by signer and nonce."""
        rows = await connection.execute(
            select(bundles.c.signer, bundles.c.nonce, bundles.c.entry_point)
            .where(bundles.c.network == self._network, bundles.c.state == "open")
            .order_by(bundles.c.signer, bundles.c.nonce)
        )
        return [
            Slot(
                signer=signer,
                nonce=nonce,
                entry_point=entry_point,
                attempts=await self._attempts(connection, signer, nonce),
            )
            for signer, nonce, entry_point in rows.all()
        ]

    async def highest(self, connection: AsyncConnection, signer: bytes) -> int:
        """The highest nonce of a signer that was ever used here; -1 when there is none."""
        query = select(func.max(bundles.c.nonce)).where(
            bundles.c.network == self._network, bundles.c.signer == signer, bundles.c.state != "lost"
        )
        found = await connection.scalar(query)
        return -1 if found is None else int(found)

    async def is_open(self, connection: AsyncConnection, signer: bytes, nonce: int) -> bool:
        """Whether the nonce is open."""
        query = select(bundles.c.state).where(self._own(signer, nonce))
        return (await connection.scalar(query)) == "open"

    async def open(self, connection: AsyncConnection, slot: Slot, now: int) -> None:
        """Open a nonce. One that was lost before may be opened again."""
        await connection.execute(delete(bundles).where(self._own(slot.signer, slot.nonce), bundles.c.state == "lost"))
        await connection.execute(
            insert(bundles).values(
                network=self._network,
                signer=slot.signer,
                nonce=slot.nonce,
                entry_point=slot.entry_point,
                state="open",
                opened_at=now,
            )
        )

    async def record(self, connection: AsyncConnection, slot: Slot, attempt: Attempt) -> None:
        """Write a signed transaction down. It may be sent once this is committed, and not before."""
        await connection.execute(
            insert(bundle_transactions).values(
                network=self._network,
                hash=attempt.hash,
                signer=slot.signer,
                nonce=slot.nonce,
                raw=attempt.raw,
                operations=b"".join(attempt.operations),
                max_fee=str(attempt.fees.max_fee),
                max_priority_fee=str(attempt.fees.max_priority_fee),
                created_at=attempt.created_at,
                created_block=attempt.created_block,
            )
        )

    async def close(self, connection: AsyncConnection, signer: bytes, nonce: int, mined: Mined | None) -> bool:
        """Note which transaction used the nonce; None when it was none of ours. Whether it was open."""
        values = {"state": "lost"} if mined is None else {"state": "mined", **_columns(mined)}
        result = await connection.execute(
            update(bundles).where(self._own(signer, nonce), bundles.c.state == "open").values(**values)
        )
        return result.rowcount == 1

    async def reopen(self, connection: AsyncConnection, block_hash: bytes) -> list[tuple[bytes, int]]:
        """Open again what a block closed that is no longer on the chain. Returns the signers and nonces."""
        condition = and_(bundles.c.network == self._network, bundles.c.block_hash == block_hash)
        rows = (await connection.execute(select(bundles.c.signer, bundles.c.nonce).where(condition))).all()
        if rows:
            nothing = {"tx_hash": None, "block_number": None, "block_hash": None}
            await connection.execute(update(bundles).where(condition).values(state="open", **nothing))
        return [(signer, nonce) for signer, nonce in rows]

    async def among(
        self, connection: AsyncConnection, transactions: Collection[bytes]
    ) -> dict[bytes, tuple[bytes, int, tuple[bytes, ...]]]:
        """Which of these transactions are ours: signer, nonce and operations of each."""
        if not transactions:
            return {}
        columns = bundle_transactions.c
        rows = await connection.execute(
            select(columns.hash, columns.signer, columns.nonce, columns.operations).where(
                columns.network == self._network, columns.hash.in_(sorted(transactions))
            )
        )
        return {row[0]: (row[1], row[2], _hashes(row[3])) for row in rows}

    async def forget(self, connection: AsyncConnection) -> None:
        """Delete everything of the network."""
        for table in (bundles, bundle_transactions):
            await connection.execute(delete(table).where(table.c.network == self._network))

    async def forget_old(self, connection: AsyncConnection, before: int) -> None:
        """Delete the transactions made before this moment for nonces that are closed. The nonces themselves stay."""
        columns = bundle_transactions.c
        still_open = (
            select(bundles.c.nonce)
            .where(
                bundles.c.network == columns.network,
                bundles.c.signer == columns.signer,
                bundles.c.nonce == columns.nonce,
                bundles.c.state == "open",
            )
            .exists()
        )
        await connection.execute(
            delete(bundle_transactions).where(
                columns.network == self._network, columns.created_at < before, ~still_open
            )
        )

    async def _attempts(self, connection: AsyncConnection, signer: bytes, nonce: int) -> tuple[Attempt, ...]:
        columns = bundle_transactions.c
        rows = await connection.execute(
            select(bundle_transactions)
            .where(columns.network == self._network, columns.signer == signer, columns.nonce == nonce)
            .order_by(columns.created_at, columns.hash)
        )
        return tuple(
            Attempt(
                hash=row["hash"],
                raw=row["raw"],
                operations=_hashes(row["operations"]),
                fees=Fees(int(row["max_fee"]), int(row["max_priority_fee"])),
                created_at=row["created_at"],
                created_block=row["created_block"],
            )
            for row in rows.mappings()
        )

    def _own(self, signer: bytes, nonce: int) -> ColumnElement[bool]:
        return and_(bundles.c.network == self._network, bundles.c.signer == signer, bundles.c.nonce == nonce)


def _hashes(packed: bytes) -> tuple[bytes, ...]:
    return tuple(packed[start : start + _HASH_BYTES] for start in range(0, len(packed), _HASH_BYTES))


def _columns(mined: Mined) -> dict[str, bytes | int]:
    return {"tx_hash": mined.transaction, "block_number": mined.block_number, "block_hash": mined.block_hash}
