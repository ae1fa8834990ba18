"""A guard in front of proxies of the real development chain, of which some lie."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt, BlockProof, Integrity
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.rpc.integrity.guard import Guard
from capstan.rpc.integrity.metrics import IntegrityMetrics
from tests.support.devnet import EvmDevnet
from tests.support.faulty_node import network_spec
from tests.support.lying_node import Lie, LyingNode

NETWORK = "ethereum/devnet"
ALL_PROOFS: frozenset[BlockProof] = frozenset({"header", "bloom", "receipts"})


class FixedView:
    """The chain as it was when the test began; `known` of its last blocks are known by hash."""

    def __init__(self, hashes: list[str], known: int) -> None:
        self.hashes = hashes
        self.latest_number: int | None = len(hashes) - 1
        self.safe_number: int | None = len(hashes) - 1
        self.finalized_number: int | None = len(hashes) - 1
        self.known = known
        self.is_fresh = True

    def hash_at(self, number: int) -> str | None:
        return self.hashes[number] if len(self.hashes) - self.known <= number < len(self.hashes) else None

    def nudge(self) -> None:
        """There is nothing to look for."""


class Guarded:
    """A network whose answers are checked."""

    def __init__(
        self, guard: Guard, network: Network, view: FixedView, nodes: list[LyingNode], registry: CollectorRegistry
    ) -> None:
        self.guard = guard
        self.network = network
        self.view = view
        self.nodes = nodes
        self.registry = registry

    @property
    def members(self) -> tuple[PooledUpstream, ...]:
        return self.network.pool.members

    @property
    def liars(self) -> list[str]:
        """The upstreams that are not believed."""
        return [member.name for member in self.members if member.trust.lost()]

    async def ask(self, method: str, *params: Any, attempts: list[Attempt] | None = None, timeout: float = 10) -> Any:
        rules = self.network.spec.integrity
        assert rules is not None
        result = await self.guard.call(
            self.network, rules, method, json.dumps(params).encode(), timeout=timeout, attempts=attempts
        )
        return json.loads(bytes(result))

    def counted(self, name: str, **labels: str) -> float:
        """The value of a counter."""
        value = self.registry.get_sample_value(f"capstan_integrity_{name}_total", {"network": NETWORK, **labels})
        return value or 0.0


@asynccontextmanager
async def guarded(
    devnet: EvmDevnet, *lies: Lie, rules: Integrity, known: int = 1000, in_order: bool = True
) -> AsyncIterator[Guarded]:
    """Proxies that lie so, asked in this order if each is as good as the others."""
    latest = int(await devnet.call_async("eth_blockNumber"), 16)
    blocks = [await devnet.call_async("eth_getBlockByNumber", hex(number), False) for number in range(latest + 1)]
    view = FixedView([block["hash"] for block in blocks], known)
    clock, prometheus = SystemClock(), CollectorRegistry()
    registry = ChainRegistry(open_session(), clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(registry.close)
        nodes = [await stack.enter_async_context(LyingNode(devnet.url, lie)) for lie in lies]
        specs = [node.spec(f"node-{place}", hedge=False) for place, node in enumerate(nodes)]
        registry.replace([network_spec(*specs, in_order=in_order, integrity=rules)])
        network = registry.networks()[0]
        for member in network.pool.members:
            member.note_head(latest)
        guard = Guard(clock, view=lambda _: view, metrics=IntegrityMetrics(prometheus))
        stack.push_async_callback(guard.close)
        yield Guarded(guard, network, view, nodes, prometheus)


def verifying(*proofs: BlockProof) -> Integrity:
    """`verify = true`, on a chain whose blocks prove this; by default everything."""
    return Integrity(verify=True, proofs=frozenset(proofs) if proofs else ALL_PROOFS)


def changed(rules: Integrity, **changes: Any) -> Integrity:
    return msgspec.structs.replace(rules, **changes)
