"""The service as bench/feed.py measures it: everything real but the chain, whose blocks are made on command.

Run as a process of its own. It prints its port, then obeys the lines on its standard input as
`bench.peers.broadcast` does. The data directory is its argument.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from bench.peers.broadcast import obey
from bench.peers.feed_messages import address_of, header, raw_log
from capstan.app import Application
from capstan.chain.follower.models import Applied, Block, Delta, Demand, Log
from capstan.logs import configure_logs
from capstan.settings import LiveSettings

LOG_CLIENTS = 500


class CommandedStream:
    """A stream whose blocks come on command."""

    halted = None
    pending = None

    def __init__(self) -> None:
        self.head: Block | None = None
        self._consumers: dict[object, tuple[Callable[[Delta], None], Demand]] = {}

    def subscribe(self, consumer: Callable[[Delta], None], demand: Demand) -> Callable[[], None]:
        key = object()
        self._consumers[key] = (consumer, demand)
        return lambda: (self._consumers.pop(key, None), None)[1]

    async def replay(self, *_: Any, pace: Callable[[], Awaitable[None]] | None = None) -> Callable[[], None]:
        raise NotImplementedError("bench/feed.py replays nothing")

    def mine(self, number: int) -> None:
        """Tell one block; with a log for each log client when somebody wants logs."""
        wanted = any(demand is Demand.LOGS for _, demand in self._consumers.values())
        logs = [
            Log(address_of(index), (f"0x{7:064x}",), index, "0x", raw_log(number, index, address_of(index)))
            for index in range(LOG_CLIENTS if wanted else 0)
        ]
        self.head = Block(number, f"0x{number:064x}", "0x", number, header(number), None, None, tuple(logs))
        for consumer, _ in tuple(self._consumers.values()):
            consumer(Applied(self.head))


async def main() -> None:
    """Serve until told to quit."""
    overrides = {
        "data_dir": sys.argv[1],
        "server": {"port": 0, "max_connections": 50_000, "header_timeout_seconds": 120},
        # The clients of the benchmark do not answer pings.
        "feed": {"ping_seconds": 3600},
        "log": {"access": False, "level": "warning"},
        "networks": {"ethereum/sepolia": {"upstreams": ["http://127.0.0.1:9"]}},
    }
    configure_logs("error", "json")
    live = LiveSettings(overrides=overrides)
    stream = CommandedStream()
    stop = asyncio.Event()
    async with Application.open(live) as application:
        # The one thing that is not real: no follower.
        application._feed._stream_of = lambda _name: stream  # type: ignore[assignment,return-value] # see the class

        async def command() -> None:
            print(application.port, flush=True)
            await obey(stream.mine)
            stop.set()

        task: asyncio.Task[None] | None = None

        async def started() -> None:
            nonlocal task
            task = asyncio.create_task(command())

        await application.run(on_started=started, stop=stop)


if __name__ == "__main__":
    uvloop.run(main())
