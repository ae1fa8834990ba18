"""Watches what the paymasters have left at their entry points, and tells when it is little.

Made by the composition root; a task of its own. It only reads: putting money in is for the paymaster's owner.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from capstan.chain.calls.models import BlockChanged
from capstan.chain.registry import Network
from capstan.core.errors import ApiError
from capstan.core.hexes import to_checksum_address
from capstan.gas.sponsor.chain import SponsorChain
from capstan.gas.sponsor.metrics import SponsorMetrics
from capstan.userops.versions import Version

log = structlog.get_logger(__name__)

_SECONDS = 60.0


class Watched(msgspec.Struct, frozen=True):
    """One paymaster."""

    network: Network
    version: Version
    entry_point: bytes
    paymaster: bytes


class DepositWatch:
    """Looks at every paymaster from time to time. `start`, and `close` at the end."""

    def __init__(
        self, chain: SponsorChain, metrics: SponsorMetrics, paymasters: Callable[[], Sequence[Watched]], least: int
    ) -> None:
        """`paymasters` is asked each time, because a reload may change them. `least` is in wei."""
        self._chain = chain
        self._metrics = metrics
        self._paymasters = paymasters
        self._least = least
        self._low: set[tuple[str, str]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        self._task = asyncio.create_task(self._run(), name="paymaster deposits")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Look at all of them now."""
        for each in self._paymasters():
            try:
                (found,) = await self._chain.deposits(each.network, [(each.entry_point, each.paymaster)])
            except (ApiError, BlockChanged) as error:
                log.info("gas.deposit_unknown", network=each.network.name, reason=str(error)[:200])
                continue
            if found is not None:
                self._tell(each, found)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_SECONDS)

    def _tell(self, each: Watched, deposit: int) -> None:
        low, key = deposit < self._least, (each.network.name, each.version)
        self._metrics.deposit(each.network.name, each.version, deposit, low=low)
        if low and key not in self._low:
            log.warning(
                "gas.deposit_low",
                network=each.network.name,
                paymaster=to_checksum_address(each.paymaster),
                version=each.version,
                deposit_gwei=deposit // 10**9,
                least_gwei=self._least // 10**9,
            )
        (self._low.add if low else self._low.discard)(key)
