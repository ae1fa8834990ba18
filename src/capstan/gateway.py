"""Builds the RPC gateway from the settings: upstreams, heads, cache, filters, forwarder, service.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about calls. `apply` takes over reloaded settings without dropping a request.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from capstan.catalogue.units import UnitTable
from capstan.chain.filters import FilterRouter
from capstan.chain.follower.followers import Followers
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.source import HeadOptions
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.shared.models import ShareOptions
from capstan.chain.shared.network import SharedNetwork
from capstan.chain.shared.networks import SharedNetworks
from capstan.chain.upstream import open_session
from capstan.chain.view import NetworkHeads
from capstan.core.clock import Clock
from capstan.limits.redis import connect
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.cache.layered import LayeredTier
from capstan.rpc.cache.memory import MemoryLimits
from capstan.rpc.cache.models import HeadChange, NetworkOptions
from capstan.rpc.cache.persistent import PersistentLimits, PersistentTier
from capstan.rpc.cache.remote import RemoteLimits, RemoteTier
from capstan.rpc.cache.tiers import SecondTier
from capstan.rpc.forwarding import Forwarder
from capstan.rpc.integrity.guard import Guard
from capstan.rpc.integrity.metrics import IntegrityMetrics
from capstan.rpc.logs import LogReader
from capstan.rpc.models import Usage
from capstan.rpc.preparing import RpcLimits
from capstan.rpc.service import RpcService
from capstan.settings import Settings
from capstan.stream.metrics import DurableMetrics
from capstan.wiring import network_specs

_CACHE_FILE = "rpc-cache.db"
# Answers at the head are kept for two blocks at the most, when no news of the next head arrives.
_HEAD_BLOCKS = 2
# And never for so long that they could still be there when the network, of which nobody asks any more, is followed
# slowly: whoever asks then must not be told of an old head.
_HEAD_MOST_SECONDS = HeadOptions().idle_after / 2


class RedisClients(msgspec.Struct, frozen=True):
    """How the processes of a cluster share what they know of networks."""

    client: Any
    # For commands that wait for news.
    reading: Any
    command_seconds: float
    rest_seconds: float


class Gateway:
    """The parts of the RPC gateway, connected."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metrics: CollectorRegistry,
        cache: RpcCache,
        redis: RedisClients | None = None,
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._views: dict[str, NetworkHeads] = {}
        self._followed: dict[str, HeadTracker] = {}
        self.registry = ChainRegistry(open_session(), clock, metrics=metrics)
        self.heads = LatestHeads(clock, registry=metrics)
        self.shared: SharedNetworks | None = None
        if redis is not None:
            options = ShareOptions(command_seconds=redis.command_seconds, rest_seconds=redis.rest_seconds)
            self.shared = SharedNetworks(
                redis.client, redis.reading, self.heads, clock, registry=metrics, options=options
            )
        # Of all streams that are carried into the database, whoever carries them.
        self.stream_metrics = DurableMetrics(metrics)
        self.followers = Followers(self.heads, clock, registry=metrics, shared=self._shared)
        self.guard = Guard(clock, view=self.view, metrics=IntegrityMetrics(metrics))
        self.apply(settings)

    @classmethod
    async def open(
        cls, settings: Settings, clock: Clock, metrics: CollectorRegistry, stack: AsyncExitStack
    ) -> "Gateway":
        """Build and start the parts; the stack stops them in the reverse order."""
        tier = await _open_tier(settings, clock, metrics, stack)
        cache = RpcCache(clock, limits=MemoryLimits(max_bytes=settings.cache.memory_bytes), tier=tier)
        stack.push_async_callback(cache.close)
        redis = await _open_redis(settings, stack)
        gateway = cls(settings, clock, metrics, cache, redis)
        stack.push_async_callback(gateway.guard.close)
        stack.push_async_callback(gateway.registry.close)
        stack.push_async_callback(gateway.heads.close)
        if gateway.shared is not None:
            stack.push_async_callback(gateway.shared.close)
        stack.push_async_callback(gateway.followers.close)
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
            guard=self.guard,
        )
        return RpcService(
            cost=lambda method, archive: units().cost(method, archive=archive),
            head=lambda network: self.view(network).latest_number,
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
        if self.shared is not None:
            self.shared.sync(networks)
        self.followers.sync(networks)
        self._views.clear()
        for network in networks:
            self._configure(network)
            self._follow(network.name, self.heads.tracker(network.name))

    def _shared(self, name: str) -> SharedNetwork | None:
        return None if self.shared is None else self.shared.find(name)

    def _configure(self, network: Network) -> None:
        spec = network.spec
        # A development chain makes blocks on command: what it said of its head may be old the moment it was said.
        head_seconds = 0.0 if spec.dev_methods else min(_HEAD_BLOCKS * spec.block_time_ms / 1000, _HEAD_MOST_SECONDS)
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
            if change.restarted:
                self.guard.forget(name)

        tracker.subscribe(changed, keep_awake=False)


async def _open_redis(settings: Settings, stack: AsyncExitStack) -> RedisClients | None:
    chosen = settings.redis
    if not chosen.url:
        return None
    command_seconds = chosen.command_timeout_seconds
    clients = [
        connect(
            chosen.url, cluster=chosen.cluster, connect_timeout=chosen.connect_timeout_seconds, command_timeout=seconds
        )
        # The second one waits for news; its own time limit is the longer one.
        for seconds in (command_seconds, ShareOptions().read_seconds + command_seconds + 1.0)
    ]
    for client in clients:
        stack.push_async_callback(client.aclose)
        if chosen.cluster:
            # The client of a cluster finds out first where everything is; not while many networks wait for that.
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(chosen.connect_timeout_seconds):
                    await client.initialize()
    return RedisClients(clients[0], clients[1], command_seconds, chosen.retry_seconds)


async def _open_tier(
    settings: Settings, clock: Clock, metrics: CollectorRegistry, stack: AsyncExitStack
) -> SecondTier | None:
    """Where final answers are kept outside of memory: in a file, in Redis, in both, or nowhere."""
    disk: PersistentTier | None = None
    if settings.cache.disk_bytes and not settings.development:
        disk = PersistentTier(settings.data_path / _CACHE_FILE, PersistentLimits(max_bytes=settings.cache.disk_bytes))
        await disk.open()
    if not settings.redis.url or not settings.cache.redis_seconds:
        return disk
    client = connect(
        settings.redis.url,
        cluster=settings.redis.cluster,
        connect_timeout=settings.redis.connect_timeout_seconds,
        command_timeout=settings.redis.command_timeout_seconds,
    )
    stack.push_async_callback(client.aclose)
    limits = RemoteLimits(
        max_value_bytes=settings.cache.redis_value_bytes,
        expire_seconds=settings.cache.redis_seconds,
        rest_seconds=settings.redis.retry_seconds,
    )
    shared = RemoteTier(client, clock, limits=limits, registry=metrics)
    return shared if disk is None else LayeredTier(disk, shared)
