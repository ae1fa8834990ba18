"""The heads of all networks: one tracker for each.

Made by the composition root. Asked on the hot path by the RPC gateway (is this read an archive read?) and by the gas
prices (is there a newer block?): an answer comes at once, from memory. `sync` follows the configuration; without it, a
tracker starts when its network is first asked about. It must not talk to upstreams itself.
"""

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from capstan.chain.heads.metrics import HeadMetrics, Reorgs
from capstan.chain.heads.source import HeadOptions
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.registry import Network
from capstan.core.clock import Clock


class LatestHeads:
    """Head trackers by network. All methods must be called with the event loop running."""

    def __init__(
        self, clock: Clock, *, options: HeadOptions | None = None, registry: CollectorRegistry | None = None
    ) -> None:
        self._clock = clock
        self._options = options or HeadOptions()
        self._metrics = HeadMetrics(registry)
        self._trackers: dict[str, HeadTracker] = {}
        self._networks: dict[str, Network] = {}
        self._synced = False
        self._closed = False
        self._ending: set[asyncio.Task[None]] = set()

    def head(self, network: Network) -> int | None:
        """The announced block (slot on Solana), or None before the first answer."""
        tracker = self._trackers.get(network.name)
        if tracker is None or self._networks[network.name] is not network:
            tracker = self._adopt(network, tracker)
            if tracker is None:
                return None
        tracker.touch()
        return tracker.number

    def tracker(self, name: str) -> HeadTracker:
        """The tracker of the network `chain/network`. Raises `KeyError` when that is not followed."""
        return self._trackers[name]

    def reorgs(self, name: str) -> Reorgs:
        """The reorganisations of a network that this process has seen."""
        return self._metrics.seen_reorgs(name)

    def sync(self, networks: Iterable[Network]) -> None:
        """Follow exactly these networks from now on. To be called after every change of the configuration."""
        if self._closed:
            return
        self._synced = True
        wanted = {network.name: network for network in networks}
        for name in [name for name in self._trackers if name not in wanted]:
            self._drop(name)
        for network in wanted.values():
            self._follow(network)

    async def renew(self, network: Network) -> None:
        """Ask every upstream of the network now. On failure the head known before stays."""
        self.head(network)
        tracker = self._trackers.get(network.name)
        if tracker is not None:
            await tracker.poll()

    async def close(self) -> None:
        """Stop all trackers."""
        self._closed = True
        for name in list(self._trackers):
            self._drop(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _adopt(self, network: Network, tracker: HeadTracker | None) -> HeadTracker | None:
        """The tracker for a network that is new here, or that has been configured anew."""
        if self._closed or self._synced:
            # `sync` alone decides then: a call that began before a reload must not bring the old upstreams back.
            return tracker
        return self._follow(network)

    def _follow(self, network: Network) -> HeadTracker:
        tracker = self._trackers.get(network.name)
        if tracker is not None and tracker.spec.family != network.spec.family:
            self._drop(network.name)
            tracker = None
        if tracker is None:
            tracker = HeadTracker(
                network.spec, network.pool.members, self._clock, options=self._options, metrics=self._metrics
            )
            tracker.start()
            self._trackers[network.name] = tracker
        elif self._networks[network.name] is not network:
            tracker.update(network.spec, network.pool.members)
        self._networks[network.name] = network
        return tracker

    def _drop(self, name: str) -> None:
        self._networks.pop(name, None)
        for task in self._trackers.pop(name).stop_soon():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
