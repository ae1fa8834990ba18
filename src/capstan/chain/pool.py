"""The upstreams of one network as one: a call goes in, an answer comes out, whichever upstream gives it.

Called by every capability through `Network.pool`. It holds what the upstreams of a network have in common and starts a
`Run` for each call. It does not know what methods mean beyond what may be repeated, does not cache, and does not judge
results.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeVar

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.broadcast import SUBMISSIONS, Broadcast
from capstan.chain.budget import HedgeBudget
from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.first import FirstAttempt, Maker
from capstan.chain.health import BreakerState
from capstan.chain.hedging import HedgeWatch
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt
from capstan.chain.run import LEAST_ATTEMPT_SECONDS, Company, Repeat, Run, first_choice, hedge_delay
from capstan.chain.selection import Explanation, Needs, Shortlists, Situation, explain
from capstan.core.clock import Clock

__all__ = ["FirstAttempt", "PooledUpstream", "Repeat", "UpstreamPool"]

log = structlog.get_logger(__name__)

# Bound once: in Python 3.11 to look up a member of an enum costs as much as a call.
_CLOSED: Final = BreakerState.CLOSED

T = TypeVar("T")


class UpstreamPool:
    """The upstreams of one network."""

    def __init__(
        self,
        network: str,
        members: Sequence[PooledUpstream],
        *,
        deadline_seconds: float,
        clock: Clock,
        max_lag: int = 3,
        broadcast: int = 3,
        hedge_share: float = 0.1,
        random: Random | None = None,
    ) -> None:
        self.network = network
        self.members = tuple(members)
        self.deadline_seconds = deadline_seconds
        self.max_lag = max_lag
        self._clock = clock
        self._monotonic = clock.monotonic
        self._alone = len(self.members) == 1
        self._broadcast = broadcast
        self.hedges = HedgeBudget(hedge_share)
        budgets = any(member.upstream.spec.requests_per_second for member in self.members)
        self._company = Company(
            network=network,
            members=self.members,
            max_lag=max_lag,
            clock=clock,
            random=random or Random(),
            hedges=self.hedges,
            watch=HedgeWatch(),
            shortlists=None if budgets else Shortlists(),
        )
        # Sendings of transactions whose callers have their answer already.
        self._background: set[asyncio.Task[Raw]] = set()

    @property
    def best_head(self) -> int | None:
        """The highest block that any upstream is known to have."""
        return max((member.head for member in self.members if member.head is not None), default=None)

    async def call(
        self,
        method: str,
        params: bytes,
        *,
        timeout: float | None = None,
        repeat: Repeat = Repeat.FREELY,
        needs_block: int | None = None,
        archive: bool = False,
        attempts: list[Attempt] | None = None,
        hedge: bool = True,
        begun: FirstAttempt | None = None,
    ) -> Raw:
        """The result of a call as JSON text; `params` is a JSON array.

        Upstreams that have the block `needs_block` come first, and with `archive` only those that have old state are
        asked, if there are any. What was tried is added to `attempts`. Without `hedge`, a second upstream is asked only
        when the first has failed. `begun` is the first attempt, if it was made by `begin` for this very call.

        Raises `NodeError` for the node's own error, `EveryUpstreamFailed` or `DeadlinePassed` when there is no answer.
        """
        freely = repeat is Repeat.FREELY
        needs = Needs(method, needs_block, archive, freely)
        seconds = self.deadline_seconds if timeout is None else timeout
        run = Run(self._company, needs, params, repeat, seconds, attempts, hedge and freely, begun)
        if begun is None:
            self.hedges.earn()
        if repeat is Repeat.ELSEWHERE and method in SUBMISSIONS:
            return await Broadcast(run, width=self._broadcast, background=self._background).answer()
        return await run.answer()

    def begin(
        self, method: str, params: bytes, timeout: float, needs_block: int | None, archive: bool, maker: Maker
    ) -> FirstAttempt | None:
        """Make the first attempt of a read without a task, if nothing stands in the way; else `call` must be used.

        The maker is told of a result. In any other case it is told to carry on: with `call`, and this attempt.
        """
        if timeout < LEAST_ATTEMPT_SECONDS:
            return None
        now = self._monotonic()
        member = first_choice(self._company, method, needs_block, archive, True, now)
        if member is None or member.over_http is None:
            return None
        # Its trust is looked at only when it was ever lost: nearly always that is all there is to look at.
        if (member.breaker.state is not _CLOSED or member.trust.until) and not member.in_rotation:
            return None
        # An upstream that stalls must leave time for the next one.
        seconds = timeout if self._alone else timeout / 2
        upstream = member.over_http
        composed = upstream.compose(method, params, seconds)
        if composed is None:
            return None
        call_id, request, deadline = composed
        attempt = FirstAttempt(request, deadline, True, member, upstream, method, now, maker, call_id)
        upstream.begin(attempt)
        member.begin_plainly(now)
        hedges = self.hedges
        if hedges.credit < hedges.most:
            hedges.earn()
        if not self._alone:
            delay = hedge_delay(member, method)
            if delay is not None:
                attempt.watch(self._company.watch, delay)
        return attempt

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """The decoded result of a read, for capabilities that need a few values and not bytes."""
        return await self.request_as(Any, method, params)

    async def request_as(self, kind: type[T], method: str, params: Sequence[object]) -> T:
        """The result of a read, decoded and checked to be a `kind`."""
        result = await self.call(method, msgspec.json.encode(params))
        try:
            return msgspec.json.decode(result, type=kind)
        except msgspec.DecodeError:
            log.warning("upstream.unexpected_result", network=self.network, method=method)
            raise EveryUpstreamFailed(f"An upstream of {self.network} answered {method} with something else.") from None

    def run(
        self,
        needs: Needs,
        params: bytes,
        *,
        timeout: float | None = None,
        repeat: Repeat = Repeat.FREELY,
        attempts: list[Attempt] | None = None,
    ) -> Run:
        """A call that has not begun and is not hedged, for those who need to know which upstream answered."""
        seconds = self.deadline_seconds if timeout is None else timeout
        return Run(self._company, needs, params, repeat, seconds, attempts, hedge=False)

    def explain(self, method: str, *, needs_block: int | None = None, archive: bool = False) -> list[Explanation]:
        """Where each upstream stands for such a call now, best first."""
        situation = Situation(self._clock.monotonic(), self.best_head, self.max_lag)
        return explain(self.members, Needs(method, needs_block, archive), situation)

    async def close(self) -> None:
        """End what is still going on behind answered calls."""
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
