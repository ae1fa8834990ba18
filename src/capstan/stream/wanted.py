"""Tells the processes that follow the chains which streams are needed.

A request makes a stream necessary: the first webhook, wallet, gas policy or indexed address of a network. The process
that answers it may not be one that follows chains, and may die a moment later. So `want` writes the need down before
the request is carried out, and every process that follows looks for new ones. In such a process it is acted upon at
once. The composition root makes one for each process and registers, for each role of a cursor, who begins a stream. A
need is never withdrawn.
"""

import asyncio
from collections.abc import Callable

import structlog
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.schema import wanted_streams

log = structlog.get_logger(__name__)

# Called with the network, and the block at which a stream that never ran has to begin; None: at the head.
Begin = Callable[[str, int | None], None]


class WantedStreams:
    """The needs of all processes on one database."""

    def __init__(self, database: Database, *, follows: bool, look_seconds: float = 1.0) -> None:
        """`follows` says whether this process begins streams, or only writes down that they are needed."""
        self.follows = follows
        self._database = database
        self._look_seconds = look_seconds
        self._begin: dict[str, Begin] = {}
        self._noted: dict[tuple[str, str], int | None] = {}
        self._asked: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def register(self, role: str, begin: Begin) -> None:
        """Who begins the streams of a role in this process. It is told again of those that run, and of networks that
        are not served.
        """
        self._begin[role] = begin

    async def want(self, network: str, role: str, first: int | None = None) -> None:
        """The stream is needed from now on. Raises `StorageError` when that cannot be written down."""
        if (network, role) not in self._noted:
            dialect = sqlite if self._database.is_sqlite else postgresql
            statement = dialect.insert(wanted_streams).values(network=network, role=role, first=first)
            mine = (wanted_streams.c.network == network, wanted_streams.c.role == role)
            async with self._database.write() as connection:
                await connection.execute(statement.on_conflict_do_nothing())
                # Whoever needed it before says where it begins.
                self._noted[network, role] = await connection.scalar(select(wanted_streams.c.first).where(*mine))
        self._act(network, role, self._noted[network, role])

    def want_soon(self, network: str, role: str) -> None:
        """The same for those who cannot wait. They must say so again when they still need it."""
        if (network, role) in self._noted:
            self._act(network, role, self._noted[network, role])
            return
        if (network, role) in self._asked:
            return
        self._asked.add((network, role))
        self._act(network, role, None)
        self._keep(asyncio.create_task(self._try(network, role), name=f"want {network} {role}"))

    async def look(self) -> None:
        """Begin what anybody needs."""
        query = select(wanted_streams.c.network, wanted_streams.c.role, wanted_streams.c.first)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        for network, role, first in rows:
            self._act(network, role, first)

    async def start(self) -> None:
        """Begin what is needed already and, where other processes may serve requests, look for more."""
        if not self.follows:
            return
        await self.look()
        if not self._database.is_sqlite:
            self._keep(asyncio.create_task(self._watch(), name="wanted streams"))

    async def close(self) -> None:
        """Stop looking."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _act(self, network: str, role: str, first: int | None) -> None:
        begin = self._begin.get(role)
        if self.follows and begin is not None:
            begin(network, first)

    async def _try(self, network: str, role: str) -> None:
        try:
            await self.want(network, role)
        except StorageError as error:
            log.warning("stream.need_not_written", network=network, role=role, reason=str(error))
        finally:
            self._asked.discard((network, role))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self.look()
            except StorageError as error:
                log.warning("stream.needs_not_read", reason=str(error))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
