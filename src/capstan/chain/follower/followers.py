"""The streams of all networks: one follower for each EVM network.

Made by the composition root, which calls `sync` after every change of the configuration. A follower of a network that
stays is not disturbed; its consumers keep what they have. It must not talk to upstreams itself.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry

from capstan.chain.follower.follower import Follower, FollowerOptions
from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.follower.pending import PendingOptions, PendingTransactions
from capstan.chain.follower.pending import Sharing as SharedPending
from capstan.chain.follower.reader import BlockReader, ReaderOptions
from capstan.chain.follower.reader import Sharing as SharedBlocks
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.pool import UpstreamPool
from capstan.chain.registry import Network
from capstan.core.clock import Clock


class Shared(Protocol):
    """What several processes share of one network."""

    @property
    def blocks(self) -> SharedBlocks:
        """Its recent blocks."""
        ...

    def pending(self, mempool: PendingTransactions) -> SharedPending:
        """Its pending transactions."""
        ...


class _Source:
    """What a follower reads from; exchanged when the configuration is loaded again."""

    def __init__(self, network: Network, tracker: HeadTracker) -> None:
        self.network = network
        self.tracker = tracker

    def pool(self) -> UpstreamPool:
        """The upstreams of the network as they are configured now."""
        return self.network.pool


class Followers:
    """Followers by network. All methods must be called with the event loop running."""

    def __init__(
        self,
        heads: LatestHeads,
        clock: Clock,
        *,
        registry: CollectorRegistry | None = None,
        options: FollowerOptions | None = None,
        reading: ReaderOptions | None = None,
        pending: PendingOptions | None = None,
        shared: Callable[[str], Shared | None] = lambda _network: None,
    ) -> None:
        self._heads = heads
        self._shared = shared
        self._clock = clock
        self._metrics = StreamMetrics(registry)
        self._options = options
        self._reading = reading
        self._pending = pending
        self._followers: dict[str, Follower] = {}
        self._sources: dict[str, _Source] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def get(self, name: str) -> Follower:
        """The follower of the network `chain/network`. Raises `KeyError` when it has none."""
        return self._followers[name]

    def find(self, name: str) -> Follower | None:
        """The same, or None: not served, or not an EVM network."""
        return self._followers.get(name)

    @property
    def halted(self) -> dict[str, str]:
        """The networks that are stopped, or something of them, and why; also those that nobody has subscribed to."""
        found = {name: follower.condition.halts for name, follower in self._followers.items()}
        return {name: "; ".join(dict.fromkeys(halts.values())) for name, halts in found.items() if halts}

    def sync(self, networks: Iterable[Network]) -> None:
        """Follow exactly these networks from now on. To be called after the heads were synced with the same."""
        if self._closed:
            return
        wanted = {network.name: network for network in networks if network.spec.family == "evm"}
        for name in [name for name in self._followers if name not in wanted]:
            self._drop(name)
        for name, network in wanted.items():
            tracker = self._heads.tracker(name)
            source = self._sources.get(name)
            if source is not None and source.tracker is tracker:
                source.network = network
                continue
            if source is not None:
                self._drop(name)
            self._sources[name] = source = _Source(network, tracker)
            self._followers[name] = self._build(source)

    async def close(self) -> None:
        """Stop all followers."""
        self._closed = True
        for name in list(self._followers):
            self._drop(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _build(self, source: _Source) -> Follower:
        name = source.network.name

        pending = PendingTransactions(name, source.pool, self._pending)

        # Both are asked each time: sharing begins anew when the upstreams of a network are changed.
        def shared_blocks() -> SharedBlocks | None:
            shared = self._shared(name)
            return None if shared is None else shared.blocks

        def shared_pending() -> SharedPending | None:
            shared = self._shared(name)
            return None if shared is None else shared.pending(pending)

        pending.sharing = shared_pending
        return Follower(
            source.tracker,
            BlockReader(name, source.pool, self._clock, self._metrics, self._reading, sharing=shared_blocks),
            pending,
            self._clock,
            self._metrics,
            self._options,
        )

    def _drop(self, name: str) -> None:
        del self._sources[name]
        task = asyncio.create_task(self._followers.pop(name).close(), name=f"end of the stream of {name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
