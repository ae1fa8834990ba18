"""The heads of an EVM network: what each upstream reports, linked parent by parent into one chain of headers.

Driven by the head tracker, one upstream at a time, concurrently. Every report is first linked to the chain (missing
parents are fetched from the upstream that reported it), then written down, then `choice` is asked which head
follows. Only that last part changes the chain, and it never waits, so concurrent reports cannot disturb each other. It
must not decide by itself which branch is right, and it never follows a branch below finality.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog

from capstan.chain.errors import ChainError, NodeError
from capstan.chain.heads.choice import Extend, Policy, Report, Rewind, Situation, Step, choose, fresh_reports
from capstan.chain.heads.finality import FinalityVotes
from capstan.chain.heads.headers import (
    ChainChange,
    Header,
    HeaderChain,
    HeaderChainError,
    MissingParent,
    ReorgBelowFinality,
)
from capstan.chain.heads.known import KnownUpstream
from capstan.chain.heads.metrics import HeadMetrics
from capstan.chain.heads.reading import Member, Tag, block_by_hash, block_by_number, block_by_tag
from capstan.chain.heads.source import HeadOptions
from capstan.chain.models import NetworkSpec
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

OnReport: TypeAlias = Callable[[str, Header, tuple[Header, ...], float], None]

# A first missing parent is fetched alone, since mostly there is only one; then so many at once.
_FETCH_WIDTH = 8
_MOST_STEPS = 8
# An upstream that does not know the finalized tag is asked again only after so long: it may have been upgraded.
_TAGS_REST = 600.0


class EvmHeads:
    """The chain of headers of one network, fed from its upstreams."""

    def __init__(
        self,
        spec: NetworkSpec,
        clock: Clock,
        metrics: HeadMetrics,
        emit: Callable[[ChainChange], None],
        options: HeadOptions,
    ) -> None:
        self.chain = HeaderChain(options.window)
        self.thorough = True
        self.adopted_at = clock.monotonic()
        # What a person must look at: a branch that would take back a final block.
        self.fault: str | None = None
        # Called with what an upstream said and the way from our chain to it, unless that was told by a colleague.
        self.on_report: OnReport | None = None
        self._clock = clock
        self._metrics = metrics
        self._emit = emit
        self._options = options
        self._upstreams: dict[Member, KnownUpstream] = {}
        self._votes: FinalityVotes[Member] = FinalityVotes()
        self._started_at = clock.monotonic()
        self._confirmed = False
        self._backfilling = False
        self._spec = spec

    @property
    def latest(self) -> Header | None:
        return self.chain.latest

    @property
    def number(self) -> int | None:
        latest = self.chain.latest
        return None if latest is None else latest.number

    @property
    def finalized_number(self) -> int | None:
        return self.chain.finalized_number

    @property
    def safe_number(self) -> int | None:
        return self.chain.safe_number

    @property
    def policy(self) -> Policy:
        """The measures of the rule, as long as the network is as busy as it is."""
        block_time = max(self._spec.block_time_ms, 1) / 1000
        policy = Policy.for_block_time(block_time, gap_limit=self._options.gap_limit, rewritable=self._spec.dev_methods)
        if self.thorough:
            return policy
        return Policy.for_block_time(block_time, gap_limit=policy.near_blocks, rewritable=policy.rewritable)

    def use(self, spec: NetworkSpec, members: Sequence[Member]) -> None:
        self._spec = spec
        self._upstreams = {member: self._upstreams.get(member) or KnownUpstream() for member in members}
        self._votes.keep(self._upstreams)

    async def look(self, member: Member) -> None:
        upstream = self._upstreams.get(member)
        if upstream is None:
            return
        ticket = upstream.ticket(self._clock.monotonic())
        try:
            header = await block_by_tag(member, "latest", self._options.call_timeout)
        except ChainError:
            self._votes.silent(member)
            raise
        finally:
            upstream.heard = True
        if header is not None:
            await self.observe(member, header, ticket=ticket)
            await self._backfill(member)

    async def observe(
        self,
        member: Member,
        header: Header,
        *,
        ticket: tuple[float, int] | None = None,
        told_at: float | None = None,
    ) -> None:
        """An upstream has this head: asked for, told by a subscription, or asked by a colleague at `told_at`."""
        upstream = self._upstreams.get(member)
        if upstream is None:
            return
        ticket = ticket or upstream.ticket(self._clock.monotonic() if told_at is None else told_at)
        upstream.heard = True
        linked = await self._link(member, upstream, header)
        if ticket < upstream.taken or self._upstreams.get(member) is not upstream:
            return
        upstream.taken = ticket
        now = self._clock.monotonic()
        at = now if told_at is None else told_at
        if upstream.report is None:
            upstream.report = Report(header, at)
        upstream.report.renew(header, at, self.chain.latest)
        if told_at is None and self.on_report is not None:
            self.on_report(member.name, header, self._way_to(header), ticket[0])
        self._settle(now)
        if linked:
            # The next block of a branch that is not ours needs this one.
            self.chain.remember(header)
        self._note(member, upstream)

    async def look_at_finality(self, member: Member) -> None:
        upstream = self._upstreams.get(member)
        if self.chain.latest is None or upstream is None:
            return
        if self._asks_tags:
            try:
                await self._ask_tags(member, upstream)
            finally:
                self._votes.silent(member)
        self._apply_finality()

    @property
    def _asks_tags(self) -> bool:
        # A development chain calls its newest block final and reverts it all the same.
        return self._options.finality_tags and not self._spec.dev_methods

    def told_finality(self, finalized: int, block_hash: str | None, safe: int | None) -> None:
        """A colleague knows what is final; taken unless it speaks of a block that is not on our chain."""
        ours = self.chain.hash_at(finalized)
        if block_hash is not None and ours is not None and ours != block_hash:
            return
        self.chain.finalize(finalized)
        if safe is not None:
            self.chain.mark_safe(safe)

    def _way_to(self, header: Header) -> tuple[Header, ...]:
        """The headers from our chain to this one, as far as it is linked."""
        try:
            return self.chain.branch_of(header).headers
        except HeaderChainError:
            return ()

    # --- linking: the only part that waits

    async def _link(self, member: Member, upstream: KnownUpstream, header: Header) -> bool:
        """Fetch what is missing between the head and the chain, as far as that is worth it. Whether it is linked."""
        latest, oldest = self.chain.latest, self.chain.oldest
        if latest is None or oldest is None or header.number < oldest.number:
            return False
        if header.number - latest.number > self.policy.gap_limit:
            return False
        if header.parent_hash == latest.hash and header.number == latest.number + 1:
            return True
        if self._clock.monotonic() < upstream.link_again_at:
            return False
        try:
            async with asyncio.timeout(self._options.link_timeout):
                await self._walk(member, header)
        except (ChainError, HeaderChainError, TimeoutError) as error:
            log.debug("head.not_linked", network=self._spec.name, upstream=member.name, reason=str(error))
            # One of the headers may have been invented by another upstream: none is kept.
            self.chain.forget(header)
            upstream.link_failed(self._clock.monotonic())
            return False
        upstream.link_failures = 0
        return True

    async def _walk(self, member: Member, header: Header) -> None:
        limit = self.policy.gap_limit
        fetched, width = 0, 1
        while True:
            try:
                self.chain.branch_of(header)
            except MissingParent as gap:
                if fetched >= limit:
                    raise
                fetched += await self._fetch(member, gap, width)
                width = _FETCH_WIDTH
            else:
                return

    async def _fetch(self, member: Member, gap: MissingParent, width: int) -> int:
        """Fetch the missing header by its hash and, at once, those below it by their numbers. Returns how many."""
        latest, oldest = self.chain.latest, self.chain.oldest
        assert latest is not None
        assert oldest is not None
        lowest = latest.number + 1 if gap.number > latest.number else oldest.number
        timeout = self._options.call_timeout
        numbers = range(gap.number - 1, max(lowest, gap.number - width + 1) - 1, -1)
        questions = [block_by_number(member, number, timeout) for number in numbers]
        first, *others = await asyncio.gather(
            block_by_hash(member, gap.hash, timeout), *questions, return_exceptions=True
        )
        if isinstance(first, BaseException):
            raise first
        if first is None:
            raise gap
        for answer in (first, *others):
            if isinstance(answer, Header):
                self.chain.remember(answer)
        return 1 + len(numbers)

    async def _backfill(self, member: Member) -> None:
        """Fetch some headers below the oldest, unless there are enough."""
        self.chain.prepend_known()
        oldest = self.chain.oldest
        wanted = min(self._options.backfill, self._options.window)
        if oldest is None or not self.thorough or self._backfilling or len(self.chain) >= wanted:
            return
        numbers = range(oldest.number - 1, max(oldest.number - 1 - _FETCH_WIDTH, -1), -1)
        self._backfilling = True
        try:
            questions = [block_by_number(member, number, self._options.call_timeout) for number in numbers]
            answers = await asyncio.gather(*questions, return_exceptions=True)
        finally:
            self._backfilling = False
        for answer in answers:
            if not isinstance(answer, Header) or not self.chain.prepend(answer):
                return

    # --- deciding: from here on nothing waits

    def _settle(self, now: float) -> None:
        """Take every step that the reports justify."""
        refused: set[Report] = set()
        for _ in range(_MOST_STEPS):
            reports = [report for report in self._reports() if report not in refused]
            self._confirmed = self._confirmed or self._is_confirmed(reports, now)
            situation = Situation(now, self.adopted_at, self._confirmed, self._all_heard(now))
            step = choose(self.chain, reports, self.policy, situation)
            if step is None:
                if not refused:
                    self.fault = None
                return
            try:
                change = self._apply(step)
            except ReorgBelowFinality as error:
                self._refuse(step.report.header, error)
                refused.add(step.report)
                continue
            self._adopted(change, now)

    def _apply(self, step: Step) -> ChainChange:
        header = step.report.header
        try:
            if isinstance(step, Extend):
                return self.chain.extend([header])
            if isinstance(step, Rewind):
                return self.chain.rewind(header.number)
            return self.chain.restart([header])
        except ReorgBelowFinality:
            if not self._spec.dev_methods:
                raise
            return self.chain.restart([header], forget_finality=True)

    def _adopted(self, change: ChainChange, now: float) -> None:
        self.adopted_at = now
        latest = self.chain.latest
        for report in self._reports():
            report.head_moved(latest)
        if change.restarted:
            self._confirmed = False
            self._metrics.restarted(self._spec.name)
            log.warning("head.restarted", network=self._spec.name, number=self.number)
        if change.reverted:
            self._metrics.reorg(self._spec.name, len(change.reverted))
            log.info("head.reorg", network=self._spec.name, depth=len(change.reverted), number=self.number)
        if change.reverted or change.restarted:
            self._votes.forget()
        self._apply_finality()
        if change.reverted or change.restarted:
            for member, upstream in self._upstreams.items():
                self._note(member, upstream)
        self._emit(change)

    def _refuse(self, header: Header, error: ReorgBelowFinality) -> None:
        if self.fault is None:
            log.error("head.reorg_below_finality", network=self._spec.name, number=header.number, reason=str(error))
            self._metrics.refused(self._spec.name)
        self.fault = f"{self._spec.name}: {error}; not followed, someone must find out which upstream is wrong"

    def _note(self, member: Member, upstream: KnownUpstream) -> None:
        """Tell the pool the highest block of our chain that the upstream has."""
        latest, oldest = self.chain.latest, self.chain.oldest
        if upstream.report is None or latest is None or oldest is None:
            return
        header = upstream.report.header
        self._metrics.lag(self._spec.name, member.name, latest.number - header.number)
        try:
            member.note_head(self.chain.branch_of(header).ancestor)
        except HeaderChainError:
            # Not linked: above our chain nothing is proven; below the headers we keep, the number is all there is.
            if header.number < oldest.number:
                member.note_head(header.number)

    def _reports(self) -> list[Report]:
        return [upstream.report for upstream in self._upstreams.values() if upstream.report is not None]

    def _is_confirmed(self, reports: Sequence[Report], now: float) -> bool:
        latest, policy = self.chain.latest, self.policy
        if latest is None:
            return False
        floor = latest.number - policy.near_blocks
        return sum(1 for report in fresh_reports(reports, policy, now) if report.header.number >= floor) > 1

    def _all_heard(self, now: float) -> bool:
        heard = all(upstream.heard for upstream in self._upstreams.values())
        return heard or now - self._started_at >= self._options.startup_seconds

    # --- finality

    async def _ask_tags(self, member: Member, upstream: KnownUpstream) -> None:
        if self._clock.monotonic() < upstream.tags_again_at:
            return
        try:
            finalized = await self._canonical(member, "finalized")
        except NodeError:
            self._votes.unsupported(member)
            upstream.tags_again_at = self._clock.monotonic() + _TAGS_REST
            return
        if finalized is None:
            return
        try:
            safe = await self._canonical(member, "safe")
        except NodeError:
            safe = None
        self._votes.note(member, finalized, safe, self._clock.monotonic())

    async def _canonical(self, member: Member, tag: Tag) -> int | None:
        """The number behind a tag, unless that block is known not to be on our chain."""
        header = await block_by_tag(member, tag, self._options.call_timeout)
        latest, oldest = self.chain.latest, self.chain.oldest
        if header is None or latest is None or oldest is None or header.number > latest.number:
            return None
        kept = header.number >= oldest.number
        return None if kept and not self.chain.is_canonical(header.number, header.hash) else header.number

    def _apply_finality(self) -> None:
        latest, now = self.chain.latest, self._clock.monotonic()
        if latest is None:
            return
        finalized, safe = self._votes.finalized(now), self._votes.safe(now)
        if not self._asks_tags or self._votes.nobody_knows:
            depth = self._spec.finality_depth or self._options.finality_depth
            finalized = None if depth is None else max(latest.number - depth, 0)
        if finalized is not None:
            self.chain.finalize(finalized)
        if safe is not None:
            self.chain.mark_safe(safe)
