"""One upstream as a member of a pool: the calls to it, and everything that is known of it.

Made by the registry, which keeps it over a reload when its configuration has not changed. Every call to an upstream
goes through `PooledUpstream.call`, or through `begin` and `end`, so that latencies, failures, the circuit breaker and
the budget miss nothing. It does not choose between upstreams and repeats nothing.
"""

from random import Random
from typing import Final

import structlog
from msgspec import Raw

from capstan.chain.budget import RateBudget
from capstan.chain.errors import ChainError, NodeError, UpstreamFailure, UpstreamUnreachable, outcome_of
from capstan.chain.health import PERIOD_SECONDS, BreakerState, CircuitBreaker, ErrorRate
from capstan.chain.latency import Latencies
from capstan.chain.models import Attempt
from capstan.chain.selection import MethodRules
from capstan.chain.trust import Trust
from capstan.chain.upstream import Upstream, UpstreamClient
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

# Bound once: in Python 3.11 to look up a member of an enum costs as much as a call.
_CLOSED: Final = BreakerState.CLOSED
# While calls are waiting, silence for longer than this, and three times what is usual, is suspicious.
_SILENCE_SECONDS = 1.0
_LONGEST_SILENCE_SECONDS = 5.0
# After so many calls that another upstream answered first, it is taken for silent, and tried again every second.
_OVERTAKEN_IN_A_ROW = 3
# What a failure is worth in waiting time when upstreams are compared: a call that always fails costs a second.
_FAILURE_SECONDS = 1.0


class PooledUpstream:
    """An upstream with its statistics. A `selection.Candidate`."""

    def __init__(
        self, upstream: UpstreamClient, clock: Clock, *, network: str = "", random: Random | None = None
    ) -> None:
        spec = upstream.spec
        self.upstream = upstream
        # The same, where calls can be begun without waiting for their end.
        self.over_http = upstream if isinstance(upstream, Upstream) else None
        self.name = upstream.name
        self.tier = spec.tier
        self.weight = spec.weight
        self.archive = spec.archive
        self.allows = MethodRules(spec.methods_allow, spec.methods_deny)
        self.breaker = CircuitBreaker(clock, random)
        self.trust = Trust(clock)
        self.latencies = Latencies(spec.hedge_quantile)
        self._note_latency = self.latencies.note
        self.in_flight = 0
        # Grows with everything that should change the choice of upstreams at once.
        self.version = 0
        # Calls by outcome, ever.
        self.outcomes: dict[str, int] = {}
        # The latest block (slot on Solana) it is known to have, and when that was noted; told by the head tracker.
        self.head: int | None = None
        self.head_at = 0.0
        self._network = network
        self._clock = clock
        self._monotonic = clock.monotonic
        self._budget = RateBudget(spec.requests_per_second)
        self._has_budget = spec.requests_per_second > 0
        # Failures, and errors of the node where another upstream had an answer.
        self._shortfalls = ErrorRate()
        self._waiting_since = 0.0
        # Calls in a row that another upstream answered first.
        self._overtaken = 0
        self._overtaken_at = 0.0

    @property
    def in_rotation(self) -> bool:
        """Whether the circuit breaker is closed and its answers are believed."""
        return self.breaker.state is _CLOSED and not (self.trust.until and self.trust.lost())

    @property
    def due(self) -> bool:
        """Whether it is out of rotation and one call should try it."""
        return self.breaker.due and not self.trust.lost()

    def note_head(self, number: int) -> None:
        """The upstream has this block as its latest."""
        self.version += number != self.head
        self.head = number
        self.head_at = self._clock.monotonic()

    def note_shortfall(self) -> None:
        """The node could not answer what another could. Makes it a worse choice for a while, no more than that."""
        self._shortfalls.note(self._clock.monotonic(), failed=True)
        self.version += 1

    def note_lie(self, method: str, reason: str) -> None:
        """Its answer was wrong. It is asked again when nobody else can answer, or when that has been a while ago."""
        seconds = self.trust.lose()
        self.version += 1
        log.warning(
            "upstream.not_believed",
            network=self._network,
            upstream=self.name,
            method=method,
            reason=reason,
            seconds=round(seconds, 1),
        )

    def error_rate(self) -> float:
        """The share of recent calls that it failed to answer."""
        return self._shortfalls.rate(self._clock.monotonic())

    def silent(self, now: float) -> bool:
        """Whether it gave no sign of life for suspiciously long while calls wait, or others were always faster."""
        if self._overtaken >= _OVERTAKEN_IN_A_ROW and now - self._overtaken_at < _SILENCE_SECONDS:
            return True
        if not self.in_flight or now - self._waiting_since <= _SILENCE_SECONDS:
            return False
        usual = self.latencies.overall.quantile(0.9) or 0.0
        return now - self._waiting_since > min(3 * usual, _LONGEST_SILENCE_SECONDS)

    def budget_wait(self, now: float) -> float:
        """How long until its budget allows a call; 0 when it does now."""
        return self._budget.wait_seconds(now)

    def cost(self, method: str, now: float) -> float | None:
        """What a call costs in seconds, failures included; None when nothing recent is known."""
        # While calls are waiting, the old estimate stands: one call at a time finds out whether it still holds.
        latency = self.latencies.median(method, now, keep_stale=self.in_flight > 0)
        failures = self._shortfalls.rate(now)
        if latency is None:
            return failures * _FAILURE_SECONDS if failures else None
        return latency + failures * _FAILURE_SECONDS

    async def call(
        self,
        method: str,
        params: bytes,
        *,
        timeout: float,
        repeatable: bool = True,
        attempts: list[Attempt] | None = None,
        hedge: bool = False,
    ) -> Raw:
        """One call to this upstream and no other, with its effect on all that is known of it."""
        started = self._clock.monotonic()
        probe = self.begin(started)
        failure: NodeError | UpstreamFailure | None = None
        given_up = True
        try:
            result = await self.upstream.call(method, params, timeout=timeout, repeatable=repeatable)
            given_up = False
            return result
        except (NodeError, UpstreamFailure) as error:
            failure, given_up = error, False
            raise
        finally:
            outcome = self.end(method, started, probe, failure, given_up=given_up)
            if attempts is not None:
                milliseconds = round((self._clock.monotonic() - started) * 1000, 3)
                attempts.append(Attempt(self.name, outcome, milliseconds, hedge))

    def begin(self, now: float) -> bool:
        """A call is about to be made. True when it tries out an upstream that is not in rotation. `end` must follow."""
        probe = self.breaker.begin()
        self.version += probe
        self.begin_plainly(now)
        return probe

    def begin_plainly(self, now: float) -> None:
        """A call is about to be made to an upstream that is in rotation. `end` or `end_well` must follow."""
        if self._has_budget:
            self._budget.spend(now)
        if not self.in_flight:
            self._waiting_since = now
        self.in_flight += 1

    def end_well(self, method: str, started: float) -> None:
        """A call that was begun plainly has a result. The same as `end`, for what nearly always happens."""
        breaker = self.breaker
        if breaker.state is not _CLOSED:
            self.end(method, started, False, None)
            return
        now = self._monotonic()
        self.in_flight -= 1
        # As `_lives` does, without calls.
        if self._overtaken or now - self._waiting_since > _SILENCE_SECONDS:
            self.version += 1
            self._overtaken = 0
        self._waiting_since = now
        self._note_latency(method, now - started, now)
        breaker.failures_in_a_row = 0
        shortfalls, errors = self._shortfalls, breaker.errors
        if now - shortfalls.since < PERIOD_SECONDS and now - errors.since < PERIOD_SECONDS:
            shortfalls.calls += 1
            errors.calls += 1
        else:
            shortfalls.passed(now)
            errors.passed(now)
        try:
            self.outcomes["ok"] += 1
        except KeyError:
            self.outcomes["ok"] = 1

    def end(
        self, method: str, started: float, probe: bool, failure: ChainError | None, *, given_up: bool = False
    ) -> str:
        """A call that was begun is over: with a result, with a failure, or because we gave it up. A word for that."""
        self.in_flight -= 1
        if given_up:
            outcome = "cancelled"
            self.breaker.abandoned(probe=probe)
            self.version += probe
        elif failure is None:
            outcome = "ok"
            self._answered(method, started, probe)
        else:
            outcome = outcome_of(failure)
            if isinstance(failure, UpstreamFailure):
                self._failed(method, failure, probe)
            else:
                self._answered(method, started, probe)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        return outcome

    async def poll(self, method: str, params: bytes, *, timeout: float) -> Raw:
        """One call for our own sake, such as for the head. It counts like any other.

        Only while the upstream is out of rotation and not due to be tried, the answer says nothing: a node that tells
        its head may still fail at everything else, and the pause shall last as long as it does.
        """
        if self.breaker.state is BreakerState.CLOSED or self.breaker.due:
            return await self.call(method, params, timeout=timeout)
        self._budget.spend(self._clock.monotonic())
        return await self.upstream.call(method, params, timeout=timeout)

    def overtaken(self, method: str, waited: float) -> None:
        """Another upstream answered first, after `waited` seconds here. No fault, but it took at least so long."""
        now = self._clock.monotonic()
        self.latencies.note(method, waited, now)
        self._overtaken += 1
        self._overtaken_at = now
        self.version += 1

    def _answered(self, method: str, started: float, probe: bool) -> None:
        self._lives(method, started, self._monotonic())
        if self.breaker.succeeded(probe=probe):
            # It starts anew: the failures that took it out of rotation are not held against it twice.
            self._shortfalls.clear()
            self.version += 1
            log.info("upstream.recovered", network=self._network, upstream=self.name)

    def _lives(self, method: str, started: float, now: float) -> None:
        """It gave a sign of life."""
        if self._overtaken or now - self._waiting_since > _SILENCE_SECONDS:
            self.version += 1
        self._waiting_since = now
        self._overtaken = 0
        self.latencies.note(method, now - started, now)
        self._shortfalls.passed(now)

    def _failed(self, method: str, failure: UpstreamFailure, probe: bool) -> None:
        log.debug("upstream.failure", network=self._network, method=method, failure=str(failure))
        if not failure.blames_upstream:
            self.breaker.abandoned(probe=probe)
            return
        self._shortfalls.note(self._clock.monotonic(), failed=True)
        self.version += 1
        # Nobody listens: more calls would only find the same.
        fatal = isinstance(failure, UpstreamUnreachable)
        if self.breaker.failed(probe=probe, fatal=fatal):
            log.warning("upstream.out_of_rotation", network=self._network, upstream=self.name, reason=failure.reason)
