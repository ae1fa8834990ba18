"""Blocks that one process fetches and all have: the first that needs one claims it, the others wait for it.

Called by the block reader of a network. Only blocks near the head are shared. Whoever waits fetches the block itself
when it does not come in time, when its fetcher gives up, or when Redis is away: sharing saves calls, and nothing
depends on it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from capstan.chain.follower.models import Block, Demand
from capstan.chain.shared.metrics import ShareMetrics
from capstan.chain.shared.models import ShareOptions, Stored, read_block, write_block, write_entry
from capstan.chain.shared.store import ShareAway, SharedStore
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)


class SharedBlocks:
    """The recent blocks of one network in Redis."""

    def __init__(
        self,
        network: str,
        store: SharedStore,
        clock: Clock,
        options: ShareOptions,
        metrics: ShareMetrics,
        *,
        head: Callable[[], int | None],
        is_up: Callable[[], bool],
    ) -> None:
        self._network = network
        self._store = store
        self._clock = clock
        self._options = options
        self._metrics = metrics
        self._head = head
        self._is_up = is_up
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self._rests_until = 0.0

    async def block(self, number: int, block_hash: str, demand: Demand, fetch: Callable[[], Awaitable[Block]]) -> Block:
        """The block with at least this content, from a colleague or by `fetch`. Raises what `fetch` raises."""
        head = self._head()
        if not self._is_up() or head is None or number < head - self._options.block_depth:
            return await fetch()
        if self._clock.monotonic() < self._rests_until:
            return await fetch()
        try:
            found = await self._wait(number, block_hash, demand)
        except ShareAway as error:
            self._rest(error)
            return await fetch()
        if isinstance(found, Block):
            self._metrics.block(self._network, "colleague")
            return found
        self._metrics.block(self._network, "upstream")
        if not found:
            return await fetch()
        return await self._fetch_for_all(block_hash, demand, fetch)

    def stored(self, block_hash: str) -> None:
        """A block can be had, or will not be stored by whoever was fetching it."""
        for event in self._waiting.get(block_hash, ()):
            event.set()

    async def close(self) -> None:
        """Wait until what was fetched is stored."""
        await asyncio.gather(*self._storing, return_exceptions=True)

    async def _wait(self, number: int, block_hash: str, demand: Demand) -> Block | bool:
        """The block; or true when it is for us to fetch it for all, or false when waiting was in vain."""
        event = asyncio.Event()
        self._waiting.setdefault(block_hash, set()).add(event)
        deadline = self._clock.monotonic() + self._options.wait_seconds
        try:
            while True:
                event.clear()
                claimed = await self._store.claim(block_hash, demand)
                if isinstance(claimed, bytes):
                    return read_block(claimed, number, block_hash, demand) or False
                if claimed:
                    return True
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                try:
                    async with asyncio.timeout(left):
                        await event.wait()
                except TimeoutError:
                    return False
        finally:
            waiting = self._waiting[block_hash]
            waiting.discard(event)
            if not waiting:
                del self._waiting[block_hash]

    async def _fetch_for_all(self, block_hash: str, demand: Demand, fetch: Callable[[], Awaitable[Block]]) -> Block:
        content = b""
        try:
            block = await fetch()
            content = write_block(block, demand)
            return block
        finally:
            # Not awaited: our own consumers need not wait until others have it. Empty when it could not be had.
            if len(content) > self._options.block_bytes:
                content = b""
            task = asyncio.create_task(self._put(block_hash, content), name=f"share a block of {self._network}")
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _put(self, block_hash: str, content: bytes) -> None:
        try:
            await self._store.store(block_hash, content, write_entry(Stored(block_hash)))
        except ShareAway as error:
            self._rest(error)

    def _rest(self, error: ShareAway) -> None:
        log.info("shared.blocks_not_shared", network=self._network, reason=str(error))
        self._rests_until = self._clock.monotonic() + self._options.rest_seconds
