"""The attempts of one call: upstream after upstream until one answers, within a single deadline.

Made by the pool for each call. It knows what may be repeated and what the caller is told when nothing answered. Sending
transactions to several upstreams at once is the part of `broadcast`, asking a second upstream early that of `hedging`.
"""

import asyncio
from collections.abc import Coroutine
from enum import Enum
from random import Random
from typing import Any

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.budget import HedgeBudget
from capstan.chain.errors import (
    ChainError,
    DeadlinePassed,
    EveryUpstreamFailed,
    NodeError,
    NodeUnable,
    UpstreamFailure,
    UpstreamTimeoutError,
)
from capstan.chain.first import FirstAttempt
from capstan.chain.hedging import Hedge, HedgeWatch
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt
from capstan.chain.selection import (
    Needs,
    Shortlists,
    Situation,
    Standing,
    budget_wait,
    by_weight,
    choose,
    shortlist,
    standing,
)
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

# With less than this left, a further attempt cannot succeed.
LEAST_ATTEMPT_SECONDS = 0.01
# How long a call waits when every upstream has spent its budget.
_LONGEST_BUDGET_WAIT_SECONDS = 1.0
# A second upstream is asked no sooner than this, and not at all for calls that usually take longer than that.
_SOONEST_HEDGE_SECONDS = 0.02
_LATEST_HEDGE_SECONDS = 2.0
# No later than this when a call tries an upstream that was out of rotation.
_PROBE_HEDGE_SECONDS = 0.25


class Repeat(Enum):
    """What may be done again after a failure that leaves open whether the call was executed."""

    # Reads: ask again, anywhere.
    FREELY = "freely"
    # Signed transactions: another upstream may be given the same bytes, since a chain takes them once.
    ELSEWHERE = "elsewhere"
    # Everything else that changes something: never.
    NEVER = "never"


class Company(msgspec.Struct, frozen=True):
    """What all calls to one network share."""

    network: str
    members: tuple[PooledUpstream, ...]
    # More blocks behind the best head than this is lagging.
    max_lag: int
    clock: Clock
    random: Random
    hedges: HedgeBudget
    watch: HedgeWatch
    # None when nothing can be remembered, because an upstream has a budget of calls, which changes with every call.
    shortlists: Shortlists[PooledUpstream] | None


class Run:
    """One call under way."""

    __slots__ = (
        "_begun",
        "_clock",
        "_company",
        "_ends_at",
        "_hedges",
        "_out_of_budget",
        "_unable",
        "_waited",
        "answered_by",
        "attempts",
        "failures",
        "members",
        "needs",
        "network",
        "params",
        "repeat",
        "tried",
    )

    def __init__(
        self,
        company: Company,
        needs: Needs,
        params: bytes,
        repeat: Repeat,
        timeout: float,
        attempts: list[Attempt] | None,
        hedge: bool,
        begun: FirstAttempt | None = None,
    ) -> None:
        self.network = company.network
        self.members = company.members
        self.needs = needs
        self.params = params
        self.repeat = repeat
        self.attempts = attempts
        self.failures: list[ChainError] = []
        self.tried: list[PooledUpstream] = [] if begun is None else [begun.member]
        self.answered_by: PooledUpstream | None = None
        self._company = company
        self._clock = company.clock
        # None: no second upstream is asked before the first has failed.
        self._hedges = company.hedges if hedge else None
        self._ends_at = company.clock.monotonic() + timeout
        # The first attempt, when it was made before this run.
        self._begun = begun
        self._unable: list[PooledUpstream] = []
        self._waited = 0.0
        self._out_of_budget = False

    @property
    def maybe_delivered(self) -> bool:
        """Whether an upstream may have executed the call although it gave no usable answer."""
        return any(failure.maybe_delivered for failure in self.failures)

    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self._ends_at - self._clock.monotonic()

    def next(self) -> PooledUpstream | None:
        """The upstream to ask next, which then counts as tried. None when none is left or the deadline is near."""
        now = self._clock.monotonic()
        if self._ends_at - now < LEAST_ATTEMPT_SECONDS:
            return None
        member = self._first(now) if not self.tried else self._another(now)
        if member is not None:
            self.tried.append(member)
            if not member.in_rotation and self.needs.may_probe:
                # One call tries out one upstream, not one after the other.
                self.needs = msgspec.structs.replace(self.needs, may_probe=False)
        return member

    def _first(self, now: float) -> PooledUpstream | None:
        needs = self.needs
        return first_choice(self._company, needs.method, needs.block, needs.archive, needs.may_probe, now)

    def _another(self, now: float) -> PooledUpstream | None:
        situation = situation_of(self._company, now)
        return choose(self.members, self.needs, situation, self._company.random, tried=self.tried)

    def time_for_attempt(self) -> float:
        """The time one attempt may take. An upstream that stalls must leave time for the next one."""
        return self.remaining() / 2 if len(self.tried) < len(self.members) else self.remaining()

    async def answer(self) -> Raw:
        """The first answer that an upstream gives, or the exception that says why there is none."""
        while (member := self._begun_at() or self.next()) is not None or await self.wait_for_budget():
            if member is None:
                continue
            try:
                delay = self._hedge_delay(member)
                return await (self.attempt(member) if delay is None else self._hedged_attempt(member, delay))
            except NodeUnable:
                if self.repeat is Repeat.NEVER:
                    raise
            except UpstreamFailure as failure:
                if self.repeat is Repeat.NEVER and failure.maybe_delivered:
                    break
            finally:
                self._let_go()
        raise self.verdict()

    def _let_go(self) -> None:
        """The frames that failed hold the answers that were refused, which may be large, and this run in a circle."""
        for failure in self.failures:
            failure.__traceback__ = failure.__context__ = None

    def _begun_at(self) -> PooledUpstream | None:
        return None if self._begun is None else self._begun.member

    async def attempt(self, member: PooledUpstream, *, hedge: bool = False) -> Raw:
        """One call to one upstream. What another upstream may do better is remembered in `failures`, and raised."""
        begun, self._begun = (self._begun, None) if not hedge else (None, self._begun)
        try:
            if begun is not None:
                result = await begun.outcome()
            else:
                result = await member.call(
                    self.needs.method,
                    self.params,
                    timeout=self.time_for_attempt(),
                    repeatable=self.repeat is Repeat.FREELY,
                    attempts=self.attempts,
                    hedge=hedge,
                )
        except NodeUnable as error:
            self.failures.append(error)
            self._unable.append(member)
            raise
        except UpstreamFailure as failure:
            self.failures.append(failure)
            if not failure.blames_upstream:
                self._unable.append(member)
            raise
        self.answered_by = member
        for unable in self._unable:
            # What could be taken for the doing of the call was not, since this upstream had an answer.
            unable.note_shortfall()
        return result

    def _hedge_delay(self, member: PooledUpstream) -> float | None:
        """How long to wait for this upstream before another is asked as well; None for as long as it takes."""
        if self._hedges is None or len(self.tried) == len(self.members):
            return None
        if self._begun is not None and self._begun.hedge_delay is not None:
            return self._begun.hedge_delay
        return hedge_delay(member, self.needs.method)

    async def _hedged_attempt(self, member: PooledUpstream, delay: float) -> Raw:
        probe, hedges, begun = not member.in_rotation, self._hedges, self._begun
        started = self._clock.monotonic() if begun is None else begun.started
        hedge = Hedge(self._company.watch, delay, lambda: self._second_attempt(member, free=probe))
        try:
            return await hedge.answer(self.attempt(member), due=begun is not None and begun.hedge_is_due)
        finally:
            if hedge.second_won and hedges is not None:
                hedges.won += 1
                member.overtaken(self.needs.method, self._clock.monotonic() - started)

    def _second_attempt(self, first: PooledUpstream, *, free: bool) -> Coroutine[Any, Any, Raw] | None:
        """The call to a second upstream, if a healthy one is left and the budget allows it. One is enough."""
        now = self._clock.monotonic()
        needs, situation = msgspec.structs.replace(self.needs, may_probe=False), situation_of(self._company, now)
        member = choose(self.members, needs, situation, self._company.random, tried=self.tried)
        if member is None or self._hedges is None or standing(member, needs, situation) is not Standing.READY:
            return None
        # An upstream without any sign of life does no work that could be doubled: leaving it is free.
        if not free and not first.silent(now) and not self._hedges.spend():
            return None
        self._hedges.sent += 1
        self._hedges = None
        self.tried.append(member)
        return self.attempt(member, hedge=True)

    def verdict(self) -> Exception:
        """What the caller is told when no upstream answered."""
        for failure in self.failures:
            if isinstance(failure, NodeError):
                # Every node that could be asked is unable: then that is the answer, in the first one's words.
                return failure
        if not self.failures and self.remaining() >= LEAST_ATTEMPT_SECONDS:
            return EveryUpstreamFailed(self._why_nobody())
        log.warning("upstream.all_failed", network=self.network, failures=[str(failure) for failure in self.failures])
        caution = ""
        if self.repeat is not Repeat.FREELY and self.maybe_delivered:
            caution = " The call may have taken effect all the same; look before sending it again."
        timed_out = all(isinstance(failure, UpstreamTimeoutError) for failure in self.failures)
        if timed_out or self.remaining() < LEAST_ATTEMPT_SECONDS:
            return DeadlinePassed(f"No upstream of {self.network} answered in time.{caution}")
        return EveryUpstreamFailed(f"Every upstream of {self.network} failed.{caution}")

    def _why_nobody(self) -> str:
        if self._out_of_budget:
            return f"Every upstream of {self.network} has reached its requests per second; try again in a second."
        return f"No upstream of {self.network} is configured to take {self.needs.method}."

    async def wait_for_budget(self) -> bool:
        """Wait, if an upstream will have budget again soon. False when there is nothing to wait for."""
        seconds = budget_wait(self.members, self.needs, self._clock.monotonic(), tried=self.tried)
        if seconds is None:
            return False
        self._out_of_budget = True
        allowed = min(_LONGEST_BUDGET_WAIT_SECONDS - self._waited, self.remaining() - LEAST_ATTEMPT_SECONDS)
        if seconds > allowed:
            return False
        self._waited += seconds
        await asyncio.sleep(seconds)
        return True


def situation_of(company: Company, now: float) -> Situation:
    """What concerns all upstreams alike at this moment."""
    heads = [member.head for member in company.members if member.head is not None]
    return Situation(now, max(heads, default=None), company.max_lag)


def first_choice(
    company: Company, method: str, block: int | None, archive: bool, may_probe: bool, now: float
) -> PooledUpstream | None:
    """The upstream to ask first, from what is remembered of the last choice as long as nothing has changed."""
    shortlists = company.shortlists
    version = 0
    if shortlists is not None:
        for member in company.members:
            version += member.version
        known = shortlists.get((method, block, archive))
        if known is not None and known[1] == version and now < known[0]:
            found = known[2]
            return found[0] if len(found) == 1 else by_weight(found, company.random)
    needs = Needs(method, block, archive, may_probe)
    found = shortlist(company.members, needs, situation_of(company, now))
    if shortlists is not None:
        shortlists.keep(needs, now, version, found)
    return by_weight(found, company.random)


def hedge_delay(member: PooledUpstream, method: str) -> float | None:
    """How long to wait for this upstream before another is asked as well; None for as long as it takes."""
    if not member.upstream.spec.hedge:
        return None
    usual = member.latencies.slow(method)
    if not member.in_rotation:
        # It may be as dead as before.
        return min(max(usual or _PROBE_HEDGE_SECONDS, _SOONEST_HEDGE_SECONDS), _PROBE_HEDGE_SECONDS)
    return None if usual is None or usual > _LATEST_HEDGE_SECONDS else max(usual, _SOONEST_HEDGE_SECONDS)
