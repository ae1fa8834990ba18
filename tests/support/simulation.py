"""A network of the development chain as the bundler sees it, in the test's own process: its upstreams and its head."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock


@asynccontextmanager
async def open_network(url: str) -> AsyncIterator[tuple[Network, HeadBlocks]]:
    """The development chain at this address."""
    clock = SystemClock()
    registry = ChainRegistry(open_session(), clock)
    registry.replace(
        [
            NetworkSpec(
                chain="ethereum",
                network="devnet",
                family="evm",
                upstreams=(UpstreamSpec("node", url),),
                block_time_ms=1000,
                dev_methods=True,
            )
        ]
    )
    heads = LatestHeads(clock)
    try:
        yield registry.get("ethereum", "devnet"), HeadBlocks(heads, clock)
    finally:
        await heads.close()
        await registry.close()
