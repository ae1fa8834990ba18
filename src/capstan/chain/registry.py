"""The networks that are served, each with its pool of upstreams.

Made once by the composition root, asked by the server for the network in a path, and replaced as a whole when the
configuration is loaded again. A call that is under way keeps the pool it began with, so a reload drops nothing;
upstreams whose configuration stays the same keep their health.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from random import Random

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry

from capstan.chain.clients import client_for, is_websocket
from capstan.chain.metrics import UpstreamCollector
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.pool import PooledUpstream, UpstreamPool
from capstan.chain.topics import Topics
from capstan.chain.websocket import WebSocketUpstream
from capstan.core.clock import Clock
from capstan.core.errors import NotFound
from capstan.core.redact import quoted

_LAG_BLOCKS = 3
_LAG_SECONDS = 4.0


class Network(msgspec.Struct, frozen=True):
    """A network that can be called: what is known of it, and its upstreams."""

    spec: NetworkSpec
    pool: UpstreamPool
    # Where subscriptions are made that only a node can answer; None where there is no such upstream.
    topics: Topics | None = None
    # `chain/network`. Put together once, since every request needs it several times.
    name: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", self.spec.name)


class ChainRegistry:
    """Networks by chain and name. Owns the HTTP session of all upstreams."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        *,
        random: Random | None = None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        self._session = session
        self._clock = clock
        self._random = random or Random()
        self._networks: dict[tuple[str, str], Network] = {}
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._topics: dict[str, Topics] = {}
        if metrics is not None:
            metrics.register(UpstreamCollector(lambda: [network.pool for network in self.networks()]))

    def replace(self, specs: Iterable[NetworkSpec], *, known: Collection[tuple[str, str]] = ()) -> None:
        """Serve exactly these networks from now on. `known` are all of the catalogue, served or not.

        Raises `ValueError`, and changes nothing, when a network has no upstream or is named twice.
        """
        networks: dict[tuple[str, str], Network] = {}
        for spec in specs:
            key = (spec.chain, spec.network)
            if key in networks:
                raise ValueError(f"network {spec.name} is configured twice")
            networks[key] = Network(spec, self._pool_for(spec))
        kept = {member for network in networks.values() for member in network.pool.members}
        dropped = [member for network in self.networks() for member in network.pool.members if member not in kept]
        self._networks = {key: self._with_topics(network) for key, network in networks.items()}
        self._known = frozenset(known)
        for member in dropped:
            member.upstream.retire()
        served = {network.name for network in self.networks() if network.topics is not None}
        for name in self._topics.keys() - served:
            self._topics.pop(name).retire()

    def get(self, chain: str, network: str) -> Network:
        """The network, or the 404 that names what is missing."""
        found = self._networks.get((chain, network))
        if found is not None:
            return found
        name = quoted(f"{chain}/{network}")
        if (chain, network) in self._known:
            raise NotFound(f"Network {name} is known but not configured here: it has no upstream.")
        served = {pair[0] for pair in self._known | self._networks.keys()}
        what = "Unknown network" if chain in served else "Unknown chain"
        raise NotFound(f"{what}: {name}.")

    def find(self, chain: str, network: str) -> Network | None:
        """The network, or None when it is not served."""
        return self._networks.get((chain, network))

    def networks(self) -> tuple[Network, ...]:
        """Everything that is served now."""
        return tuple(self._networks.values())

    async def close(self) -> None:
        """Close all connections. Calls still under way fail as unreachable."""
        for network in self._networks.values():
            await network.pool.close()
            for member in network.pool.members:
                await member.upstream.close()
            if network.topics is not None:
                await network.topics.close()
        await self._session.close()

    def _pool_for(self, spec: NetworkSpec) -> UpstreamPool:
        if not _callable(spec):
            raise ValueError(f"network {spec.name} has no upstream")
        previous = self._networks.get((spec.chain, spec.network))
        kept = {member.upstream.spec: member for member in previous.pool.members} if previous else {}
        members = []
        for upstream in _distinct(_callable(spec)):
            member = kept.get(upstream) if previous and previous.spec.family == spec.family else None
            members.append(member or self._member(upstream, spec))
        return UpstreamPool(
            spec.name,
            members,
            deadline_seconds=spec.deadline_seconds,
            clock=self._clock,
            max_lag=_max_lag(spec),
            broadcast=spec.broadcast,
            hedge_share=spec.hedge_share,
            random=self._random,
        )

    def _with_topics(self, network: Network) -> Network:
        """The network with its topics, which outlast a reload as long as it has an upstream for them."""
        spec = network.spec
        wanted = [upstream for upstream in _distinct(spec.upstreams) if _only_subscribes(upstream, spec)]
        if not wanted:
            return network
        topics = self._topics.setdefault(spec.name, Topics(spec.name))
        known = {upstream.spec: upstream for upstream in topics.upstreams}
        topics.use([known.get(one) or WebSocketUpstream(one, spec.family, self._session) for one in wanted])
        return msgspec.structs.replace(network, topics=topics)

    def _member(self, upstream: UpstreamSpec, spec: NetworkSpec) -> PooledUpstream:
        client = client_for(upstream, spec.family, self._session)
        return PooledUpstream(client, self._clock, network=spec.name, random=self._random)


def _only_subscribes(upstream: UpstreamSpec, spec: NetworkSpec) -> bool:
    """Whether an upstream answers subscriptions and nothing else, as the WebSocket of a Solana node does."""
    return spec.family == "solana" and is_websocket(upstream)


def _callable(spec: NetworkSpec) -> list[UpstreamSpec]:
    return [upstream for upstream in spec.upstreams if not _only_subscribes(upstream, spec)]


def _max_lag(spec: NetworkSpec) -> int:
    """The blocks an upstream may be behind the others: a few, or on a fast chain those of a few seconds."""
    return max(_LAG_BLOCKS, math.ceil(_LAG_SECONDS * 1000 / max(1, spec.block_time_ms)))


def _distinct(specs: Sequence[UpstreamSpec]) -> list[UpstreamSpec]:
    """The same, with a number added to names that occur more than once: metrics and explanations go by name."""
    seen: set[str] = set()
    result = []
    for spec in specs:
        name, number = spec.name, 2
        while name in seen:
            name, number = f"{spec.name}-{number}", number + 1
        seen.add(name)
        result.append(spec if name == spec.name else msgspec.structs.replace(spec, name=name))
    return result
