"""One answer from several upstreams: so many of those asked must give the same one.

Called by the guard for methods that have a quorum. As many upstreams as the rule names are asked at once; one that
does not answer is replaced by the next. The first answer that enough of them give is the answer, in the bytes of
whoever gave it first. Answers that the check leaves unproved count only when it proves none. Those that gave another
are not believed for a while. When no answer has enough voices nobody is blamed, since nobody knows who is right, and
the caller gets an error.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError, NodeUnable, UpstreamFailure
from capstan.chain.member import PooledUpstream
from capstan.chain.models import Attempt, Quorum
from capstan.chain.run import Run
from capstan.rpc.integrity.claims import Refuted, Unproved, Unsettled
from capstan.rpc.integrity.metrics import IntegrityMetrics
from capstan.rpc.integrity.sameness import same_key, shortened

log = structlog.get_logger(__name__)

Answer: TypeAlias = Raw | NodeError
# Looks at an answer before it counts; raises `Refuted`, `Unsettled` or `Unproved`.
Check: TypeAlias = Callable[[PooledUpstream, Raw], Awaitable[None]]

# The attempts keep the deadline themselves; this only makes sure that they are heard first.
_MARGIN_SECONDS = 0.25
_MOST_IN_BACKGROUND = 256
# No answer, or one that does not count; the last two, because what it had to be checked against could not be had.
_NO_VOICE = (NodeUnable, UpstreamFailure, Refuted, Unsettled, Unproved, EveryUpstreamFailed, DeadlinePassed)


class Vote:
    """One call to several upstreams. Used once."""

    def __init__(
        self,
        run: Run,
        rule: Quorum,
        metrics: IntegrityMetrics,
        *,
        check: Check | None = None,
        background: set[asyncio.Task[None]],
        explained: list[Attempt] | None = None,
    ) -> None:
        """`run` must have been made with a list of attempts. `explained` gets them with the outcome of the vote."""
        self._run = run
        self._rule = rule
        self._metrics = metrics
        self._check = check
        self._background = background
        self._explained = explained
        self._pending: dict[asyncio.Task[Answer], PooledUpstream] = {}
        self._answers: dict[bytes, list[tuple[PooledUpstream, Answer]]] = {}
        self._doubtful: list[tuple[Unproved, PooledUpstream, Raw]] = []
        self._answered = 0
        self._handed_over = False

    async def answer(self) -> Raw:
        """The answer that enough upstreams gave. Raises the node's error if that is it, else `EveryUpstreamFailed`."""
        try:
            winner = await self._count()
            if winner is not None and self._pending and self._explained is not None:
                # Who asks how the answer came about wants to know of all voices.
                await self._hear_rest()
            self._judge(winner)
            if winner is None:
                raise self._verdict()
            found = self._answers[winner][0][1]
            if isinstance(found, NodeError):
                raise found
            return found
        finally:
            self._explain()
            if not self._handed_over:
                for task in self._pending:
                    task.cancel()

    async def _count(self) -> bytes | None:
        """Ask, until one answer has enough voices or nobody is left. The key of that answer."""
        await self._ask_more()
        while self._pending:
            done, _ = await asyncio.wait(
                self._pending,
                timeout=max(0.0, self._run.remaining()) + _MARGIN_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                return None
            for task in done:
                key = self._hear(task)
                if key is not None and len(self._answers[key]) >= self._rule.agree:
                    return key
            await self._ask_more()
        return self._count_unproved()

    def _count_unproved(self) -> bytes | None:
        """Nobody is left to ask. If no result was proved, those count that could not be. The key of that answer."""
        if any(not isinstance(given[0][1], NodeError) for given in self._answers.values()):
            return None
        proved_furthest = [one for one in self._doubtful if one[0].check != "header"] or self._doubtful
        for doubt, member, result in proved_furthest:
            self._metrics.unproved(self._run.network, doubt.check)
            self._answers.setdefault(same_key(result), []).append((member, result))
            self._answered += 1
        return next((key for key, given in self._answers.items() if len(given) >= self._rule.agree), None)

    async def _ask_more(self) -> None:
        """Ask as many as the rule wants, those that are out of rotation only where too few others are left."""
        while self._answered + len(self._pending) < self._rule.of:
            member = self._run.next()
            if member is None:
                if self._pending or self._answered >= self._rule.agree or not await self._run.wait_for_budget():
                    return
                continue
            needed = self._run.needs.block
            if needed is not None and member.head is not None and member.head < needed:
                # It would answer truly, of an older block.
                continue
            if not member.in_rotation and self._answered + len(self._pending) >= self._rule.agree:
                return
            self._pending[asyncio.create_task(self._ask(member), name="quorum")] = member

    async def _ask(self, member: PooledUpstream) -> Answer:
        try:
            result = await self._run.attempt(member)
        except NodeUnable:
            raise
        except NodeError as error:
            return error
        if self._check is not None:
            try:
                await self._check(member, result)
            except Unproved as doubt:
                self._doubtful.append((doubt, member, result))
                raise
        return result

    def _hear(self, task: asyncio.Task[Answer]) -> bytes | None:
        """Take note of a voice. The key of its answer; None when it gave none."""
        member = self._pending.pop(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, _NO_VOICE):
            return None
        if error is not None:
            raise error
        answer = task.result()
        key = same_key(answer)
        self._answers.setdefault(key, []).append((member, answer))
        self._answered += 1
        return key

    async def _hear_rest(self) -> None:
        if self._pending:
            done, _ = await asyncio.wait(self._pending, timeout=max(0.0, self._run.remaining()))
            for task in done:
                self._hear(task)

    def _judge(self, winner: bytes | None) -> None:
        """Say who gave which answer, and believe those less who were outvoted."""
        if len(self._answers) > 1:
            self._metrics.disagreed(self._run.network, self._run.needs.method)
            log.warning(
                "integrity.disagreement",
                network=self._run.network,
                method=self._run.needs.method,
                agreed=[] if winner is None else [member.name for member, _ in self._answers[winner]],
                answers={
                    member.name: shortened(answer) for given in self._answers.values() for member, answer in given
                },
            )
        if winner is None:
            self._metrics.undecided(self._run.network, self._run.needs.method)
            return
        for key, given in self._answers.items():
            if key != winner:
                for member, _ in given:
                    member.note_lie(self._run.needs.method, "outvoted by other upstreams")
        if self._pending and len(self._background) < _MOST_IN_BACKGROUND:
            self._listen_on(winner)

    def _listen_on(self, winner: bytes) -> None:
        """The caller has its answer. Those who have not spoken yet are heard all the same, so that a lie is noticed."""
        task = asyncio.create_task(self._late(winner), name="quorum, late voices")
        self._handed_over = True
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _late(self, winner: bytes) -> None:
        before = set(self._answers)
        agreed = self._answers[winner]
        try:
            await self._hear_rest()
        except Exception:
            # A mistake of ours; nobody waits for this task.
            log.exception("integrity.mistake", network=self._run.network)
        finally:
            for task in self._pending:
                task.cancel()
        late = {key: given for key, given in self._answers.items() if key not in before}
        if late:
            self._answers = {winner: agreed, **late}
            self._pending.clear()
            self._judge(winner)

    def _verdict(self) -> Exception:
        network, method, rule = self._run.network, self._run.needs.method, self._rule
        if self._answered >= rule.agree:
            return EveryUpstreamFailed(
                f"The upstreams of {network} disagree about {method}: of {self._answered} answers no {rule.agree} are"
                " the same."
            )
        log.warning(
            "integrity.too_few_answers",
            network=network,
            method=method,
            needed=rule.agree,
            failures=[str(failure) for failure in self._run.failures],
        )
        return EveryUpstreamFailed(
            f"{rule.agree} upstreams of {network} must agree on {method}, and only {self._answered} answered."
        )

    def _explain(self) -> None:
        """Add the attempts, each with what became of its answer."""
        if self._explained is None:
            return
        voices = {member.name: key for key, given in self._answers.items() for member, _ in given}
        most = max(self._answers.values(), key=len, default=[])
        best = same_key(most[0][1]) if len(most) >= self._rule.agree else None
        for attempt in self._run.attempts or ():
            key = voices.get(attempt.upstream)
            if key is not None and attempt.outcome in ("ok", "node_error"):
                outcome = attempt.outcome if best is None else "agrees" if key == best else "outvoted"
                attempt = msgspec.structs.replace(attempt, outcome=outcome)
            elif key is None and attempt.outcome == "ok":
                attempt = msgspec.structs.replace(attempt, outcome="refuted")
            self._explained.append(attempt)
