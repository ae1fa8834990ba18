"""The queries of the stream on the tables `cursors` and `applied_blocks`.

Called by `durable.DurableStream` alone, always inside its transaction: the cursor moves with the rows of the block.
"""

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Applied, Block, Delta
from capstan.chain.follower.walk import Position
from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.storage.schema import applied_blocks, cursors
from capstan.stream.models import Standing


class CursorStore:
    """The cursor of one role on one network, and the blocks below it."""

    def __init__(self, database: Database, network: str, role: str, clock: Clock, *, window: int) -> None:
        self._network = network
        self._role = role
        self._clock = clock
        self._window = window
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert
        self._own_cursor = (cursors.c.network == network) & (cursors.c.role == role)
        self._own_blocks = (applied_blocks.c.network == network) & (applied_blocks.c.role == role)

    async def load(self, connection: AsyncConnection) -> Standing | None:
        """Where it stands, or None before the first block."""
        cursor = (await connection.execute(select(cursors).where(self._own_cursor))).first()
        if cursor is None:
            return None
        rows = await connection.execute(
            select(applied_blocks).where(self._own_blocks).order_by(applied_blocks.c.number)
        )
        blocks = tuple(
            Block(row.number, row.hash, row.parent_hash, row.timestamp, bytes(row.header), None, None, None)
            for row in rows
        )
        return Standing(Position(cursor.number, cursor.hash), cursor.first, cursor.final, blocks)

    async def advance(self, connection: AsyncConnection, delta: Delta, final: int | None) -> None:
        """The delta is being applied in this transaction."""
        block = delta.block
        if isinstance(delta, Applied):
            await self._applied(connection, block, final)
        else:
            await connection.execute(
                delete(applied_blocks).where(self._own_blocks, applied_blocks.c.hash == block.hash)
            )
            await connection.execute(
                update(cursors)
                .where(self._own_cursor)
                .values(number=block.number - 1, hash=block.parent_hash, updated_at=self._now())
            )

    async def forget(self, connection: AsyncConnection) -> None:
        """Begin anew: the chain is another one."""
        await connection.execute(delete(applied_blocks).where(self._own_blocks))
        await connection.execute(delete(cursors).where(self._own_cursor))

    async def _applied(self, connection: AsyncConnection, block: Block, final: int | None) -> None:
        identity = {"network": self._network, "role": self._role}
        await connection.execute(
            applied_blocks.insert().values(
                **identity,
                number=block.number,
                hash=block.hash,
                parent_hash=block.parent_hash,
                timestamp=block.timestamp,
                header=block.header,
            )
        )
        changing = {"number": block.number, "hash": block.hash, "final": final, "updated_at": self._now()}
        statement = self._insert(cursors).values(**identity, first=block.number, **changing)
        await connection.execute(statement.on_conflict_do_update(index_elements=["network", "role"], set_=changing))
        lowest = block.number - self._window + 1 if final is None else max(final + 1, block.number - self._window + 1)
        # The block of the cursor itself stays, however final: the next one is its child.
        await connection.execute(
            delete(applied_blocks).where(self._own_blocks, applied_blocks.c.number < min(lowest, block.number))
        )

    def _now(self) -> int:
        return int(self._clock.now() * 1_000_000)
