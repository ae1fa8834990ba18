"""What the index follows and how much of its history is there: networks, subjects, coverage.

Called by the stream consumer, the backfill and the service, always inside a transaction of theirs. Whoever writes to
the index of a network locks its row first (`lock`), so that the stream and the backfill take turns, also across
processes, and a new subject is seen by the very next block.

Of each subject the stream has every block above the *seam*. The seam is set when the subject is registered, to the
block where the stream stands, and goes down when the stream takes blocks back, since it brings their successors itself.
So the history ends at an ancestor of everything the stream brought: no gap and no double, reorganised or not.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.core.clock import Clock
from capstan.index.models import EVERYTHING, Position, Subject, SubjectKind
from capstan.storage.schema import index_coverage, index_networks, index_subjects

_ADDRESSES_AT_ONCE = 500
_MICROSECONDS = 1_000_000

Span = tuple[int, int]


class NetworkState(msgspec.Struct, frozen=True):
    """A network of the index and where the stream stands."""

    id: int
    position: Position | None


class SubjectState(msgspec.Struct, frozen=True):
    """A subject and what is known of its history."""

    id: int
    network_id: int
    subject: Subject
    first_block: int
    seam: Position | None
    complete: bool


_SUBJECT = (
    index_subjects.c.id,
    index_subjects.c.network_id,
    index_subjects.c.kind,
    index_subjects.c.address,
    index_subjects.c.first_block,
    index_subjects.c.seam_number,
    index_subjects.c.seam_hash,
    index_subjects.c.complete,
)


class Subjects:
    """The queries on networks, subjects and coverage."""

    def __init__(self, clock: Clock, *, sqlite_dialect: bool) -> None:
        self._clock = clock
        self._dialect: Any = sqlite if sqlite_dialect else postgresql

    # --- networks

    async def find_network(self, connection: AsyncConnection, network: str) -> NetworkState | None:
        """The network, without locking it; None when nothing was ever indexed of it."""
        row = (await connection.execute(_network_query(network))).first()
        return None if row is None else _network_state(row)

    async def lock(self, connection: AsyncConnection, network: str) -> NetworkState:
        """The network, which nobody else writes to until the transaction ends."""
        query = _network_query(network).with_for_update()
        row = (await connection.execute(query)).first()
        if row is None:
            create = self._dialect.insert(index_networks).values(name=network).on_conflict_do_nothing()
            await connection.execute(create)
            row = (await connection.execute(query)).one()
        return _network_state(row)

    async def advance(self, connection: AsyncConnection, network_id: int, position: Position | None) -> None:
        """The stream stands here now."""
        number, block_hash = (None, None) if position is None else (position.number, position.hash)
        await connection.execute(
            update(index_networks)
            .where(index_networks.c.id == network_id)
            .values(block_number=number, block_hash=block_hash)
        )

    # --- subjects

    async def find(self, connection: AsyncConnection, network_id: int, subject: Subject) -> SubjectState | None:
        """The subject, if it is followed."""
        query = select(*_SUBJECT).where(
            index_subjects.c.network_id == network_id,
            index_subjects.c.address == subject.address,
            index_subjects.c.kind == int(subject.kind),
        )
        row = (await connection.execute(query)).first()
        return None if row is None else _subject_state(row)

    async def get(self, connection: AsyncConnection, subject_id: int) -> SubjectState | None:
        """The subject with this id."""
        row = (await connection.execute(select(*_SUBJECT).where(index_subjects.c.id == subject_id))).first()
        return None if row is None else _subject_state(row)

    async def register(
        self, connection: AsyncConnection, network: NetworkState, subject: Subject, first_block: int
    ) -> SubjectState:
        """Follow a subject from now on. The caller holds the lock; the stream brings all blocks after its position."""
        found = await self.find(connection, network.id, subject)
        if found is not None:
            return found
        seam = network.position
        await connection.execute(
            insert(index_subjects).values(
                network_id=network.id,
                kind=int(subject.kind),
                address=subject.address,
                first_block=first_block,
                seam_number=None if seam is None else seam.number,
                seam_hash=None if seam is None else seam.hash,
                complete=seam is not None and seam.number < first_block,
                created_at=int(self._clock.now() * _MICROSECONDS),
            )
        )
        state = await self.find(connection, network.id, subject)
        assert state is not None
        return state

    async def count(self, connection: AsyncConnection, network_id: int) -> int:
        """How many subjects of a network are followed."""
        query = select(func.count()).select_from(index_subjects).where(index_subjects.c.network_id == network_id)
        return int(await connection.scalar(query) or 0)

    async def forget(self, connection: AsyncConnection, subject_id: int) -> None:
        """Do not follow a subject any more."""
        await connection.execute(delete(index_coverage).where(index_coverage.c.subject_id == subject_id))
        await connection.execute(delete(index_subjects).where(index_subjects.c.id == subject_id))

    async def forget_oldest(self, connection: AsyncConnection, network_id: int) -> None:
        """Do not follow the subject any more that was registered first. The caller holds the lock."""
        query = (
            select(index_subjects.c.id)
            .where(index_subjects.c.network_id == network_id, index_subjects.c.kind != int(SubjectKind.ALL))
            .order_by(index_subjects.c.id)
            .limit(1)
        )
        oldest = await connection.scalar(query)
        if oldest is not None:
            await self.forget(connection, oldest)

    async def watched(
        self, connection: AsyncConnection, network_id: int, addresses: Iterable[bytes]
    ) -> set[tuple[SubjectKind, bytes]]:
        """Those of the addresses that are followed, and how; the subject `EVERYTHING` too."""
        found: set[tuple[SubjectKind, bytes]] = set()
        wanted = [EVERYTHING.address, *addresses]
        for start in range(0, len(wanted), _ADDRESSES_AT_ONCE):
            some = wanted[start : start + _ADDRESSES_AT_ONCE]
            query = select(index_subjects.c.kind, index_subjects.c.address).where(
                index_subjects.c.network_id == network_id, index_subjects.c.address.in_(some)
            )
            for kind, address in await connection.execute(query):
                if kind == SubjectKind.ALL:
                    return {(SubjectKind.ALL, b"")}
                found.add((SubjectKind(kind), address))
        return found

    async def incomplete(self, connection: AsyncConnection, network_id: int, limit: int) -> list[SubjectState]:
        """Subjects whose history is not all there and that nobody fetches now, the oldest first."""
        now = int(self._clock.now() * _MICROSECONDS)
        query = (
            select(*_SUBJECT)
            .where(
                index_subjects.c.complete.is_(False),
                index_subjects.c.network_id == network_id,
                index_subjects.c.seam_number.is_not(None),
                or_(index_subjects.c.claimed_until.is_(None), index_subjects.c.claimed_until < now),
            )
            .order_by(index_subjects.c.id)
            .limit(limit)
        )
        return [_subject_state(row) for row in await connection.execute(query)]

    async def claim(self, connection: AsyncConnection, subject_id: int, process: str, seconds: float) -> bool:
        """Take the right to fetch a subject's history for some time; false when another process has it."""
        now = int(self._clock.now() * _MICROSECONDS)
        result = await connection.execute(
            update(index_subjects)
            .where(
                index_subjects.c.id == subject_id,
                index_subjects.c.complete.is_(False),
                or_(
                    index_subjects.c.claimed_until.is_(None),
                    index_subjects.c.claimed_by == process,
                    index_subjects.c.claimed_until < now,
                ),
            )
            .values(claimed_by=process, claimed_until=now + int(seconds * _MICROSECONDS))
        )
        return result.rowcount == 1

    async def release(self, connection: AsyncConnection, subject_id: int, process: str) -> None:
        """Give the right back."""
        await connection.execute(
            update(index_subjects)
            .where(index_subjects.c.id == subject_id, index_subjects.c.claimed_by == process)
            .values(claimed_by=None, claimed_until=None)
        )

    # --- coverage

    async def missing(self, connection: AsyncConnection, state: SubjectState) -> list[Span]:
        """The blocks of the history that are not there yet, lowest first."""
        if state.seam is None:
            return []
        query = (
            select(index_coverage.c.first_block, index_coverage.c.last_block)
            .where(index_coverage.c.subject_id == state.id)
            .order_by(index_coverage.c.first_block)
        )
        gaps: list[Span] = []
        begin = state.first_block
        for first, last in await connection.execute(query):
            if begin < first:
                gaps.append((begin, first - 1))
            begin = max(begin, last + 1)
        if begin <= state.seam.number:
            gaps.append((begin, state.seam.number))
        return gaps

    async def cover(self, connection: AsyncConnection, state: SubjectState, first: int, last: int) -> bool:
        """These blocks of the history are there now. Returns whether all are. The caller holds the lock."""
        table = index_coverage.c
        touching = (table.subject_id == state.id) & (table.first_block <= last + 1) & (table.last_block >= first - 1)
        rows = (await connection.execute(select(table.first_block, table.last_block).where(touching))).all()
        await connection.execute(delete(index_coverage).where(touching))
        await connection.execute(
            insert(index_coverage).values(
                subject_id=state.id,
                first_block=min([first, *(row[0] for row in rows)]),
                last_block=max([last, *(row[1] for row in rows)]),
            )
        )
        return await self.settle(connection, state)

    async def settle(self, connection: AsyncConnection, state: SubjectState) -> bool:
        """Note it when all of the history is there; returns whether it is."""
        if state.seam is None or await self.missing(connection, state):
            return False
        await connection.execute(
            update(index_subjects)
            .where(index_subjects.c.id == state.id)
            .values(complete=True, claimed_by=None, claimed_until=None)
        )
        return True

    # --- what the stream does to the history; the caller holds the lock

    async def begin(self, connection: AsyncConnection, network_id: int, seam: Position) -> None:
        """The stream brings its first block, the one after `seam`."""
        waiting = (index_subjects.c.network_id == network_id) & index_subjects.c.seam_number.is_(None)
        await self._set_seam(connection, waiting, seam)

    async def rewind(self, connection: AsyncConnection, network_id: int, position: Position) -> None:
        """The stream has gone back to this block and will bring all above it."""
        above = (index_subjects.c.network_id == network_id) & (index_subjects.c.seam_number > position.number)
        ids = select(index_subjects.c.id).where(above)
        inside = index_coverage.c.subject_id.in_(ids)
        await connection.execute(delete(index_coverage).where(inside, index_coverage.c.first_block > position.number))
        await connection.execute(
            update(index_coverage)
            .where(inside, index_coverage.c.last_block > position.number)
            .values(last_block=position.number)
        )
        await connection.execute(
            update(index_subjects).where(above).values(seam_number=position.number, seam_hash=position.hash)
        )

    async def skip(self, connection: AsyncConnection, network: NetworkState, seam: Position) -> None:
        """The stream goes on behind `seam`, but stood below it: the blocks between become history of all subjects."""
        assert network.position is not None
        followed = (index_subjects.c.network_id == network.id) & (
            index_subjects.c.seam_number < network.position.number
        )
        number = network.position.number
        known = select(index_subjects.c.id, index_subjects.c.seam_number + 1, index_subjects.c.seam_number * 0 + number)
        await connection.execute(
            insert(index_coverage).from_select(["subject_id", "first_block", "last_block"], known.where(followed))
        )
        await self._set_seam(connection, index_subjects.c.network_id == network.id, seam)

    async def restart(self, connection: AsyncConnection, network_id: int, seam: Position | None) -> None:
        """The chain is another one: all history up to `seam` must be fetched anew. None: see `begin`."""
        ids = select(index_subjects.c.id).where(index_subjects.c.network_id == network_id)
        await connection.execute(delete(index_coverage).where(index_coverage.c.subject_id.in_(ids)))
        await self._set_seam(connection, index_subjects.c.network_id == network_id, seam)

    async def _set_seam(self, connection: AsyncConnection, which: Any, seam: Position | None) -> None:
        values = (
            {"seam_number": None, "seam_hash": None, "complete": False}
            if seam is None
            else {
                "seam_number": seam.number,
                "seam_hash": seam.hash,
                "complete": index_subjects.c.first_block > seam.number,
            }
        )
        await connection.execute(update(index_subjects).where(which).values(values))


def _network_query(network: str) -> Any:
    table = index_networks.c
    return select(table.id, table.block_number, table.block_hash).where(table.name == network)


def _network_state(row: Any) -> NetworkState:
    number, block_hash = row[1], row[2]
    return NetworkState(row[0], None if number is None else Position(number, block_hash))


def _subject_state(row: Any) -> SubjectState:
    subject_id, network_id, kind, address, first_block, number, block_hash, complete = row
    seam = None if number is None else Position(number, block_hash)
    return SubjectState(subject_id, network_id, Subject(SubjectKind(kind), address), first_block, seam, bool(complete))
