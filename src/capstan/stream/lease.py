"""One leader at a time: a lease with a fencing token, in the database that the leader writes to.

A process that wants to lead acquires the lease, renews it, and compares its token inside every transaction it writes.
The token grows whenever the lease changes hands, so a leader that was paused and wakes up late finds another token and
can write nothing. No clock decides what is written; clocks only decide when a lease may be taken over, and on
PostgreSQL that is the database's own clock.
"""

import msgspec
from sqlalchemy import BigInteger, cast, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.storage.errors import AlreadyExists
from capstan.storage.schema import leases

_MICROSECONDS = 1_000_000


class LeaseLost(Exception):
    """Another process holds the lease now. Nothing of the transaction may be written."""


class Lease(msgspec.Struct, frozen=True):
    """A lease that this process holds, or has held."""

    name: str
    token: int


class LeaseStore:
    """Acquires, renews and checks leases for one holder."""

    def __init__(self, database: Database, holder: str, clock: Clock, *, seconds: float = 9.0) -> None:
        self.holder = holder
        self.seconds = seconds
        self._database = database
        self._clock = clock

    async def acquire(self, name: str) -> Lease | None:
        """The lease, or None while another holder has it."""
        try:
            async with self._database.write() as connection:
                return await self._acquire(connection, name)
        except AlreadyExists:
            # Another process has made the row between our look and our insert.
            return None

    async def renew(self, lease: Lease) -> None:
        """Keep the lease for another while. Raises `LeaseLost`."""
        async with self._database.write() as connection:
            expires_at = await self._now(connection) + self._length
            result = await connection.execute(
                update(leases)
                .where(leases.c.name == lease.name, leases.c.token == lease.token)
                .values(expires_at=expires_at)
            )
        if result.rowcount != 1:
            raise LeaseLost(lease.name)

    async def release(self, lease: Lease) -> None:
        """Let the next one have it at once."""
        async with self._database.write() as connection:
            await connection.execute(
                update(leases).where(leases.c.name == lease.name, leases.c.token == lease.token).values(expires_at=0)
            )

    async def release_all(self) -> None:
        """Let every lease be taken at once. Only for a process that is known to be alone on the database."""
        async with self._database.write() as connection:
            await connection.execute(update(leases).values(expires_at=0))

    async def check(self, connection: AsyncConnection, lease: Lease) -> None:
        """To be called in the transaction that writes: nobody else can take the lease until that ends.

        Raises `LeaseLost`.
        """
        token = await connection.scalar(select(leases.c.token).where(leases.c.name == lease.name).with_for_update())
        if token != lease.token:
            raise LeaseLost(lease.name)

    async def _acquire(self, connection: AsyncConnection, name: str) -> Lease | None:
        row = (await connection.execute(select(leases).where(leases.c.name == name).with_for_update())).first()
        now = await self._now(connection)
        values = {"holder": self.holder, "expires_at": now + self._length}
        if row is None:
            await connection.execute(insert(leases).values(name=name, token=1, **values))
            return Lease(name, 1)
        if row.expires_at > now and row.holder != self.holder:
            return None
        token = row.token + 1
        await connection.execute(update(leases).where(leases.c.name == name).values(token=token, **values))
        return Lease(name, token)

    @property
    def _length(self) -> int:
        return int(self.seconds * _MICROSECONDS)

    async def _now(self, connection: AsyncConnection) -> int:
        if self._database.is_sqlite:
            # All holders are on one machine.
            return int(self._clock.now() * _MICROSECONDS)
        seconds = func.extract("epoch", func.clock_timestamp())
        return int(await connection.scalar(select(cast(seconds * _MICROSECONDS, BigInteger))) or 0)
