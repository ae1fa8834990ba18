"""A PostgreSQL whose connections break at the commit: a proxy between the service and a real server.

It passes everything on but the commits for which a loss was ordered. `withheld` breaks the connection and the server
never hears of the commit; `unconfirmed` passes the commit on and breaks the connection before the answer; `late` breaks
the connection at once and passes the commit on only when `release` is called.
"""

import asyncio
import contextlib
from collections import deque
from pathlib import Path
from typing import Literal

_SOCKET = ".s.PGSQL.5432"

Loss = Literal["withheld", "unconfirmed", "late"]


class LossyPostgres:
    """The proxy. It listens on a socket file in a directory of its own."""

    def __init__(self, server_directory: Path, directory: Path) -> None:
        self._server_directory = server_directory
        self.directory = directory
        self.losses: deque[Loss] = deque()
        self.lost: list[Loss] = []
        self._released = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def url(self, database: str) -> str:
        """The address of a database behind the proxy."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def release(self) -> None:
        """Let the late commits through."""
        self._released.set()

    async def __aenter__(self) -> "LossyPostgres":
        self._listener = await asyncio.start_unix_server(self._serve, self.directory / _SOCKET)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        # The connections end with their clients, which were closed before.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        from_server, to_server = await asyncio.open_unix_connection(self._server_directory / _SOCKET)
        answers = asyncio.create_task(_pass_on(from_server, to_client))
        try:
            while data := await from_client.read(65_536):
                if self.losses and b"COMMIT" in data:
                    await self._lose(self.losses.popleft(), data, answers, to_client, to_server)
                    return
                to_server.write(data)
                await to_server.drain()
        except OSError:
            return
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            to_client.close()
            to_server.close()

    async def _lose(
        self,
        loss: Loss,
        commit: bytes,
        answers: asyncio.Task[None],
        to_client: asyncio.StreamWriter,
        to_server: asyncio.StreamWriter,
    ) -> None:
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        self.lost.append(loss)
        if loss == "unconfirmed":
            to_server.write(commit)
            await to_server.drain()
        to_client.transport.abort()
        if loss == "late":
            await self._released.wait()
            to_server.write(commit)
            await to_server.drain()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    # The server has closed the connection, so the client's end is closed as well.
    writer.close()
