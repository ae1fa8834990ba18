"""How a read is treated on a network: its price, its scope, and where its answers are kept; found out once.

Kept by the RPC service, so that a call of a known method costs one look-up for all of it. Everything here follows from
the network and the prices as they were configured; both are new objects after the settings were loaded again, and so
are the treatments. Only reads have one, of which there are as many as the tables have methods: names that a caller
makes up are never remembered.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from capstan.chain.filters import FILTER_METHODS
from capstan.chain.registry import Network
from capstan.rpc.cache.gateway import Topic
from capstan.rpc.cache.models import HeadView
from capstan.rpc.methods import STATE_READS, Kind, look_up
from capstan.rpc.models import Cost

# Answered from the followed head.
TELLS_HEAD: Final = "eth_blockNumber"
# Reads whose answer is never in memory as one piece.
_NOT_FROM_MEMORY: Final = frozenset({"eth_getLogs", *FILTER_METHODS})


class Treatment(msgspec.Struct, frozen=True):
    """What is the same for every call of one method on one network."""

    method: str
    scope: str
    units: int
    archive_units: int
    # Whether it reads the state at a block, which may be an old one.
    reads_state: bool
    # Whether its answer may be in memory, or come from an upstream as it is.
    plain: bool
    # Whether its answer is the head itself.
    tells_head: bool
    topic: Topic
    heads: HeadView


class Treatments:
    """The treatments of all networks that are served."""

    def __init__(
        self, cost: Cost, topic: Callable[[Network, str], Topic], heads: Callable[[Network], HeadView]
    ) -> None:
        self._cost = cost
        self._topic = topic
        self._heads = heads
        self._networks: dict[str, tuple[Network, dict[bytes, Treatment]]] = {}

    def named(self, network: Network) -> dict[bytes, Treatment]:
        """The treatments of a network that were found out so far, by the names of the methods as they are sent.

        Holds as long as the network is configured so. For those who look often, to be kept.
        """
        found = self._networks.get(network.name)
        if found is None or found[0] is not network:
            # Of a network that was configured anew. There is one entry for each name.
            found = self._networks[network.name] = (network, {})
        return found[1]

    def of(self, network: Network, method: str) -> Treatment | None:
        """The treatment of a read, or None for every other method."""
        known = self.named(network)
        return known.get(method.encode()) or self._find(network, method, known)

    def _find(self, network: Network, method: str, known: dict[bytes, Treatment]) -> Treatment | None:
        kind = look_up(network.spec, method)
        if kind.kind is not Kind.READ:
            return None
        treatment = known[method.encode()] = Treatment(
            method,
            kind.scope,
            self._cost(method, False),
            self._cost(method, True),
            method in STATE_READS,
            method not in _NOT_FROM_MEMORY,
            method == TELLS_HEAD,
            self._topic(network, method),
            self._heads(network),
        )
        return treatment
