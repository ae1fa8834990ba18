"""What the page Chains shows: every network and upstream, where the streams and the index stand, and who runs dry.

Read by the page and by its live stream. Everything about upstreams and heads comes from memory, as this process knows
it; cursors, index and warnings come from the database, and are read again after some seconds, however many look. It
asks no node anything, and wakes no network that nobody uses.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.health import BreakerState
from capstan.chain.member import PooledUpstream
from capstan.chain.registry import Network
from capstan.core.clock import Clock, utc
from capstan.core.decimals import format_units
from capstan.core.hexes import to_checksum_address
from capstan.gas.sponsor.funds import SeenFund
from capstan.gas.sponsor.warnings import Fund, FundWarnings, Warned
from capstan.gateway import Gateway
from capstan.index.progress import MOST_COUNTED, NetworkProgress, read_progress
from capstan.storage.database import Database
from capstan.stream.cursors import Cursor, read_cursors

UpstreamState = Literal["healthy", "trying", "open", "distrusted"]
NetworkState = Literal["healthy", "idle", "waiting", "late", "halted", "down"]

_DATABASE_SECONDS = 5.0
# A head that has not changed for so many block times, and at least so many seconds, is late.
_LATE_BLOCKS = 5
_LATE_SECONDS = 15.0
_PLACES = 6
# Every role of a stream, as people say it.
_ROLES = {
    "index": "transfers",
    "gas": "sponsorships",
    "bundler": "user operations",
    "webhooks": "webhooks",
    "wallets": "wallets",
}


class UpstreamRow(msgspec.Struct, frozen=True):
    """One upstream."""

    name: str
    tier: int
    state: UpstreamState
    head: int | None
    # Blocks behind the best upstream of the network.
    lag: int | None
    # Of the latest answers, in microseconds; None before the first.
    median: int | None
    slow: int | None
    # Of recent calls, in thousandths.
    errors: int
    calls: int
    in_flight: int


class StreamRow(msgspec.Struct, frozen=True):
    """Where one durable stream stands."""

    role: str
    number: int
    behind: int | None
    updated_at: datetime


class NetworkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One network."""

    name: str
    state: NetworkState
    trouble: str | None
    head: int | None
    head_seconds: int | None
    finalized: int | None
    reorgs: int
    deepest_reorg: int
    upstreams: list[UpstreamRow]
    streams: list[StreamRow]
    index: NetworkProgress | None


class FundRow(msgspec.Struct, frozen=True):
    """A paymaster's deposit or an account that sends bundles."""

    network: str
    what: str
    address: str
    amount: str
    least: str
    symbol: str
    low: bool
    at: datetime


class Board(msgspec.Struct, frozen=True):
    """The whole page."""

    at: datetime
    networks: list[NetworkRow]
    funds: list[FundRow]
    most_counted: int = MOST_COUNTED

    @property
    def upstreams(self) -> list[UpstreamRow]:
        """All of them."""
        return [each for network in self.networks for each in network.upstreams]

    @property
    def low(self) -> list[FundRow]:
        """What has little left."""
        return [fund for fund in self.funds if fund.low]


class _Stored(msgspec.Struct, frozen=True):
    cursors: list[Cursor]
    progress: dict[str, NetworkProgress]
    warned: list[SeenFund]


class ChainBoard:
    """Puts the board together."""

    def __init__(
        self,
        gateway: Gateway,
        database: Database,
        clock: Clock,
        funds: Callable[[], Sequence[SeenFund]],
        warnings: FundWarnings,
    ) -> None:
        """`funds` are the accounts that must not run out of coins, as this process saw them last.

        A process that only answers requests looks at none; then the warnings of the others are shown.
        """
        self._warnings = warnings
        self._gateway = gateway
        self._database = database
        self._clock = clock
        self._funds = funds
        self._stored: _Stored | None = None
        self._stored_at = 0.0
        self._reading = asyncio.Lock()

    async def now(self) -> Board:
        """The board as it is now."""
        stored = await self._read()
        networks = sorted(self._gateway.registry.networks(), key=lambda network: network.name)
        return Board(
            utc(self._clock),
            [self._network(network, stored) for network in networks],
            [_fund(seen) for seen in self._funds() or stored.warned],
        )

    async def _read(self) -> _Stored:
        async with self._reading:
            now = self._clock.monotonic()
            if self._stored is None or now - self._stored_at >= _DATABASE_SECONDS:
                progress = {each.network: each for each in await read_progress(self._database)}
                warned = [_seen(each) for each in await self._warnings.now()]
                self._stored = _Stored(await read_cursors(self._database), progress, warned)
                self._stored_at = now
            return self._stored

    def _network(self, network: Network, stored: _Stored) -> NetworkRow:
        name = network.name
        heads: LatestHeads = self._gateway.heads
        try:
            tracker = heads.tracker(name)
        except KeyError:
            tracker = None
        follower = self._gateway.followers.find(name)
        halts = {} if follower is None else follower.condition.halts
        head = None if tracker is None else tracker.number
        age = None if tracker is None else tracker.age_seconds
        reorgs, best = heads.reorgs(name), network.pool.best_head
        return NetworkRow(
            name=name,
            state=_state(network, tracker, halted=bool(halts)),
            trouble="; ".join(dict.fromkeys(halts.values())) or None,
            head=head,
            head_seconds=None if age is None else int(age),
            finalized=None if tracker is None else tracker.finalized_number,
            reorgs=reorgs.count,
            deepest_reorg=reorgs.deepest,
            upstreams=[_upstream(member, best) for member in network.pool.members],
            streams=[_stream(cursor, head) for cursor in stored.cursors if cursor.network == name],
            index=stored.progress.get(name),
        )


def _state(network: Network, tracker: HeadTracker | None, *, halted: bool) -> NetworkState:
    if halted:
        return "halted"
    if not any(member.in_rotation for member in network.pool.members):
        return "down"
    age = None if tracker is None else tracker.age_seconds
    if tracker is None or age is None:
        return "waiting"
    if tracker.asleep:
        return "idle"
    return "late" if age > max(_LATE_SECONDS, _LATE_BLOCKS * network.spec.block_time_ms / 1000) else "healthy"


def _upstream(member: PooledUpstream, best: int | None) -> UpstreamRow:
    ring = member.latencies.overall
    return UpstreamRow(
        name=member.name,
        tier=member.tier,
        state=_upstream_state(member),
        head=member.head,
        lag=None if member.head is None or best is None else max(0, best - member.head),
        median=_microseconds(ring.quantile(0.5)),
        slow=_microseconds(ring.quantile(0.95)),
        errors=round(member.error_rate() * 1000),
        calls=sum(member.outcomes.values()),
        in_flight=member.in_flight,
    )


def _upstream_state(member: PooledUpstream) -> UpstreamState:
    if member.trust.lost():
        return "distrusted"
    states: dict[BreakerState, UpstreamState] = {BreakerState.OPEN: "open", BreakerState.HALF_OPEN: "trying"}
    return states.get(member.breaker.state, "healthy")


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1_000_000)


def _stream(cursor: Cursor, head: int | None) -> StreamRow:
    behind = None if head is None else max(0, head - cursor.number)
    return StreamRow(_ROLES.get(cursor.role, cursor.role), cursor.number, behind, cursor.updated_at)


def _fund(seen: SeenFund) -> FundRow:
    fund = seen.fund
    paymaster = fund.kind == "paymaster_deposit"
    return FundRow(
        network=fund.network,
        what=f"Paymaster, entry point {fund.version}" if paymaster else "Bundle signer",
        address=to_checksum_address(fund.address),
        amount=_amount(seen.balance, fund.decimals),
        least=_amount(seen.least, fund.decimals),
        symbol=fund.symbol,
        low=seen.low,
        at=seen.at,
    )


def _seen(warned: Warned) -> SeenFund:
    fund = Fund(warned.network, warned.kind, warned.address, warned.version, "coins")
    return SeenFund(fund, warned.balance, warned.least, warned.since)


def _amount(wei: int, decimals: int) -> str:
    """Whole coins with at most six places, cut and not rounded: nobody has more than it says."""
    cut = max(0, decimals - _PLACES)
    return format_units(wei // 10**cut * 10**cut, decimals)
