"""Asks upstreams one after the other until one gives an answer that passes a check.

Used by the guard for the caller's own question and by `evidence` for what the checks rest on. An answer that is refuted
is never returned: its upstream is not believed for a while, and the next one is asked. One that cannot be proved is
returned only when no upstream has one that can, and more than one upstream is in that position.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeUnable, UpstreamFailure
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt, Integrity
from capstan.chain.registry import Network
from capstan.chain.run import Run
from capstan.chain.selection import Needs
from capstan.core.clock import Clock
from capstan.rpc.integrity.claims import Refuted, Unproved, Unsettled
from capstan.rpc.integrity.metrics import IntegrityMetrics
from capstan.rpc.integrity.pinning import PinView

log = structlog.get_logger(__name__)

Check: TypeAlias = Callable[[PooledUpstream, Raw], Awaitable[None]]
Fetch: TypeAlias = Callable[[Run, PooledUpstream], Awaitable[Raw]]

_LEAST_SECONDS = 0.001
# Upstreams that must be of the same mind where nothing is proved, if there are so many.
VOICES = 2


class NothingConvincing(EveryUpstreamFailed):
    """There were answers, and none of them passed the check."""


class Case(msgspec.Struct, frozen=True):
    """One call whose answer is checked, and everything that is asked for its sake."""

    network: Network
    rules: Integrity
    view: PinView
    clock: Clock
    ends_at: float

    def remaining(self) -> float:
        """Seconds until the deadline of the call."""
        return max(_LEAST_SECONDS, self.ends_at - self.clock.monotonic())


class Inquiry:
    """Asks until an answer convinces."""

    def __init__(self, metrics: IntegrityMetrics) -> None:
        self._metrics = metrics

    async def ask(
        self,
        case: Case,
        needs: Needs,
        params: bytes,
        check: Check,
        *,
        attempts: list[Attempt] | None = None,
        avoid: PooledUpstream | None = None,
        fetch: Fetch | None = None,
    ) -> Raw:
        """The first answer that passes `check`. `avoid` is asked last.

        If none does, the best of those that cannot be proved, provided that several upstreams have no better one.
        Raises the node's error if an upstream gives one, `NothingConvincing` when no answer passed, and what the pool
        raises when there was none.
        """
        own: list[Attempt] | None = None if attempts is None else []
        run = case.network.pool.run(needs, params, timeout=case.remaining(), attempts=own)
        if avoid is not None and len(run.members) > 1:
            run.tried.append(avoid)
        unfit: list[str] = []
        doubtful: list[tuple[Unproved, PooledUpstream, Raw]] = []
        try:
            while (member := await self._next(run, avoid)) is not None:
                if member is avoid:
                    avoid = None
                try:
                    result = await (run.attempt(member) if fetch is None else fetch(run, member))
                    await check(member, result)
                    return result
                except (NodeUnable, UpstreamFailure):
                    continue
                except Refuted as lie:
                    self.caught(case, needs.method, member, lie)
                    unfit.append(member.name)
                except Unsettled as doubt:
                    log.debug("integrity.unsettled", network=run.network, upstream=member.name, reason=str(doubt))
                    unfit.append(member.name)
                except Unproved as doubt:
                    log.debug("integrity.unproved", network=run.network, upstream=member.name, reason=str(doubt))
                    unfit.append(member.name)
                    doubtful.append((doubt, member, result))
            chosen = _without_proof(run, doubtful)
            if chosen is not None:
                self._metrics.unproved(case.network.name, chosen[0].check)
                unfit.remove(chosen[1].name)
                return chosen[2]
        finally:
            for attempt in own or ():
                refuted = attempt.outcome == "ok" and attempt.upstream in unfit
                assert attempts is not None
                attempts.append(msgspec.structs.replace(attempt, outcome="refuted") if refuted else attempt)
        if unfit:
            raise NothingConvincing(
                f"No upstream of {run.network} gave an answer to {needs.method} that passes the checks."
            )
        raise run.verdict()

    def caught(self, case: Case, method: str, member: PooledUpstream, lie: Refuted) -> None:
        """An upstream gave an answer that is wrong."""
        self._metrics.refuted(case.network.name, lie.check)
        member.note_lie(method, str(lie))

    async def _next(self, run: Run, avoid: PooledUpstream | None) -> PooledUpstream | None:
        while (member := run.next()) is None:
            if await run.wait_for_budget():
                continue
            if avoid is None or avoid not in run.tried or len(run.members) == 1:
                return None
            # Better its own word than none.
            run.tried.remove(avoid)
            avoid = None
        return member


def able(run: Run) -> int:
    """How many upstreams may be asked such a question at all."""
    return sum(member.allows(run.needs.method) for member in run.members)


def _without_proof(
    run: Run, doubtful: list[tuple[Unproved, PooledUpstream, Raw]]
) -> tuple[Unproved, PooledUpstream, Raw] | None:
    """The answer to return although it is not proved: the first of those that are proved furthest.

    One upstream alone may have cut its answer short to hide that it is wrong, while the others are down.
    """
    if not doubtful or len(doubtful) < min(VOICES, able(run)):
        return None
    return next((one for one in doubtful if one[0].check != "header"), doubtful[0])
