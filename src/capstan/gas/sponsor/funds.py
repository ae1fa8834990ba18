"""Watches what the paymasters have at their entry points and what the senders of bundles have, and tells when it is
little: in the log, in the metrics, and through `warnings` to the dashboard and by mail.

Made by the composition root; a task of its own in each process. It only reads the chain: putting money in is for the
owner.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
import structlog

from capstan.chain.calls.models import BlockChanged
from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.clock import Clock, utc
from capstan.core.errors import ApiError
from capstan.core.hexes import parse_quantity, to_checksum_address
from capstan.gas.sponsor.chain import SponsorChain
from capstan.gas.sponsor.metrics import SponsorMetrics
from capstan.gas.sponsor.warnings import Fund, FundWarnings
from capstan.storage.errors import StorageError

log = structlog.get_logger(__name__)

_SECONDS = 60.0


class Watched(msgspec.Struct, frozen=True):
    """One account to look at."""

    network: Network
    fund: Fund
    # Where a paymaster has its deposit; None for an account that sends bundles.
    entry_point: bytes | None
    # What it should have, in wei.
    least: int


class SeenFund(msgspec.Struct, frozen=True):
    """What an account had when it was last looked at. Amounts are in wei."""

    fund: Fund
    balance: int
    least: int
    at: datetime

    @property
    def low(self) -> bool:
        """Whether it has less than it should."""
        return self.balance < self.least


class FundWatch:
    """Looks at every account from time to time. `start`, and `close` at the end."""

    def __init__(
        self,
        chain: SponsorChain,
        warnings: FundWarnings,
        metrics: SponsorMetrics,
        watched: Callable[[], Sequence[Watched]],
        clock: Clock,
    ) -> None:
        """`watched` is asked each time, because a reload may change it."""
        self._clock = clock
        # By what was looked at, in its order; for the dashboard.
        self.seen: tuple[SeenFund, ...] = ()
        self._chain = chain
        self._warnings = warnings
        self._metrics = metrics
        self._watched = watched
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        self._task = asyncio.create_task(self._run(), name="funds")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Look at all of them now."""
        watched = self._watched()
        earlier = {each.fund: each for each in self.seen}
        for each in watched:
            try:
                balance = await self._read(each)
            except (ApiError, NodeError, BlockChanged, ValueError) as error:
                log.info("gas.funds_unknown", network=each.network.name, reason=str(error)[:200])
                continue
            if balance is not None:
                earlier[each.fund] = SeenFund(each.fund, balance, each.least, utc(self._clock))
                await self._tell(each, balance)
        self.seen = tuple(earlier[each.fund] for each in watched if each.fund in earlier)
        await self._warnings.keep([each.fund for each in watched])

    async def _read(self, each: Watched) -> int | None:
        if each.entry_point is not None:
            (found,) = await self._chain.deposits(each.network, [(each.entry_point, each.fund.address)])
            return found
        address = to_checksum_address(each.fund.address)
        answer = await each.network.pool.request_as(str, "eth_getBalance", [address, "latest"])
        return parse_quantity(answer, lenient=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except StorageError as error:
                log.warning("gas.funds_not_noted", reason=str(error))
            except Exception:
                # A mistake of ours must not end the watch.
                log.exception("gas.funds_failed")
            await asyncio.sleep(_SECONDS)

    async def _tell(self, each: Watched, balance: int) -> None:
        fund, low = each.fund, balance < each.least
        if fund.version is None:
            self._metrics.signer(fund.network, fund.address, low=low)
        else:
            self._metrics.deposit(fund.network, fund.version, balance, low=low)
        if await self._warnings.note(fund, balance, each.least):
            log.warning(
                f"gas.{fund.kind}_low",
                network=fund.network,
                address=to_checksum_address(fund.address),
                version=fund.version,
                balance_gwei=balance // 10**9,
                least_gwei=each.least // 10**9,
            )
