"""A pool in front of a real PostgreSQL that gives a client another connection in every transaction, as pgbouncer does.

It hands the connections out in turn, so that whoever relies on what an earlier transaction left on its connection is
found out at once. Like pgbouncer it refuses start-up parameters that it does not know.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

_SOCKET = ".s.PGSQL.5432"
_KNOWN = frozenset({"user", "database", "application_name", "client_encoding"})
_READY = b"Z"
_IDLE = b"I"
_END = b"X"
_ENDS_IN_READY = b"QS"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The kind of the next message, and the whole of it."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)


async def _startup(reader: asyncio.StreamReader) -> dict[str, str]:
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    body = await reader.readexactly(length - 4)
    words = body[4:].rstrip(b"\0").split(b"\0")
    return {name.decode(): value.decode() for name, value in zip(words[::2], words[1::2], strict=True)}


def _packed(parameters: dict[str, str]) -> bytes:
    words = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    return struct.pack("!II", len(words) + 9, 196_608) + words + b"\0"


def _error(message: str) -> bytes:
    fields = b"SFATAL\0VFATAL\0C08P01\0M" + message.encode() + b"\0\0"
    return b"E" + struct.pack("!I", len(fields) + 4) + fields


class TransactionPool:
    """Connections to a server, each given to one client for one transaction at a time."""

    def __init__(self, server: Path, database: str) -> None:
        self._server = server
        self._database = database
        self._greeting = b""
        self._free: asyncio.Queue[Streams] = asyncio.Queue()
        self.transactions = 0

    async def open(self, connections: int) -> None:
        for _ in range(connections):
            reader, writer = await asyncio.open_unix_connection(self._server / _SOCKET)
            writer.write(_packed({"user": "postgres", "database": self._database}))
            greeting = b""
            while True:
                kind, message = await _message(reader)
                greeting += message
                if kind == _READY:
                    break
            self._greeting = greeting
            self._free.put_nowait((reader, writer))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it ends."""
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            unknown = (await _startup(reader)).keys() - _KNOWN
            if unknown:
                writer.write(_error(f"unsupported startup parameter: {min(unknown)}"))
                return
            writer.write(self._greeting)
            await self._transactions(_Client(reader, writer))

    async def _transactions(self, client: "_Client") -> None:
        while not client.ended:
            kind, message = await client.next()
            if kind == _END:
                return
            server = await self._free.get()
            try:
                await _transaction(client, server, kind, message)
            finally:
                self._free.put_nowait(server)
            self.transactions += 1


class _Client:
    """A client, whose next message is waited for before anybody wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self.coming = asyncio.ensure_future(_message(reader))

    @property
    def ended(self) -> bool:
        return self._reader.at_eof()

    async def next(self) -> tuple[bytes, bytes]:
        found = await self.coming
        self.coming = asyncio.ensure_future(_message(self._reader))
        return found


async def _transaction(client: _Client, server: Streams, kind: bytes, message: bytes) -> None:
    """Carry messages both ways until the server is outside of a transaction and owes no answer."""
    answering = asyncio.ensure_future(_message(server[0]))
    owed = 0
    try:
        while True:
            server[1].write(message)
            owed += kind in _ENDS_IN_READY
            while not client.coming.done():
                await asyncio.wait({answering, client.coming}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    break
                said, answer = await answering
                client.writer.write(answer)
                answering = asyncio.ensure_future(_message(server[0]))
                owed -= said == _READY
                if said == _READY and not owed and answer[5:6] == _IDLE:
                    return
            kind, message = await client.next()
    finally:
        # Nothing of a message was read yet: the server owes none.
        answering.cancel()


@contextlib.asynccontextmanager
async def transaction_pool(
    directory: Path, server: Path, database: str, *, connections: int = 3
) -> AsyncIterator[tuple[str, TransactionPool]]:
    """A pool that listens on a socket file in the directory, and its address."""
    pool = TransactionPool(server, database)
    await pool.open(connections)
    listener = await asyncio.start_unix_server(pool.serve, directory / _SOCKET)
    async with listener:
        yield f"postgresql://postgres@/{database}?host={directory}", pool
