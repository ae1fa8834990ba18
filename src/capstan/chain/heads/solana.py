"""The slots of a Solana network: processed, confirmed and finalized, from what each upstream reports.

Driven by the head tracker. Slots have numbers but no headers that are cheap to ask for, so nothing is linked and no
`ChainChange` is made; only the numbers are kept. The rule is that of `choice` without the links: the highest slot
counts unless it is absurd, it goes back only when the upstream that announced it insists on a lower one and nobody has
a higher one, and an absurd one is believed when another upstream is near to it.
"""

from collections.abc import Callable, Sequence

from capstan.chain.heads.finality import FinalityVotes
from capstan.chain.heads.headers import Header
from capstan.chain.heads.metrics import HeadMetrics
from capstan.chain.heads.reading import Member, block_height, slot
from capstan.chain.heads.source import HeadOptions
from capstan.chain.models import NetworkSpec
from capstan.core.clock import Clock

# A node that is healthy by its own measure may be so many slots behind (Agave: --health-check-slot-distance).
_NEAR_SLOTS = 128
_FASTEST = 2.0
_STALE_SECONDS = 15.0
_INSISTING_REPORTS = 3
_HOLD_SECONDS = 10.0


class _Report:
    def __init__(self) -> None:
        self.heard = False
        self.slot: int | None = None
        self.at = 0.0
        # Whether this upstream has reported the announced slot itself.
        self.announced = False
        self.below_reports = 0
        self.below_since = 0.0


class SolanaHeads:
    """The slots of one network."""

    def __init__(
        self,
        spec: NetworkSpec,
        clock: Clock,
        metrics: HeadMetrics,
        announce: Callable[[], None],
        options: HeadOptions,
    ) -> None:
        self.thorough = True
        self.adopted_at = clock.monotonic()
        self.number: int | None = None
        # Blocks, not slots, at commitment `confirmed`: transactions expire by it.
        self.block_height: int | None = None
        self._finalized: int | None = None
        self._spec = spec
        self._clock = clock
        self._metrics = metrics
        self._announce = announce
        self._options = options
        self._started_at = clock.monotonic()
        self._reports: dict[Member, _Report] = {}
        self._votes: FinalityVotes[Member] = FinalityVotes()

    @property
    def latest(self) -> Header | None:
        """None: Solana has no header that links slots."""
        return None

    @property
    def finalized_number(self) -> int | None:
        return self._finalized

    @property
    def safe_number(self) -> int | None:
        known = [
            number for number in (self._votes.safe(self._clock.monotonic()), self._finalized) if number is not None
        ]
        return max(known, default=None)

    def use(self, spec: NetworkSpec, members: Sequence[Member]) -> None:
        self._spec = spec
        self._reports = {member: self._reports.get(member) or _Report() for member in members}
        self._votes.keep(self._reports)

    async def look(self, member: Member) -> None:
        report = self._reports.get(member)
        if report is None:
            return
        try:
            seen = await slot(member, "processed", self._options.call_timeout)
        finally:
            report.heard = True
        now = self._clock.monotonic()
        self._write_down(report, seen, now)
        best = self._choose(now)
        if best is not None and best != self.number:
            self._adopt(best, now)
        if self.number is not None:
            self._metrics.lag(self._spec.name, member.name, self.number - seen)
            if seen <= self.number:
                member.note_head(seen)

    async def look_at_finality(self, member: Member) -> None:
        if self.number is None or member not in self._reports:
            return
        timeout = self._options.call_timeout
        finalized = await slot(member, "finalized", timeout)
        confirmed = await slot(member, "confirmed", timeout)
        now = self._clock.monotonic()
        if max(finalized, confirmed) <= self._reachable(self.number, now - self.adopted_at):
            self._votes.note(member, finalized, confirmed, now)
            agreed = self._votes.finalized(now)
            if agreed is not None:
                self._finalized = agreed if self._finalized is None else max(self._finalized, agreed)
        height = await block_height(member, "confirmed", timeout)
        if height <= self._reachable(self.number, now - self.adopted_at):
            self.block_height = height if self.block_height is None else max(self.block_height, height)

    def _write_down(self, report: _Report, seen: int, now: float) -> None:
        report.slot, report.at = seen, now
        if self.number is None or seen >= self.number:
            report.announced = seen == self.number
            report.below_reports = 0
            return
        if report.below_reports == 0:
            report.below_since = now
        report.below_reports += 1

    def _choose(self, now: float) -> int | None:
        """The slot to announce, or None when it stays."""
        fresh = [(report.slot, report) for report in self._reports.values() if report.slot is not None]
        fresh = [(seen, report) for seen, report in fresh if now - report.at <= _STALE_SECONDS]
        for seen, report in sorted(fresh, key=lambda pair: -pair[0]):
            others = [(slot_, other.at) for slot_, other in fresh if other is not report]
            if self.number is None:
                near = any(seen <= self._reachable(number, report.at - at) for number, at in others)
                if near or self._all_heard(now):
                    return seen
            elif seen < self.number:
                return seen if self._taken_back([report for _, report in fresh], now) else None
            elif not others or any(
                seen <= self._reachable(number, report.at - at)
                for number, at in [*others, (self.number, self.adopted_at)]
            ):
                return seen
        return None

    def _taken_back(self, fresh: Sequence[_Report], now: float) -> bool:
        announcers = [report for report in self._reports.values() if report.announced]
        judges = [report for report in announcers if report in fresh] if announcers else fresh
        if self._spec.dev_methods:
            return bool(judges)
        return bool(judges) and all(
            judge.below_reports >= _INSISTING_REPORTS and now - judge.below_since >= _HOLD_SECONDS for judge in judges
        )

    def _adopt(self, number: int, now: float) -> None:
        self.number = number
        self.adopted_at = now
        for report in self._reports.values():
            report.announced = report.slot == number
            report.below_reports = 0
        self._announce()

    def _reachable(self, number: int, seconds: float) -> float:
        return number + _NEAR_SLOTS + _FASTEST * max(seconds, 0.0) * 1000 / max(self._spec.block_time_ms, 1)

    def _all_heard(self, now: float) -> bool:
        heard = all(report.heard for report in self._reports.values())
        return heard or now - self._started_at >= self._options.startup_seconds
