"""The networks that this process shares with others over Redis.

Made by the composition root where a Redis address is configured; it calls `sync` after every change of the
configuration, once the heads were synced. Only EVM networks are shared.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry

from capstan.chain.heads.latest import LatestHeads
from capstan.chain.registry import Network
from capstan.chain.shared.metrics import ShareMetrics
from capstan.chain.shared.models import ShareOptions
from capstan.chain.shared.network import SharedNetwork
from capstan.chain.shared.store import SharedStore, group_of
from capstan.core.clock import Clock
from capstan.core.ids import new_id


class SharedNetworks:
    """Shared networks by name. `client` and `reading` are asyncio clients of Redis; they are not closed here."""

    def __init__(
        self,
        client: Any,
        reading: Any,
        heads: LatestHeads,
        clock: Clock,
        *,
        registry: CollectorRegistry | None = None,
        options: ShareOptions | None = None,
    ) -> None:
        self._client = client
        self._reading = reading
        self._heads = heads
        self._clock = clock
        self._options = options or ShareOptions()
        self._metrics = ShareMetrics(registry)
        self._holder = new_id("proc")
        self._networks: dict[str, tuple[str, SharedNetwork]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def find(self, name: str) -> SharedNetwork | None:
        """The shared side of the network `chain/network`, if it has one."""
        found = self._networks.get(name)
        return None if found is None else found[1]

    def sync(self, networks: Iterable[Network]) -> None:
        """Share exactly these networks from now on. To be called after the heads were synced with the same."""
        wanted = {network.name: network for network in networks if network.spec.family == "evm"}
        for name, (group, shared) in list(self._networks.items()):
            network = wanted.get(name)
            if network is None or group_of(network.spec) != group or self._heads.tracker(name) is not shared.tracker:
                self._drop(name)
        for name, network in wanted.items():
            if name not in self._networks:
                store = SharedStore(self._client, self._reading, network.spec, self._holder, self._options)
                tracker = self._heads.tracker(name)
                shared = SharedNetwork(tracker, store, self._clock, self._options, self._metrics)
                shared.start()
                self._networks[name] = (group_of(network.spec), shared)

    async def close(self) -> None:
        """Stop; other processes may lead at once."""
        for name in list(self._networks):
            self._drop(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _drop(self, name: str) -> None:
        _, shared = self._networks.pop(name)
        task = asyncio.create_task(shared.close(), name=f"end of sharing {name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
