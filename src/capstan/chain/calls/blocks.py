"""The block at which state is read: the head that is followed anyway, or the one an upstream tells when asked.

Called by the capabilities before they read contracts, so that all parts of one answer come from one block.
"""

import asyncio

import msgspec

from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.registry import Network
from capstan.chain.view import NetworkHeads
from capstan.core.clock import Clock
from capstan.core.hexes import parse_quantity


class _Block(msgspec.Struct, frozen=True):
    number: str
    hash: str
    timestamp: str


class HeadBlocks:
    """The latest block of each network."""

    def __init__(self, heads: LatestHeads, clock: Clock) -> None:
        self._heads = heads
        self._clock = clock
        self._views: dict[str, tuple[Network, NetworkHeads]] = {}
        self._asking: dict[str, asyncio.Task[BlockRef]] = {}

    async def known(self, network: Network) -> BlockRef:
        """The block that is known as the latest, from memory also on a development chain; asked for when none is.

        For those who read at `latest` and want to say roughly at which block that was. Raises as `latest` does.
        """
        self._heads.head(network)
        try:
            block = self._heads.tracker(network.name).latest
        except KeyError:
            block = None
        return await self.latest(network) if block is None else BlockRef(block.number, block.hash, block.timestamp)

    async def latest(self, network: Network, *, ask: bool = False) -> BlockRef:
        """The latest block: from memory while the head is fresh, else from an upstream.

        With `ask`, always from an upstream: for whoever has just learned that the head in memory left the chain. A
        development chain makes blocks on command, so it is always asked: a test that mints and reads sees its mint.
        Raises `EveryUpstreamFailed` and `DeadlinePassed`.
        """
        if not network.spec.dev_methods and not ask:
            followed = self._followed(network)
            if followed is not None:
                return followed
        asking = self._asking.get(network.name)
        if asking is None or network.spec.dev_methods:
            asking = asyncio.create_task(ask_block(network, "latest"), name=f"head of {network.name}")
            self._asking[network.name] = asking
            asking.add_done_callback(lambda done: self._finish(network.name, done))
        return await asyncio.shield(asking)

    def _followed(self, network: Network) -> BlockRef | None:
        # Asking keeps the network awake.
        self._heads.head(network)
        kept = self._views.get(network.name)
        if kept is None or kept[0] is not network:
            kept = self._views[network.name] = (network, NetworkHeads(self._heads, network, self._clock))
        try:
            latest = self._heads.tracker(network.name).latest
        except KeyError:
            return None
        if latest is None or not kept[1].is_fresh:
            return None
        return BlockRef(latest.number, latest.hash, latest.timestamp)

    def _finish(self, name: str, asking: asyncio.Task[BlockRef]) -> None:
        if self._asking.get(name) is asking:
            del self._asking[name]
        if not asking.cancelled():
            # Looked at here, because all who asked may be gone by now.
            asking.exception()


async def ask_block(network: Network, tag: str) -> BlockRef:
    """The block of a tag or number as an upstream tells it."""
    try:
        block = await network.pool.request_as(_Block, "eth_getBlockByNumber", [tag, False])
        return BlockRef(
            parse_quantity(block.number, lenient=True),
            block.hash.lower(),
            parse_quantity(block.timestamp, lenient=True),
        )
    except (NodeError, ValueError) as error:
        raise EveryUpstreamFailed(f"No upstream of {network.name} tells its latest block.") from error
