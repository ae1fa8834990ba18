"""Builds what follows the chain in the background: the durable stream of each network, and the transfer index on it.

Called by the composition root, of which it is a part: it names concrete classes and connects them. `apply` takes over
reloaded settings; a network that stays is not disturbed.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
from prometheus_client import CollectorRegistry

from capstan.chain.follower.follower import Follower
from capstan.chain.models import NetworkSpec
from capstan.core.clock import Clock
from capstan.core.hexes import parse_address
from capstan.core.ids import new_id
from capstan.gateway import Gateway
from capstan.index.backfill import Backfill
from capstan.index.consumer import IndexConsumer, MetadataListener
from capstan.index.history import HistoryReader
from capstan.index.job import JobOptions, JobTools, Source
from capstan.index.metrics import IndexMetrics
from capstan.index.ranges import RangeLimit
from capstan.index.service import IndexedNetwork, Mode, TransferIndex
from capstan.index.store import IndexStore
from capstan.index.subjects import Subjects
from capstan.index.writer import TransferWriter
from capstan.settings import NetworkSettings, Settings
from capstan.storage.database import Database
from capstan.stream.durable import DurableOptions, DurableStream
from capstan.stream.lease import LeaseStore
from capstan.stream.wanted import WantedStreams

log = structlog.get_logger(__name__)

_ROLE = DurableOptions().role


class Background:
    """The durable streams and the transfer index."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        metrics: CollectorRegistry,
        *,
        wanted: WantedStreams,
        listener: MetadataListener | None = None,
    ) -> None:
        process = new_id("proc")
        self._database = database
        self._gateway = gateway
        self._clock = clock
        self._listener = listener
        self._wanted = wanted
        self._leases = LeaseStore(database, process, clock)
        self._metrics = IndexMetrics(metrics)
        self._stream_metrics = gateway.stream_metrics
        self._subjects = Subjects(clock, sqlite_dialect=database.is_sqlite)
        self._writer = TransferWriter(sqlite=database.is_sqlite)
        self._networks: dict[str, IndexedNetwork] = {}
        self._wrapped: dict[str, frozenset[bytes]] = {}
        self._streams: dict[str, tuple[Follower, DurableStream]] = {}
        self._closed = False
        options = JobOptions(width=settings.index.calls)
        tools = JobTools(database, self._subjects, self._writer, self._metrics, clock, process, options)
        self._backfill = Backfill(
            tools, lambda: [network.source for network in self._networks.values()], most_jobs=settings.index.jobs
        )
        self.index = TransferIndex(
            database,
            self._subjects,
            IndexStore(database, self._subjects),
            self._backfill,
            lambda: self._networks,
            clock,
            wait_seconds=settings.index.wait_seconds,
            most_subjects=settings.index.most_subjects,
            needed=lambda network: wanted.want_soon(network, _ROLE),
        )

    @classmethod
    async def open(
        cls,
        settings: Settings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        metrics: CollectorRegistry,
        stack: AsyncExitStack,
        *,
        wanted: WantedStreams,
        listener: MetadataListener | None = None,
    ) -> "Background":
        """Build and start; the stack stops it. `listener` is told of changed metadata.

        In a process that does not follow chains, only the history is fetched for which a question waits.
        """
        background = cls(settings, database, gateway, clock, metrics, wanted=wanted, listener=listener)
        stack.push_async_callback(background.close)
        wanted.register(_ROLE, background._follow)
        await background.apply(settings)
        if wanted.follows:
            background._backfill.start()
        return background

    async def apply(self, settings: Settings) -> None:
        """Follow the networks of these settings from now on. To be called after the gateway has taken them over."""
        wanted = {
            name: network
            for name, network in settings.served.items()
            if network.family == "evm" and network.index != "off" and self._gateway.followers.find(name) is not None
        }
        self._wrapped = {name: _wrapped(network) for name, network in wanted.items()}
        self._networks = {name: self._network(name, network) for name, network in wanted.items()}
        for name, (follower, stream) in list(self._streams.items()):
            if name not in wanted or self._gateway.followers.find(name) is not follower:
                del self._streams[name]
                await stream.close()
        await self.index.prepare()

    async def close(self) -> None:
        """Stop following."""
        self._closed = True
        await self._backfill.close()
        for _, stream in self._streams.values():
            await stream.close()

    def _network(self, name: str, network: NetworkSettings) -> IndexedNetwork:
        known = self._networks.get(name)
        limit = known.source.limit if known is not None else RangeLimit(self._clock)
        reader = HistoryReader(
            name,
            lambda: self._gateway.registry.get(*name.split("/")).pool,
            self._metrics,
            wrapped=self._wrapped[name],
        )
        spec = self._gateway.registry.get(*name.split("/")).spec
        mode: Mode = "full" if network.index == "full" else "on_demand"
        if network.index == "auto" and spec.dev_methods:
            mode = "full"
        return IndexedNetwork(Source(reader, limit, self._settled(spec)), mode, network.index_from_block)

    def _settled(self, spec: NetworkSpec) -> Callable[[], int | None]:
        def settled() -> int | None:
            try:
                tracker = self._gateway.heads.tracker(spec.name)
            except KeyError:
                return None
            if not spec.dev_methods:
                return tracker.finalized_number
            # A development chain calls its head final and takes it back all the same.
            return None if tracker.number is None else tracker.number - (spec.finality_depth or 0)

        return settled

    def _follow(self, name: str, _first: int | None) -> None:
        """Run the stream of a network. Of one that nobody ever asked about, no block is fetched."""
        follower = self._gateway.followers.find(name)
        if name in self._streams or name not in self._networks or follower is None or self._closed:
            return
        consumer = IndexConsumer(
            name, self._subjects, self._writer, self._metrics, wrapped=self._wrapped[name], listener=self._listener
        )
        stream = DurableStream(
            follower, self._database, self._leases, [consumer], self._clock, metrics=self._stream_metrics
        )
        stream.start()
        self._streams[name] = (follower, stream)


def _wrapped(network: NetworkSettings) -> frozenset[bytes]:
    return frozenset({parse_address(network.wrapped_native)} if network.wrapped_native else ())
