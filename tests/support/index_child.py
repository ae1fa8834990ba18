"""Fetches the history of all subjects in a process that is killed at given instants.

Run as `python -m tests.support.index_child DATABASE NODE SETTLED POINT…`. Each point is the number of a write
transaction and where in it the process dies: `3:before` its commit, `3:after` it, or `3:middle`, with half of the
statements done of the third or the next one that writes transfers. One process is forked for each, so that Python
starts once. With the point `end` the last one runs to its end.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index.job import HistoryJob, Source
from capstan.index.ranges import RangeLimit
from capstan.index.sums import Sums
from capstan.storage.database import Database, DatabaseOptions
from tests.support.index_chain import NETWORK, Parts
from tests.support.index_node import registry_for, source_for, tools_for

# Few blocks at a time, so that there is much to interrupt.
_BLOCKS = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalDatabase(Database):
    """Dies in a given write transaction."""

    def __init__(self, url: str, point: str) -> None:
        super().__init__(DatabaseOptions(url=url))
        number, _, self._where = point.partition(":")
        self._at = int(number)
        self._count = 0

    @property
    def dies_in_the_middle(self) -> bool:
        return self._count >= self._at and self._where == "middle"

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        async with super().write() as connection:
            self._count += 1
            mine = self._count == self._at
            yield connection
            if mine and self._where == "before":
                die()
        if mine and self._where == "after":
            die()


async def run(url: str, node: str, settled: int, point: str) -> bool:
    database = MortalDatabase(url, point)
    parts = Parts(database)
    add = Sums.add

    async def mortal_add(self: Sums, *arguments: Any) -> None:
        if database.dies_in_the_middle:
            # The transfers are written, the sums over them are not.
            die()
        await add(self, *arguments)

    Sums.add = mortal_add  # type: ignore[method-assign, assignment]  # there is no other way into the middle of a transaction
    registry = registry_for(node)
    complete = True
    try:
        async with database.read() as connection:
            network = await parts.subjects.find_network(connection, NETWORK)
            assert network is not None
            waiting = await parts.subjects.incomplete(connection, network.id, 100)
        source = source_for(registry, parts, settled)
        source = Source(source.reader, RangeLimit(parts.clock, _BLOCKS), source.settled)
        for state in waiting:
            tools = tools_for(parts, f"process-{os.getpid()}", claim_seconds=0.0, width=2)
            complete = await HistoryJob(tools, source, state).run() and complete
    finally:
        await registry.close()
        await database.close()
    return complete


def main() -> None:
    url, node, settled, *points = sys.argv[1:]
    killed = 0
    ending = points[-1:] == ["end"]
    for point in points[:-1] if ending else points:
        child = os.fork()
        if child == 0:
            asyncio.run(run(url, node, int(settled), point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    complete = ending and asyncio.run(run(url, node, int(settled), "0:never"))
    print(f"{killed} killed, {'complete' if complete else 'not complete'}")


if __name__ == "__main__":
    main()
