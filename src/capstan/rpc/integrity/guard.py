"""The way that calls of a network with `quorum` or `verify` take to its upstreams.

Called by the forwarder in place of the pool, for reads that one of the two settings covers. It names the block that
`latest` shall mean, chooses the check and returns the bytes of an answer that has passed it. Nothing is cached here,
and what has not passed is returned to nobody. Calls about pending transactions cannot be checked and go to the pool.
"""

import asyncio
from collections.abc import Callable

from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt, Integrity, Quorum
from capstan.chain.registry import Network
from capstan.chain.selection import Needs
from capstan.core.clock import Clock
from capstan.rpc.integrity.claims import Refuted
from capstan.rpc.integrity.evidence import Evidence
from capstan.rpc.integrity.inquiry import Case, Inquiry
from capstan.rpc.integrity.metrics import IntegrityMetrics
from capstan.rpc.integrity.pinning import NotPinnable, Pinned, PinView, pin
from capstan.rpc.integrity.verifying import Verifier
from capstan.rpc.integrity.voting import Vote

# How long a call waits for enough upstreams to have the announced head; after that an older block is `latest` for it.
_LONGEST_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 0.02


class Guard:
    """Checked calls to the upstreams of any network."""

    def __init__(
        self, clock: Clock, *, view: Callable[[Network], PinView], metrics: IntegrityMetrics | None = None
    ) -> None:
        self._clock = clock
        self._view = view
        self._metrics = metrics or IntegrityMetrics()
        self._inquiry = Inquiry(self._metrics)
        self._evidence = Evidence(self._inquiry, self._metrics)
        self._verifier = Verifier(self._evidence, self._metrics)
        # Late voices of votes whose callers have their answer.
        self._background: set[asyncio.Task[None]] = set()

    def covers(self, rules: Integrity, method: str) -> bool:
        """Whether answers to the method are checked."""
        return method in rules.quorum or (rules.verify and self._verifier.covers(method))

    async def call(
        self,
        network: Network,
        rules: Integrity,
        method: str,
        params: bytes,
        *,
        timeout: float,
        archive: bool = False,
        attempts: list[Attempt] | None = None,
    ) -> Raw:
        """The result of a call, checked. Raises what the pool raises, `EveryUpstreamFailed` when no answer passes."""
        case = Case(network, rules, self._view(network), self._clock, self._clock.monotonic() + timeout)
        rule = rules.quorum.get(method)
        try:
            pinned = await self._pin(case, rule, method, params)
        except NotPinnable:
            self._metrics.unproved(network.name, "pending")
            return await network.pool.call(method, params, timeout=timeout, archive=archive, attempts=attempts)
        needs = Needs(method, pinned.block, archive)

        async def check(member: PooledUpstream, result: Raw) -> None:
            await self._verifier.check(case, member, method, pinned.params, result)

        verify = rules.verify and self._verifier.covers(method)
        if rule is None:
            return await self._inquiry.ask(case, needs, pinned.params, check, attempts=attempts)

        async def check_voice(member: PooledUpstream, result: Raw) -> None:
            try:
                await check(member, result)
            except Refuted as lie:
                self._inquiry.caught(case, method, member, lie)
                raise

        vote = Vote(
            network.pool.run(needs, pinned.params, timeout=case.remaining(), attempts=[]),
            rule,
            self._metrics,
            check=check_voice if verify else None,
            background=self._background,
            explained=attempts,
        )
        return await vote.answer()

    def forget(self, network: str) -> None:
        """The chain of the network has begun anew: what was said of it is not vouched for any more."""
        self._evidence.forget(network)

    async def close(self) -> None:
        """End what is still going on behind answered calls."""
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pin(self, case: Case, rule: Quorum | None, method: str, params: bytes) -> Pinned:
        view, spec = case.view, case.network.spec
        head = view.latest_number
        if not view.is_fresh:
            # Nobody has asked about the network for a while.
            view.nudge()
            await _until(lambda: view.is_fresh, case)
            head = view.latest_number
        if head is None:
            raise EveryUpstreamFailed(f"The head of {spec.name} is not known yet, so that answers cannot be checked.")
        pinned = pin(spec.family, method, params, head, view)
        enough = 1 if rule is None else rule.agree
        if (
            pinned.block is None
            or pinned.block < head
            or _having(case, method, head) >= enough
            or len(_heads(case, method)) < enough
        ):
            return pinned
        view.nudge()
        if await _until(lambda: _having(case, method, head) >= enough, case):
            return pinned
        return pin(spec.family, method, params, _reached_by(case, method, enough) or head, view)


async def _until(condition: Callable[[], bool], case: Case) -> bool:
    """Wait for a condition, for a moment. Whether it came about."""
    for _ in range(int(min(_LONGEST_WAIT_SECONDS, case.remaining() / 2) / _LOOK_SECONDS)):
        if condition():
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return condition()


def _heads(case: Case, method: str) -> list[int]:
    """The heads of the upstreams that may be asked, the highest first. One that is not known counts as the lowest."""
    members = [member for member in case.network.pool.members if member.in_rotation and member.allows(method)]
    return sorted((-1 if member.head is None else member.head for member in members), reverse=True)


def _having(case: Case, method: str, head: int) -> int:
    """How many upstreams are known to have the block."""
    return sum(height >= head for height in _heads(case, method))


def _reached_by(case: Case, method: str, enough: int) -> int | None:
    """The highest block that enough upstreams have; None when that is not known."""
    heads = _heads(case, method)
    return heads[enough - 1] if len(heads) >= enough and heads[enough - 1] >= 0 else None
