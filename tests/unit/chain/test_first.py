"""The first attempt of a read without a task: told at once when all is well, carried on by a run when it is not.

Whatever is known of an upstream must come out as it does for calls that are made by a task.
"""

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.latency import ENOUGH_FOR_HEDGING
from capstan.chain.pool import FirstAttempt, UpstreamPool
from tests.support.faulty_node import Answer, errors, held, pool_of, resets, results, stalls, text

ANSWER = results("0x1")


class Maker:
    """Notes what it is told, and carries on like the forwarder."""

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool
        self.results: list[bytes] = []
        self.carried_on = 0
        self.told = asyncio.Event()
        self.attempt: FirstAttempt | None = None

    def begin(self, timeout: float = 5.0) -> bool:
        self.attempt = self.pool.begin("m", b"[]", timeout=timeout, needs_block=None, archive=False, maker=self)
        return self.attempt is not None

    def answered(self, result: Raw) -> None:
        self.results.append(bytes(result))
        self.told.set()

    def carry_on(self) -> None:
        self.carried_on += 1
        self.told.set()

    async def outcome(self) -> bytes:
        """The result, by itself or carried on."""
        assert self.begin()
        await self.told.wait()
        if self.results:
            return self.results[0]
        return bytes(await self.pool.call("m", b"[]", timeout=30.0, begun=self.attempt))


async def test_a_result_is_told_and_counts_like_any_other() -> None:
    async with pool_of(ANSWER) as setting:
        maker = Maker(setting.pool)
        assert await maker.outcome() == b'"0x1"'
        assert maker.carried_on == 0
        member = setting.pool.members[0]
        assert member.outcomes == {"ok": 1}
        assert member.in_flight == 0
        assert sum(member.latencies.histogram) == 1
        assert setting.counts == [1]


@pytest.mark.parametrize(
    "failure", [text("<html>"), errors(-32005, "rate limit exceeded"), resets, text("", status=503)]
)
async def test_after_a_failure_the_next_upstream_is_asked(failure: Answer) -> None:
    async with pool_of(failure, results("0x2")) as setting:
        maker = Maker(setting.pool)
        assert await maker.outcome() == b'"0x2"'
        assert maker.carried_on == 1


@pytest.mark.parametrize("failure", [text("<html>"), errors(-32005, "busy"), errors(3, "execution reverted"), resets])
async def test_all_that_is_known_of_upstreams_comes_out_as_for_calls_of_a_task(failure: Answer) -> None:
    known: list[Any] = []
    for first in (True, False):
        async with pool_of(failure, results("0x2")) as setting:
            pool = setting.pool
            for _ in range(3):
                with contextlib.suppress(NodeError):
                    await (Maker(pool).outcome() if first and pool.members[0].in_rotation else pool.call("m", b"[]"))
            known.append(
                [
                    (member.outcomes, member.in_flight, member.breaker.state, member.error_rate(), member.version)
                    for member in pool.members
                ]
                + [setting.counts, pool.hedges.sent]
            )
    assert known[0] == known[1]


async def test_an_error_of_the_node_is_the_answer() -> None:
    async with pool_of(errors(3, "execution reverted", "0x08c379a0"), results("0x2")) as setting:
        with pytest.raises(NodeError, match="reverted"):
            await Maker(setting.pool).outcome()
        assert setting.counts == [1, 0]
        assert setting.pool.members[0].outcomes == {"node_error": 1}


async def test_a_stalling_upstream_leaves_time_for_the_next() -> None:
    async with pool_of(stalls, results("0x2"), timeout_seconds=0.2) as setting:
        assert await Maker(setting.pool).outcome() == b'"0x2"'
        assert setting.pool.members[0].outcomes == {"timeout": 1}


async def test_when_nobody_answers_the_failure_is_the_same() -> None:
    async with pool_of(text("<html>"), text("<html>")) as setting:
        with pytest.raises(EveryUpstreamFailed):
            await Maker(setting.pool).outcome()
        assert setting.counts == [1, 1]


async def test_a_second_upstream_is_asked_when_the_first_takes_unusually_long() -> None:
    gate = asyncio.Event()
    gate.set()
    slow = held(gate, results("0x1"))
    async with pool_of(slow, results("0x2"), real_time=True, upstream={"hedge": True}) as setting:
        for _ in range(ENOUGH_FOR_HEDGING):
            assert await Maker(setting.pool).outcome() == b'"0x1"'
        gate.clear()
        maker = Maker(setting.pool)
        assert await maker.outcome() == b'"0x2"'
        assert maker.carried_on == 1
        assert (setting.pool.hedges.sent, setting.pool.hedges.won) == (1, 1)
        first, second = setting.pool.members
        assert first.outcomes == {"ok": ENOUGH_FOR_HEDGING, "cancelled": 1}
        assert second.outcomes == {"ok": 1}
        assert first.in_flight == second.in_flight == 0
        gate.set()


async def test_the_first_may_still_win_after_the_second_was_asked() -> None:
    first_gate, second_gate = asyncio.Event(), asyncio.Event()
    first_gate.set()
    answers = (held(first_gate, results("0x1")), held(second_gate, results("0x2")))
    async with pool_of(*answers, real_time=True, upstream={"hedge": True}) as setting:
        for _ in range(ENOUGH_FOR_HEDGING):
            await Maker(setting.pool).outcome()
        first_gate.clear()
        waiting = asyncio.create_task(Maker(setting.pool).outcome())
        await setting.nodes[1].wait_for_calls(1)
        first_gate.set()
        assert await waiting == b'"0x1"'
        assert setting.pool.hedges.won == 0
        assert setting.pool.members[1].in_flight == 0
        second_gate.set()


async def test_giving_up_says_nothing_about_the_upstream() -> None:
    async with pool_of(stalls, timeout_seconds=0.3) as setting:
        maker = Maker(setting.pool)
        assert maker.begin()
        assert maker.attempt is not None
        await setting.nodes[0].wait_for_calls(1)
        maker.attempt.give_up()
        maker.attempt.give_up()
        member = setting.pool.members[0]
        assert member.outcomes == {"cancelled": 1}
        assert member.in_flight == 0
        # Not even when its time is over.
        await asyncio.sleep(0.5)
        assert not maker.told.is_set()
        assert member.outcomes == {"cancelled": 1}


async def test_a_run_that_is_cancelled_gives_the_attempt_up() -> None:
    async with pool_of(stalls, stalls, real_time=True, upstream={"hedge": True}) as setting:
        maker = Maker(setting.pool)
        assert maker.begin()
        running = asyncio.create_task(setting.pool.call("m", b"[]", timeout=30.0, begun=maker.attempt))
        await setting.nodes[0].wait_for_calls(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert setting.pool.members[0].outcomes == {"cancelled": 1}
        assert setting.pool.members[0].in_flight == 0


async def test_a_restarted_upstream_is_asked_once_more_before_it_counts_as_failed() -> None:
    async with pool_of(ANSWER) as setting:
        assert await Maker(setting.pool).outcome() == b'"0x1"'
        await setting.nodes[0].stop()
        await setting.nodes[0].start_again()
        assert await Maker(setting.pool).outcome() == b'"0x1"'
        assert setting.pool.members[0].outcomes == {"ok": 2}


async def test_nothing_is_begun_where_a_task_is_needed() -> None:
    async with pool_of(ANSWER, upstream={"requests_per_second": 5}) as setting:
        makers = [Maker(setting.pool) for _ in range(6)]
        assert [maker.begin() for maker in makers] == [True] * 5 + [False], "the budget is spent"
    async with pool_of(ANSWER) as setting:
        assert not Maker(setting.pool).begin(timeout=0.001), "there is no time left"
    async with pool_of(text("<html>")) as setting:
        for _ in range(3):
            with pytest.raises(EveryUpstreamFailed):
                await setting.pool.call("m", b"[]")
        assert not setting.pool.members[0].in_rotation
        assert not Maker(setting.pool).begin(), "an upstream that is tried out again needs a watchful eye"
        assert setting.pool.members[0].in_flight == 0
    async with pool_of(ANSWER) as setting:
        await setting.pool.members[0].upstream.close()
        assert not Maker(setting.pool).begin(), "the service is shutting down"


async def test_the_second_try_after_a_cut_has_only_what_is_left_of_the_time() -> None:
    gate = asyncio.Event()
    answers = iter([held(gate, resets), stalls])

    async def cuts_then_hangs(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await next(answers)(request, call)

    async with pool_of(cuts_then_hangs, timeout_seconds=1.0) as setting:
        maker = Maker(setting.pool)
        assert maker.begin()
        assert maker.attempt is not None
        deadline = maker.attempt.deadline
        await asyncio.sleep(0.5)
        gate.set()
        await setting.nodes[0].wait_for_calls(2)
        assert maker.attempt.deadline == deadline
        await maker.told.wait()
        assert asyncio.get_running_loop().time() < deadline + 0.4
        assert setting.pool.members[0].outcomes == {"timeout": 1}
