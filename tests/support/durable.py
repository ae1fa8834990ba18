"""A durable consumer that leaves a trace of everything it was given, and the process that tests kill.

`Journal` writes one row for each delta and one for each log of the blocks that are applied; `read_trace` reads them.
As a program, `python -m tests.support.durable DATABASE_URL NODE_URL DEATH` carries the stream of a node into a database
and kills itself with SIGKILL where `DEATH` says: `never`, or `before:5`, `inside:5` or `after:5`, the fifth delta being
the one before whose writing, in the middle of whose transaction, or after whose commit it dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.followers import Followers
from capstan.chain.follower.models import Applied, Block, Delta, Demand
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.source import HeadOptions
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.ids import new_id
from capstan.storage.database import Database, DatabaseOptions
from capstan.storage.schema import cursors
from capstan.stream.durable import DurableOptions, DurableStream
from capstan.stream.lease import Lease, LeaseStore
from tests.support.faulty_node import network_spec
from tests.support.stream_nodes import Made, World, until

ROLE = "test"
START = 5
LEASE_SECONDS = 0.5
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

metadata = sa.MetaData()
journal = sa.Table(
    "journal",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("parent_hash", sa.Text, nullable=False),
)
log_rows = sa.Table(
    "log_rows",
    metadata,
    sa.Column("block_hash", sa.Text, primary_key=True),
    sa.Column("log_index", sa.Integer, primary_key=True),
    sa.Column("transaction_hash", sa.Text, nullable=False),
)


class Journal:
    """Writes everything down."""

    demand = Demand.LOGS

    def __init__(self, hook: Callable[[str, Block], Awaitable[None]] | None = None) -> None:
        self._hook = hook
        self.resets = 0

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        block = delta.block
        if self._hook is not None:
            await self._hook("before", block)
        kind = "applied" if isinstance(delta, Applied) else "reverted"
        await connection.execute(
            journal.insert().values(kind=kind, number=block.number, hash=block.hash, parent_hash=block.parent_hash)
        )
        if isinstance(delta, Applied):
            rows = [
                {"block_hash": block.hash, "log_index": log.index, "transaction_hash": log.transaction_hash}
                for log in block.logs or ()
            ]
            if rows:
                await connection.execute(log_rows.insert(), rows)
        else:
            await connection.execute(log_rows.delete().where(log_rows.c.block_hash == block.hash))
        if self._hook is not None:
            await self._hook("inside", block)

    async def reset(self, connection: AsyncConnection) -> None:
        self.resets += 1
        await connection.execute(log_rows.delete())
        await connection.execute(journal.delete())


async def create_tables(database: Database) -> None:
    """The tables of the journal, beside those of the service."""
    async with database.write() as connection:
        await connection.run_sync(metadata.create_all)


async def read_trace(database: Database) -> tuple[list[tuple[str, int, str, str]], set[tuple[str, int]]]:
    """The deltas in the order they were committed, and the logs that are there."""
    async with database.read() as connection:
        entries = (await connection.execute(sa.select(journal).order_by(journal.c.id))).all()
        rows = (await connection.execute(sa.select(log_rows))).all()
    deltas = [(entry.kind, entry.number, entry.hash, entry.parent_hash) for entry in entries]
    return deltas, {(row.block_hash, row.log_index) for row in rows}


def replayed(deltas: list[tuple[str, int, str, str]]) -> list[str]:
    """The hashes that are left after all deltas; fails when they are not a valid walk."""
    tip: list[tuple[int, str]] = []
    for kind, number, block_hash, parent_hash in deltas:
        if kind == "applied":
            assert not tip or (tip[-1][0] + 1, tip[-1][1]) == (number, parent_hash), "a gap, or a repetition"
            tip.append((number, block_hash))
        else:
            assert tip.pop() == (number, block_hash), "reverted what was not the tip"
    return [block_hash for _, block_hash in tip]


class Mortal:
    """Kills the process at the moment it was told to."""

    def __init__(self, death: str) -> None:
        place, _, count = death.partition(":")
        self._place = place
        self._left = int(count or 0)

    async def reached(self, place: str, _block: Block) -> None:
        if place != self._place:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalStream(DurableStream):
    """Tells when a block is committed."""

    mortal: Mortal

    async def _write(self, lease: Lease, delta: Delta, final: int | None) -> None:
        await super()._write(lease, delta, final)
        await self.mortal.reached("after", delta.block)


async def carry(database_url: str, node_url: str, death: str) -> None:
    """Carry the stream until the end of the process."""
    clock = SystemClock()
    mortal = Mortal(death)
    database = Database(DatabaseOptions(url=database_url))
    registry = ChainRegistry(open_session(), clock)
    registry.replace([network_spec(UpstreamSpec(name="node", url=node_url), block_time_ms=50)])
    heads = LatestHeads(clock, options=HeadOptions(finality_tags=False, fastest_interval=0.02, slowest_interval=0.05))
    followers = Followers(heads, clock)
    networks = registry.networks()
    heads.sync(networks)
    followers.sync(networks)
    stream = MortalStream(
        followers.get(networks[0].name),
        database,
        LeaseStore(database, new_id("proc"), clock, seconds=LEASE_SECONDS),
        [Journal(mortal.reached)],
        clock,
        options=DurableOptions(role=ROLE, start=START),
    )
    stream.mortal = mortal
    stream.start()
    # Until the process is killed.
    await asyncio.Event().wait()


# --- for tests in one process, over scripted nodes


async def check(database: Database, chain: list[Made]) -> None:
    """What is stored is exactly what the chain says, and every step to it was a step of a valid walk."""
    deltas, rows = await read_trace(database)
    told = chain[START:]
    assert replayed(deltas) == [made.hash for made in told]
    assert rows == {(made.hash, index) for made in told for index in range(len(made.logs))}
    async with database.read() as connection:
        cursor = (await connection.execute(sa.select(cursors))).one()
    assert (cursor.number, cursor.hash) == (chain[-1].number, chain[-1].hash)


async def count(database: Database) -> int:
    async with database.read() as connection:
        return int(await connection.scalar(sa.select(sa.func.count()).select_from(journal)) or 0)


def durable(
    world: World,
    database: Database,
    consumer: Any,
    *,
    holder: str = "one",
    seconds: float = LEASE_SECONDS,
    **options: Any,
) -> DurableStream:
    leases = LeaseStore(database, holder, SystemClock(), seconds=seconds)
    chosen = DurableOptions(**{"role": ROLE, "start": START, **options})
    return DurableStream(world.follower, database, leases, [consumer], SystemClock(), options=chosen)


async def caught_up(world: World, stream: DurableStream) -> None:
    async def there() -> bool:
        await world.poll()
        latest, position = world.tracker.latest, stream.position
        return latest is not None and position is not None and position.hash == latest.hash

    await until(there, what="the head")


if __name__ == "__main__":
    asyncio.run(carry(sys.argv[1], sys.argv[2], sys.argv[3]))
