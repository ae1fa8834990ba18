"""The pool of one network: what the rules decide, and the database that makes it last.

The service adds operations, the worker takes them into bundles and drops those that fail. Every change is one
transaction that holds the row of the network's pool, so that of many processes one changes it at a time, and each
knows what the others did: it reads what changed since it last looked, lets the rules decide on what is in memory, and
writes the outcome before anybody is told. When a transaction fails, memory is thrown away and read again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.bundler.entries import POOLED, Entry
from capstan.bundler.mempool import Mempool, PoolLimits
from capstan.bundler.models import PoolOperation
from capstan.bundler.refusals import Refusal
from capstan.bundler.reputation import Reputation, ReputationBook, ReputationRules
from capstan.bundler.store import PoolRow, PoolStore
from capstan.core.clock import Clock
from capstan.core.hexes import to_data
from capstan.storage.database import Database
from capstan.stream.lease import Lease, LeaseStore
from capstan.userops.versions import Version

_MICROSECONDS = 1_000_000


class PoolRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a network's pool, as the settings have them."""

    limits: PoolLimits = PoolLimits()
    reputation: ReputationRules = ReputationRules()
    never_limited: frozenset[bytes] = frozenset()
    always_banned: frozenset[bytes] = frozenset()


class OperationPool:
    """The operations of one network that wait for a bundle, or are in one."""

    def __init__(
        self,
        network: str,
        entry_points: Mapping[bytes, Version],
        database: Database,
        clock: Clock,
        rules: PoolRules | None = None,
    ) -> None:
        self.network = network
        self.store = PoolStore(network, entry_points, sqlite_dialect=database.is_sqlite)
        self._database = database
        self._clock = clock
        self._rules = rules or PoolRules()
        self._lock = asyncio.Lock()
        self._row: PoolRow | None = None
        self._entries: dict[bytes, Entry] = {}
        self._versions = dict(entry_points)
        self._pools = {address: self._new_pool(address) for address in entry_points}
        # Set whenever something changed; the worker waits for it.
        self.changed = asyncio.Event()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def mempool(self, entry_point: bytes) -> Mempool:
        """The operations of one entry point as the rules see them, as they were when last looked at."""
        return self._pools[entry_point]

    def has_expired(self, now: int, block_number: int) -> bool:
        """Whether an operation is past its time."""
        return any(pool.has_expired(now=now, block_number=block_number) for pool in self._pools.values())

    async def refresh(self) -> None:
        """Take over what other processes and the stream have changed."""
        async with self._lock, self._database.read() as connection:
            await self._catch_up(connection, await self.store.look(connection))

    async def find(self, operation_hash: bytes) -> Entry | None:
        """The operation with this hash, whatever became of it."""
        async with self._database.read() as connection:
            found = await self.store.find(connection, [operation_hash])
        return found[0] if found else None

    @asynccontextmanager
    async def changing(self, leases: LeaseStore | None = None, lease: Lease | None = None) -> "AsyncIterator[Change]":
        """A change of the pool: all of it is written when the block ends, or nothing if it raises.

        With a lease, only while it is held: raises `LeaseLost`.
        """
        async with self._lock:
            change: Change | None = None
            try:
                async with self._database.write() as connection:
                    if leases is not None and lease is not None:
                        await leases.check(connection, lease)
                    row = await self.store.lock(connection)
                    await self._catch_up(connection, row)
                    change = Change(self, connection, row.revision + 1, int(self._clock.now() * _MICROSECONDS))
                    epoch = await self._fade(change, row)
                    yield change
                    self._row = await self._write(change, PoolRow(row.revision, epoch, self._hour(row)))
            except BaseException as error:
                if change is not None and (change.touched or not isinstance(error, Refusal)):
                    # What is in memory may not be what is in the database.
                    self._row = None
                raise
            if change.touched:
                self.changed.set()

    # --- memory and database

    async def _catch_up(self, connection: AsyncConnection, row: PoolRow) -> None:
        known = self._row
        if known == row:
            return
        if known is None or known.epoch != row.epoch:
            self._row = None
            self._entries.clear()
            self._pools = {address: self._new_pool(address) for address in self._pools}
            self._take(await self.store.in_pool(connection))
            reputations = await self.store.reputations(connection)
        else:
            self._take(await self.store.changed_since(connection, known.revision))
            reputations = await self.store.reputations(connection, since=known.revision)
        for address, pool in self._pools.items():
            pool.reputation.restore(reputations.get(address, ()), hour=row.hour or None)
            pool.reputation.take_changes()
        self._row = row
        self.changed.set()

    def _take(self, entries: Iterable[Entry]) -> None:
        """Make memory agree with these rows. Those that left go first: others may have come into their places."""
        arrivals = []
        for entry in entries:
            known = self._entries.pop(entry.hash, None)
            if entry.state in POOLED:
                self._entries[entry.hash] = entry
                if known is None:
                    arrivals.append(entry.pooled())
            elif known is not None:
                self._pools[entry.entry_point.address].remove(entry.hash)
        for pooled, entry in ((each, self._entries[each.hash]) for each in arrivals):
            self._pools[entry.entry_point.address].restore([pooled])

    async def _fade(self, change: "Change", row: PoolRow) -> int:
        """Let the reputations fade; whoever comes first in a new hour writes them all. Returns the epoch."""
        faded = [pool.reputation.fade(self._clock.now()) for pool in self._pools.values()]
        if not any(faded):
            return row.epoch
        change.touched = True
        for address, pool in self._pools.items():
            await self.store.replace_reputations(change.connection, address, list(pool.reputation), change.revision)
        return row.epoch + 1

    async def _write(self, change: "Change", row: PoolRow) -> PoolRow:
        for address, pool in self._pools.items():
            if changes := pool.reputation.take_changes():
                change.touched = True
                await self.store.put_reputations(change.connection, address, changes, change.revision)
        if change.entries:
            await self.store.put(change.connection, change.entries.values(), change.revision, change.now)
            for entry in change.entries.values():
                self._entries.pop(entry.hash, None)
                if entry.state in POOLED:
                    self._entries[entry.hash] = entry
        if not change.touched:
            return row
        row = PoolRow(change.revision, row.epoch + change.epochs, row.hour)
        await self.store.save(change.connection, row)
        return row

    def _hour(self, row: PoolRow) -> int:
        return max([row.hour, *(pool.reputation.hour or 0 for pool in self._pools.values())])

    def _new_pool(self, entry_point: bytes) -> Mempool:
        rules = self._rules
        early = self._versions[entry_point] == "0.6"
        counts = msgspec.structs.replace(rules.reputation, early_unstaked_limits=early)
        book = ReputationBook(counts, never_limited=rules.never_limited, always_banned=rules.always_banned)
        return Mempool(book, rules.limits)


class Change:
    """One change of a pool under way. Its methods change memory; the rows are written at the end."""

    def __init__(self, pool: OperationPool, connection: AsyncConnection, revision: int, now: int) -> None:
        self.connection = connection
        self.revision = revision
        self.now = now
        self.touched = False
        self.epochs = 0
        self.entries: dict[bytes, Entry] = {}
        self._pool = pool

    def get(self, operation_hash: bytes) -> Entry | None:
        """An operation of the pool, as this change leaves it."""
        found = self.entries.get(operation_hash) or self._pool._entries.get(operation_hash)
        return found if found is not None and found.state in POOLED else None

    def add(self, entry: Entry, *, deposit: int) -> None:
        """Take an operation in, by the rules. Raises `Refusal`; then nothing has changed."""
        mempool = self._pool.mempool(entry.entry_point.address)
        added = mempool.add(entry.pooled(), deposit=deposit)
        if added.replaced is not None:
            self._leave(added.replaced, f"replaced by {to_data(entry.hash)}, which pays more")
        if added.evicted is not None:
            self._leave(added.evicted, "the pool is full, and others pay more")
        self._put(entry)

    def drop(self, operation_hash: bytes, reason: str) -> None:
        """Take an operation out for good. Reputation is the caller's to settle."""
        entry = self.get(operation_hash)
        if entry is not None:
            self._pool.mempool(entry.entry_point.address).remove(operation_hash)
            self._put(_left(entry, reason))

    def submit(self, operation_hash: bytes, signer: bytes, nonce: int) -> None:
        """The operation is in a bundle of this signer with this nonce."""
        entry = self.get(operation_hash)
        if entry is not None:
            self._put(msgspec.structs.replace(entry, state="submitted", signer=signer, signer_nonce=nonce))

    def release(self, operation_hash: bytes) -> None:
        """The operation is in no bundle any more."""
        entry = self.get(operation_hash)
        if entry is not None:
            self._put(msgspec.structs.replace(entry, state="pending", signer=None, signer_nonce=None))

    def expire(self, *, now: int, block_number: int) -> int:
        """Take out what is past its time, but for what is in a bundle already. Returns how many."""
        gone = 0
        for address in self._pool._pools:
            mempool = self._pool.mempool(address)
            for pooled in mempool.expire(now=now, block_number=block_number):
                entry = self.get(pooled.hash)
                if entry is not None and entry.state == "submitted":
                    mempool.restore([pooled])
                    continue
                self._leave(pooled, "its time is over")
                gone += 1
        return gone

    def evict_banned(self, entry_point: bytes, address: bytes) -> None:
        """Take out everything that uses a banned entity (GREP-010)."""
        for pooled in self._pool.mempool(entry_point).evict_banned(address):
            self._leave(pooled, "an entity of the operation was banned (GREP-010)")

    def clear_operations(self) -> None:
        """Drop every operation."""
        for entry in list(self._pool):
            self.drop(entry.hash, "the pool was cleared")

    def set_reputations(self, entry_point: bytes, entries: Iterable[Reputation]) -> None:
        """Set the counts of these addresses."""
        self._pool.mempool(entry_point).reputation.restore(entries)
        self.touched = True

    async def clear_reputations(self) -> None:
        """Forget all reputations."""
        for address in self._pool._pools:
            book = self._pool.mempool(address).reputation
            book.clear()
            book.take_changes()
            await self._pool.store.replace_reputations(self.connection, address, [], self.revision)
        self.touched = True
        self.epochs += 1

    def _leave(self, pooled: PoolOperation, reason: str) -> None:
        entry = self.entries.get(pooled.hash) or self._pool._entries[pooled.hash]
        self._put(_left(entry, reason))

    def _put(self, entry: Entry) -> None:
        self.touched = True
        self.entries[entry.hash] = entry


def _left(entry: Entry, reason: str) -> Entry:
    return msgspec.structs.replace(entry, state="failed", reason=reason, signer=None, signer_nonce=None)
