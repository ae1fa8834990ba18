"""How far the transfer index is, for people: where its stream stands and what is missing of the history.

Read by the dashboard; it changes nothing. The sums cover what all processes of the service fetch.
"""

import msgspec
from sqlalchemy import BigInteger, and_, case, cast, func, select

from capstan.storage.database import Database
from capstan.storage.schema import index_coverage, index_networks, index_subjects, transfers

MOST_COUNTED = 100_000
"""Transfers are counted up to here; to count millions would take seconds."""


class NetworkProgress(msgspec.Struct, frozen=True):
    """The index of one network."""

    network: str
    # The last block of the stream in the index; None before the first.
    block: int | None
    # Holders and contracts that are followed, or everything, which counts as one; and how many lack some history.
    subjects: int
    incomplete: int
    # Blocks of history that those still need, together.
    blocks_left: int
    # Transfers, at most `MOST_COUNTED` and one.
    transfers: int


async def read_progress(database: Database) -> list[NetworkProgress]:
    """The progress of every network that was ever indexed."""
    subjects, networks = index_subjects.c, index_networks.c
    unfinished = and_(subjects.complete.is_(False), subjects.seam_number.is_not(None))
    # Coverage above the seam is of blocks that the stream took back.
    end = case(
        (index_coverage.c.last_block > subjects.seam_number, subjects.seam_number), else_=index_coverage.c.last_block
    )
    wanted = (
        select(subjects.network_id, func.sum(subjects.seam_number - subjects.first_block + 1))
        .where(unfinished)
        .group_by(subjects.network_id)
    )
    there = (
        select(subjects.network_id, func.sum(cast(end - index_coverage.c.first_block + 1, BigInteger)))
        .join(index_coverage, index_coverage.c.subject_id == subjects.id)
        .where(unfinished, index_coverage.c.first_block <= subjects.seam_number)
        .group_by(subjects.network_id)
    )
    counted = select(subjects.network_id, func.count(), func.sum(case((subjects.complete, 0), else_=1)))
    async with database.read() as connection:
        needed = {row[0]: int(row[1]) for row in await connection.execute(wanted)}
        present = {row[0]: int(row[1]) for row in await connection.execute(there)}
        counts = {
            row[0]: (row[1], int(row[2])) for row in await connection.execute(counted.group_by(subjects.network_id))
        }
        found = []
        for row in await connection.execute(select(networks.id, networks.name, networks.block_number)):
            some = select(transfers.c.block_number).where(transfers.c.network_id == row.id).limit(MOST_COUNTED + 1)
            number = await connection.scalar(select(func.count()).select_from(some.subquery()))
            followed, incomplete = counts.get(row.id, (0, 0))
            left = max(0, needed.get(row.id, 0) - present.get(row.id, 0))
            found.append(NetworkProgress(row.name, row.block_number, followed, incomplete, left, int(number or 0)))
        return found
