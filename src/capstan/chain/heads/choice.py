"""The rule by which a network's head moves: from what each upstream says last, which chain do we announce?

Asked by the EVM head source after every report. Pure: no input or output, no clock of its own, no memory beyond the
reports. The rule, in order. "Fresh" is a report that is not older than `stale_seconds`; "near" is `near_blocks`.

1. First head. The highest block that two upstreams are near to; once every upstream was heard or has failed, or the
   first seconds are over, the highest of all.
2. Longer. A block that descends from the announced one, parent by parent, is taken at once.
3. Other branch, not shorter. Taken when more fresh upstreams stand on it than on ours above the fork, or as many and
   it is two blocks ahead. So a lone upstream on a fork of its own cannot drag everybody along.
4. Jump. A higher block that is not linked to ours, further ahead than gaps are filled, is believed when it is near to
   what another fresh upstream says or to what the time since our head allows (twice the usual speed). Otherwise it is
   distrusted, until another upstream confirms it or it turns out to be linked. When no fresh upstream is linked to our
   chain any more, the one that insists (three reports) is followed.
5. Outvoted. A head that no second upstream ever came near to, while two or more agree on one far below, is given up.
6. Shorter. The number goes back only when an upstream that had announced our head takes that back itself, nobody else
   has that block or a higher one, and it insists: two reports of another branch, or three reports over `hold_seconds`
   when it is merely behind (a provider's load balancer can look so). Lagging upstreams alone never move the head.

A chain that may be rewritten (a development chain) needs no insisting in 6, and none in 4.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from capstan.chain.heads.headers import Branch, Header, HeaderChain, HeaderChainError

_INSISTING_REPORTS = 3
_OTHER_BRANCH_REPORTS = 2
_CLEARLY_AHEAD = 2
# How much faster than its usual block time a chain may seem to run before that is absurd.
_FASTEST = 2.0


class Policy(msgspec.Struct, frozen=True):
    """The measures of the rule for one network."""

    block_time: float
    # How far apart two healthy upstreams may be.
    near_blocks: int
    # Up to so many blocks are fetched to link a head; beyond, it is a jump.
    gap_limit: int
    stale_seconds: float
    hold_seconds: float
    rewritable: bool = False

    @classmethod
    def for_block_time(cls, block_time: float, *, gap_limit: int, rewritable: bool) -> "Policy":
        """What suits a chain with this time between blocks, in seconds."""
        return cls(
            block_time=block_time,
            near_blocks=max(3, round(4.0 / block_time)),
            gap_limit=gap_limit,
            stale_seconds=max(15.0, 2 * block_time),
            hold_seconds=min(max(2.0, 3 * block_time), 12.0),
            rewritable=rewritable,
        )


class Report:
    """What one upstream said last, and since when it has not stood at the announced head."""

    __slots__ = ("at", "header", "held", "off_reports", "off_since")

    def __init__(self, header: Header, at: float) -> None:
        self.header = header
        self.at = at
        # The hash of the last announced head that this upstream has reported itself.
        self.held: str | None = None
        self.off_reports = 0
        self.off_since = at

    def renew(self, header: Header, at: float, announced: Header | None) -> None:
        """The upstream has spoken again."""
        self.header = header
        self.at = at
        self.compare(announced)
        if announced is not None and header.hash != announced.hash:
            if self.off_reports == 0:
                self.off_since = at
            self.off_reports += 1

    def compare(self, announced: Header | None) -> None:
        """The announced head is another one, or this upstream has come to it."""
        if announced is not None and self.header.hash == announced.hash:
            self.held = announced.hash
            self.off_reports = 0

    def head_moved(self, announced: Header | None) -> None:
        """Begin to count anew: what was said about the head before does not concern the new one."""
        self.off_reports = 0
        self.off_since = self.at
        self.compare(announced)


class Extend(msgspec.Struct, frozen=True):
    """Make this header, whose branch is known, the head."""

    report: Report


class Rewind(msgspec.Struct, frozen=True):
    """The head is this older block again."""

    report: Report


class Restart(msgspec.Struct, frozen=True):
    """Begin a new chain here, linked to nothing."""

    report: Report


Step: TypeAlias = Extend | Rewind | Restart


class Situation(msgspec.Struct, frozen=True):
    """What is known besides the reports."""

    now: float
    # When the announced head became the head.
    adopted_at: float
    # Whether a second upstream has been near the announced head, or an earlier one of the same chain.
    confirmed: bool
    # Whether every upstream was heard or has failed, or has had its time.
    all_heard: bool


def choose(chain: HeaderChain, reports: Sequence[Report], policy: Policy, situation: Situation) -> Step | None:
    """The next step to a better head, or None when the announced one is right."""
    fresh = fresh_reports(reports, policy, situation.now)
    latest = chain.latest
    if latest is None:
        return _first(fresh, policy, all_heard=situation.all_heard)
    view = _View(chain, latest, fresh, policy, situation)
    return view.longer() or view.other_branch() or view.jump() or view.outvoted() or view.shorter(reports)


def fresh_reports(reports: Sequence[Report], policy: Policy, now: float) -> list[Report]:
    """The reports that count, highest block first."""
    fresh = [report for report in reports if now - report.at <= policy.stale_seconds]
    return sorted(fresh, key=lambda report: -report.header.number)


def _first(fresh: Sequence[Report], policy: Policy, *, all_heard: bool) -> Step | None:
    agreed = _agreed(fresh, policy)
    if agreed is not None:
        return Extend(agreed)
    return Extend(fresh[0]) if fresh and all_heard else None


def _agreed(fresh: Sequence[Report], policy: Policy) -> Report | None:
    """The highest report that another one is near to. `fresh` is sorted."""
    for report, next_lower in pairwise(fresh):
        if report.header.number - next_lower.header.number <= policy.near_blocks:
            return report
    return None


class _View:
    """The fresh reports, each with its place relative to the chain."""

    def __init__(
        self, chain: HeaderChain, latest: Header, fresh: Sequence[Report], policy: Policy, situation: Situation
    ) -> None:
        self._chain = chain
        self._latest = latest
        self._fresh = fresh
        self._policy = policy
        self._situation = situation
        self._branches: dict[Report, Branch] = {}
        for report in fresh:
            try:
                self._branches[report] = chain.branch_of(report.header)
            except HeaderChainError:
                # Not linked, or not yet: then it only counts in jump() and shorter().
                continue

    def longer(self) -> Step | None:
        for report, branch in self._branches.items():
            if branch.headers and branch.ancestor == self._latest.number:
                return Extend(report)
        return None

    def other_branch(self) -> Step | None:
        for report, branch in self._branches.items():
            number = report.header.number
            if not branch.headers or number < self._latest.number:
                continue
            ours, theirs = self._support_above(branch.ancestor), self._support_of(branch)
            ahead = number >= self._latest.number + _CLEARLY_AHEAD
            if theirs > ours or (theirs == ours and ahead):
                return Extend(report)
        return None

    def jump(self) -> Step | None:
        deserted = not self._branches
        insisting = 1 if self._policy.rewritable else _INSISTING_REPORTS
        for report in self._fresh:
            gap = report.header.number - self._latest.number
            if report in self._branches or gap < 0:
                continue
            if gap > self._policy.gap_limit and not self._absurd(report):
                return Restart(report)
            if deserted and report.off_reports >= insisting:
                return Restart(report)
        return None

    def outvoted(self) -> Step | None:
        if self._situation.confirmed:
            return None
        floor = self._latest.number - self._policy.near_blocks
        below = [report for report in self._fresh if report.header.number < floor]
        agreed = _agreed(below, self._policy)
        return Restart(agreed) if agreed is not None and len(below) > len(self._fresh) - len(below) else None

    def shorter(self, reports: Sequence[Report]) -> Step | None:
        if not self._fresh or self._fresh[0].header.number >= self._latest.number:
            return None
        announcers = [report for report in reports if report.held == self._latest.hash]
        judges = [report for report in announcers if report in self._fresh] if announcers else self._fresh
        if not judges:
            return None
        # A report that is linked is better than one that is not, and a higher one better than a lower one.
        best = max(self._fresh, key=lambda report: (report in self._branches, report.header.number))
        branch = self._branches.get(best)
        if branch is not None and branch.headers:
            if self._support_above(branch.ancestor) == 0 and self._insist(judges, _OTHER_BRANCH_REPORTS, 0.0):
                return Extend(best)
            return None
        if not self._insist(judges, _INSISTING_REPORTS, self._policy.hold_seconds):
            return None
        return Restart(best) if branch is None else Rewind(best)

    def _insist(self, judges: Sequence[Report], reports: int, seconds: float) -> bool:
        if self._policy.rewritable:
            reports, seconds = 1, 0.0
        now = self._situation.now
        return all(judge.off_reports >= reports and now - judge.off_since >= seconds for judge in judges)

    def _support_above(self, ancestor: int) -> int:
        """How many stand on our branch above the fork."""
        return sum(
            1 for report, branch in self._branches.items() if not branch.headers and report.header.number > ancestor
        )

    def _support_of(self, branch: Branch) -> int:
        hashes = {header.hash for header in branch.headers}
        return sum(1 for report in self._fresh if report.header.hash in hashes)

    def _absurd(self, report: Report) -> bool:
        """Whether the number is beyond all others and beyond time."""
        known = [(other.header.number, other.at) for other in self._fresh if other is not report]
        known.append((self._latest.number, self._situation.adopted_at))
        return all(report.header.number > self._reachable(number, report.at - at) for number, at in known)

    def _reachable(self, number: int, seconds: float) -> float:
        return number + self._policy.near_blocks + _FASTEST * max(seconds, 0.0) / self._policy.block_time
