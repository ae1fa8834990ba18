"""The latest block number of each network, kept fresh enough for pricing and freshness checks.

Asked by the RPC gateway (is this read an archive read?) and by the gas prices (is there a newer block?). The answer is
given at once from memory; when it is older than a block time, one call in the background renews it. To be replaced by
the follower's stream of heads: then nothing is asked of a node here.
"""

import asyncio

import structlog

from capstan.chain.errors import ChainError
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError
from capstan.core.hexes import parse_quantity

log = structlog.get_logger(__name__)

# Fast chains make several blocks a second; asking that often gains nothing here.
_LEAST_AGE_SECONDS = 1.0
_METHODS = {"evm": "eth_blockNumber", "solana": "getSlot"}


class LatestHeads:
    """Block numbers (slots on Solana) by network, renewed on demand. `renew` fills one in ahead of need."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heads: dict[str, tuple[int, float]] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}

    def head(self, network: Network) -> int | None:
        """The latest block known, or None before the first answer. Must be called with the event loop running."""
        number, renewed_at = self._heads.get(network.name, (None, 0.0))
        age = self._clock.monotonic() - renewed_at
        if number is None or age >= max(_LEAST_AGE_SECONDS, network.spec.block_time_ms / 1000):
            self._renew_soon(network)
        return number

    async def renew(self, network: Network) -> None:
        """Ask now. On failure the number known before stays."""
        try:
            answer = await network.pool.request(_METHODS[network.spec.family], [])
            number = answer if isinstance(answer, int) else parse_quantity(answer, lenient=True)
        except (ChainError, ApiError, ValueError) as error:
            log.debug("head.not_renewed", network=network.name, error=type(error).__name__)
            return
        self._heads[network.name] = (number, self._clock.monotonic())

    async def close(self) -> None:
        """Stop the calls under way."""
        tasks = tuple(self._renewals.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _renew_soon(self, network: Network) -> None:
        if network.name in self._renewals:
            return
        task = asyncio.create_task(self.renew(network), name=f"head of {network.name}")
        self._renewals[network.name] = task
        task.add_done_callback(lambda _: self._renewals.pop(network.name, None))
