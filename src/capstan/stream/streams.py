"""The durable streams of all networks: one for each network that has consumers.

Made by the composition root, which calls `sync` after every change of the configuration and says who the consumers are.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from capstan.chain.follower.follower import Follower
from capstan.chain.follower.followers import Followers
from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.stream.durable import DurableOptions, DurableStream
from capstan.stream.lease import LeaseStore
from capstan.stream.metrics import DurableMetrics
from capstan.stream.models import DurableConsumer

ConsumersOf = Callable[[str], Sequence[DurableConsumer]]


class DurableStreams:
    """Durable streams by network. All methods must be called with the event loop running."""

    def __init__(
        self,
        followers: Followers,
        database: Database,
        leases: LeaseStore,
        consumers_of: ConsumersOf,
        clock: Clock,
        *,
        options_of: Callable[[str], DurableOptions] = lambda _network: DurableOptions(),
        metrics: DurableMetrics | None = None,
    ) -> None:
        self._followers = followers
        self._database = database
        self._leases = leases
        self._consumers_of = consumers_of
        self._options_of = options_of
        self._clock = clock
        self._metrics = metrics or DurableMetrics()
        self._streams: dict[str, tuple[Follower, DurableStream]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def halted(self) -> dict[str, str]:
        """The networks that are stopped, and why."""
        return {name: stream.halted for name, (_, stream) in self._streams.items() if stream.halted is not None}

    def find(self, network: str) -> DurableStream | None:
        """The stream of the network `chain/network`, if it has one."""
        found = self._streams.get(network)
        return None if found is None else found[1]

    def sync(self, networks: Iterable[str]) -> None:
        """Carry exactly these networks from now on, as far as they have a follower and consumers."""
        wanted = set(networks)
        for name, (followed, _) in list(self._streams.items()):
            if name not in wanted or self._followers.find(name) is not followed:
                self._drop(name)
        for name in wanted - self._streams.keys():
            follower = self._followers.find(name)
            consumers = self._consumers_of(name) if follower is not None else ()
            if follower is None or not consumers:
                continue
            stream = DurableStream(
                follower,
                self._database,
                self._leases,
                consumers,
                self._clock,
                options=self._options_of(name),
                metrics=self._metrics,
            )
            stream.start()
            self._streams[name] = (follower, stream)

    async def close(self) -> None:
        """Stop all of them; other processes may lead at once."""
        for name in list(self._streams):
            self._drop(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _drop(self, name: str) -> None:
        _, stream = self._streams.pop(name)
        task = asyncio.create_task(stream.close(), name=f"end of the durable stream of {name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
