"""Builds the RPC gateway from the settings: upstreams, heads, cache, filters, forwarder, service.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about calls. `apply` takes over reloaded settings without dropping a request.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from capstan.catalogue.units import UnitTable
from capstan.chain.filters import FilterRouter
from capstan.chain.heads import LatestHeads
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.tracker import HeadTracker
from capstan.chain.upstream import open_session
from capstan.chain.view import NetworkHeads
from capstan.core.clock import Clock
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.cache.memory import MemoryLimits
from capstan.rpc.cache.models import HeadChange, NetworkOptions
from capstan.rpc.cache.persistent import PersistentLimits, PersistentTier
from capstan.rpc.forwarding import Forwarder
from capstan.rpc.logs import LogReader
from capstan.rpc.models import Usage
from capstan.rpc.service import RpcLimits, RpcService
from capstan.settings import Settings
from capstan.wiring import network_specs

_CACHE_FILE = "rpc-cache.db"
# Answers at the head are kept for two blocks at the most, when no news of the next head arrives.
_HEAD_BLOCKS = 2


class Gateway:
    """The parts of the RPC gateway, connected."""

    def __init__(self, settings: Settings, clock: Clock, metrics: CollectorRegistry, cache: RpcCache) -> None:
        self._clock = clock
        self._cache = cache
        self._views: dict[str, NetworkHeads] = {}
        self._followed: dict[str, HeadTracker] = {}
        self.registry = ChainRegistry(open_session(), clock, metrics=metrics)
        self.heads = LatestHeads(clock, registry=metrics)
        self.apply(settings)

    @classmethod
    async def open(
        cls, settings: Settings, clock: Clock, metrics: CollectorRegistry, stack: AsyncExitStack
    ) -> "Gateway":
        """Build and start the parts; the stack stops them in the reverse order."""
        tier: PersistentTier | None = None
        if settings.cache.disk_bytes and not settings.development:
            path = settings.data_path / _CACHE_FILE
            tier = PersistentTier(path, PersistentLimits(max_bytes=settings.cache.disk_bytes))
            await tier.open()
        cache = RpcCache(clock, limits=MemoryLimits(max_bytes=settings.cache.memory_bytes), tier=tier)
        stack.push_async_callback(cache.close)
        gateway = cls(settings, clock, metrics, cache)
        stack.push_async_callback(gateway.registry.close)
        stack.push_async_callback(gateway.heads.close)
        return gateway

    def service(
        self,
        settings: Settings,
        *,
        units: Callable[[], UnitTable],
        archive_depth: Callable[[], int],
        usage: Usage,
    ) -> RpcService:
        """The service on these parts."""
        forwarder = Forwarder(
            self._cache,
            LogReader(self._cache, self._clock),
            FilterRouter(self._clock),
            self._clock,
            heads=self.view,
        )
        return RpcService(
            cost=lambda method, archive: units().cost(method, archive=archive),
            head=self.heads.head,
            clock=self._clock,
            forwarder=forwarder,
            usage=usage,
            archive_depth=archive_depth,
            limits=RpcLimits(
                max_body_bytes=settings.server.body_limit_bytes, max_batch_items=settings.server.batch_limit
            ),
        )

    def view(self, network: Network) -> NetworkHeads:
        """The followed head of a network."""
        view = self._views.get(network.name)
        if view is None:
            view = self._views[network.name] = NetworkHeads(self.heads, network, self._clock)
        return view

    def apply(self, settings: Settings) -> None:
        """Serve the networks of these settings from now on."""
        self.registry.replace(network_specs(settings))
        networks = self.registry.networks()
        self.heads.sync(networks)
        self._views.clear()
        for network in networks:
            self._configure(network)
            self._follow(network.name, self.heads.tracker(network.name))

    def _configure(self, network: Network) -> None:
        spec = network.spec
        # A development chain makes blocks on command: what it said of its head may be old the moment it was said.
        head_seconds = 0.0 if spec.dev_methods else _HEAD_BLOCKS * spec.block_time_ms / 1000
        moment_seconds = 0.0 if spec.dev_methods else min(1.0, spec.block_time_ms / 1000)
        self._cache.configure(
            network.name,
            NetworkOptions(head_seconds=head_seconds, moment_seconds=moment_seconds, persist=not spec.dev_methods),
        )

    def _follow(self, name: str, tracker: HeadTracker) -> None:
        """Tell the cache of every change of the chain."""
        if self._followed.get(name) is tracker:
            return
        self._followed[name] = tracker

        def changed(change: HeadChange) -> None:
            self._cache.apply(name, change)

        tracker.subscribe(changed, keep_awake=False)
