"""The networks that are served, each with its pool of upstreams.

Made once by the composition root, asked by the server for the network in a path, and replaced as a whole when the
configuration is loaded again. A call that is under way keeps the pool it began with, so a reload drops nothing;
upstreams whose configuration stays the same keep their health.
"""

from collections.abc import Collection, Iterable

import aiohttp
import msgspec

from capstan.chain.models import NetworkSpec
from capstan.chain.pool import PooledUpstream, UpstreamPool
from capstan.chain.upstream import Upstream
from capstan.core.clock import Clock
from capstan.core.errors import NotFound
from capstan.core.redact import quoted


class Network(msgspec.Struct, frozen=True):
    """A network that can be called: what is known of it, and its upstreams."""

    spec: NetworkSpec
    pool: UpstreamPool

    @property
    def name(self) -> str:
        """`chain/network`."""
        return self.spec.name


class ChainRegistry:
    """Networks by chain and name. Owns the HTTP session of all upstreams."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._networks: dict[tuple[str, str], Network] = {}
        self._known: frozenset[tuple[str, str]] = frozenset()

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
        self._networks = networks
        self._known = frozenset(known)

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
        await self._session.close()

    def _pool_for(self, spec: NetworkSpec) -> UpstreamPool:
        if not spec.upstreams:
            raise ValueError(f"network {spec.name} has no upstream")
        previous = self._networks.get((spec.chain, spec.network))
        kept = {member.upstream.spec: member for member in previous.pool.members} if previous else {}
        members = []
        for upstream in spec.upstreams:
            member = kept.get(upstream) if previous and previous.spec.family == spec.family else None
            members.append(member or PooledUpstream(Upstream(upstream, spec.family, self._session), self._clock))
        return UpstreamPool(spec.name, members, deadline_seconds=spec.deadline_seconds, clock=self._clock)
