"""A second upstream for reads that take unusually long."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from msgspec import Raw

from capstan.chain.errors import NodeError, UpstreamBadReply
from capstan.chain.hedging import Hedge, HedgeWatch
from capstan.chain.latency import ENOUGH_FOR_HEDGING
from capstan.chain.models import Attempt
from capstan.chain.pool import Repeat
from capstan.core.jsonrpc import ErrorObject
from tests.support.faulty_node import Setting, errors, held, pool_of, results, stalls, text

SOON = 0.01
HEDGED = {"hedge": True}


def reverted() -> NodeError:
    return NodeError(ErrorObject(3, "execution reverted"), Raw(b"{}"))


class Scene:
    """Two calls under the test's control."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[str] = loop.create_future()
        self.second: asyncio.Future[str] = loop.create_future()
        self.second_began = asyncio.Event()
        self.ended: list[str] = []
        self.hedge: Hedge[str] = Hedge(HedgeWatch(), SOON, self.start_second)
        self.task = asyncio.create_task(self.hedge.answer(self._watch("first", self.first)))

    def start_second(self) -> Coroutine[Any, Any, str]:
        self.second_began.set()
        return self._watch("second", self.second)

    async def _watch(self, name: str, future: Awaitable[str]) -> str:
        try:
            return await future
        except asyncio.CancelledError:
            self.ended.append(f"{name} cancelled")
            raise


async def scene(*, second: bool = True) -> Scene:
    made = Scene()
    if second:
        await asyncio.wait_for(made.second_began.wait(), 30)
    return made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_an_answer_in_time_needs_no_second_call() -> None:
    made = await scene(second=False)
    made.first.set_result("one")
    assert await made.task == "one"
    await asyncio.sleep(SOON * 3)
    assert not made.second_began.is_set()


async def test_the_second_answer_wins_and_the_first_call_is_cancelled() -> None:
    made = await scene()
    made.second.set_result("two")
    assert await made.task == "two"
    assert made.ended == ["first cancelled"]
    assert made.hedge.second_won
    assert made.task.cancelling() == 0


async def test_the_first_answer_still_wins_and_the_second_call_is_cancelled() -> None:
    made = await scene()
    made.first.set_result("one")
    assert await made.task == "one"
    await until(lambda: made.ended == ["second cancelled"])
    assert not made.hedge.second_won


async def test_a_failure_of_one_waits_for_the_other() -> None:
    made = await scene()
    made.second.set_exception(UpstreamBadReply("x", "broken"))
    await asyncio.sleep(0)
    made.first.set_result("one")
    assert await made.task == "one"
    made = await scene()
    made.first.set_exception(UpstreamBadReply("x", "broken"))
    await asyncio.sleep(0)
    made.second.set_result("two")
    assert await made.task == "two"


async def test_an_error_of_the_call_is_an_answer() -> None:
    made = await scene()
    made.second.set_exception(reverted())
    with pytest.raises(NodeError, match="reverted"):
        await made.task
    assert made.ended == ["first cancelled"]


async def test_both_ending_at_once_leaves_no_cancellation_behind() -> None:
    for first_before in (True, False):
        made = await scene()
        for future in (made.first, made.second) if first_before else (made.second, made.first):
            future.set_result("x")

        async def goes_on(made: Scene = made) -> str:
            answer = await made.task
            await asyncio.sleep(0)
            return answer

        assert await goes_on() == "x"
        assert made.task.cancelling() == 0


async def test_a_first_call_that_answers_in_spite_of_being_cancelled_leaves_no_cancellation_behind() -> None:
    began = asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "one"
        return "never"

    async def second() -> str:
        began.set()
        return "two"

    task = asyncio.create_task(Hedge(HedgeWatch(), SOON, second).answer(stubborn()))
    assert await asyncio.wait_for(task, 30) == "one"
    assert began.is_set()
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_ends_both() -> None:
    made = await scene()
    made.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made.task
    await until(lambda: sorted(made.ended) == ["first cancelled", "second cancelled"])


async def test_a_cancellation_from_outside_is_not_swallowed_when_the_second_answers_at_the_same_time() -> None:
    made = await scene()
    made.second.set_result("two")
    # One turn of the loop ends the second call; its end is what cancels the first.
    await asyncio.sleep(0)
    made.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made.task


# --- in the pool


async def warm_up(setting: Setting, calls: int = ENOUGH_FOR_HEDGING) -> None:
    for _ in range(calls):
        await setting.pool.request("m", [])


async def test_a_read_that_takes_unusually_long_is_answered_by_another_upstream() -> None:
    async with pool_of(results("0x1"), results("0x2"), upstream=HEDGED, real_time=True) as setting:
        await warm_up(setting)
        setting.nodes[0].answer = stalls
        attempts: list[Attempt] = []
        async with asyncio.timeout(30):
            assert bytes(await setting.pool.call("m", b"[]", attempts=attempts)) == b'"0x2"'
        assert sorted((attempt.upstream, attempt.outcome, attempt.hedge) for attempt in attempts) == [
            ("node-0", "cancelled", False),
            ("node-1", "ok", True),
        ]
        slow, other = setting.pool.members
        assert slow.in_rotation
        assert slow.error_rate() == 0
        assert [slow.in_flight, other.in_flight] == [0, 0]
        assert (setting.pool.hedges.sent, setting.pool.hedges.won) == (1, 1)


async def test_nothing_is_hedged_before_enough_is_known() -> None:
    gate = asyncio.Event()
    async with pool_of(results("0x1"), results("0x2"), upstream=HEDGED, real_time=True) as setting:
        await warm_up(setting, ENOUGH_FOR_HEDGING - 1)
        setting.nodes[0].answer = held(gate, results("0x1"))
        call = asyncio.create_task(setting.pool.request("m", []))
        await setting.nodes[0].wait_for_calls(ENOUGH_FOR_HEDGING)
        await asyncio.sleep(0.1)
        gate.set()
        assert await call == "0x1"
        assert setting.counts[1] == 0


@pytest.mark.parametrize("how", ["spec", "argument", "repeat"])
async def test_hedging_can_be_off(how: str) -> None:
    gate = asyncio.Event()
    spec = {"hedge": how != "spec"}
    async with pool_of(results("0x1"), results("0x2"), upstream=spec, real_time=True) as setting:
        await warm_up(setting)
        setting.nodes[0].answer = held(gate, results("0x1"))
        repeat = Repeat.NEVER if how == "repeat" else Repeat.FREELY
        call = asyncio.create_task(setting.pool.call("m", b"[]", repeat=repeat, hedge=how != "argument"))
        await setting.nodes[0].wait_for_calls(ENOUGH_FOR_HEDGING + 1)
        await asyncio.sleep(0.1)
        gate.set()
        assert bytes(await call) == b'"0x1"'
        assert setting.counts[1] == 0


async def test_hedges_stay_a_share_of_the_calls_when_everything_is_slow() -> None:
    gate = asyncio.Event()
    async with pool_of(results("0x1"), results("0x2"), upstream=HEDGED, real_time=True, in_order=False) as setting:
        await warm_up(setting, 80)
        for node in setting.nodes:
            node.answer = held(gate, results("0x3"))
            node.calls.clear()
        calls = [asyncio.create_task(setting.pool.request("m", [])) for _ in range(60)]
        await until(lambda: sum(setting.counts) >= 60 + 10)
        await asyncio.sleep(0.1)
        gate.set()
        assert await asyncio.gather(*calls) == ["0x3"] * 60
        assert setting.pool.hedges.sent <= 10 + 6


async def test_calls_stuck_on_a_dead_upstream_are_rescued_although_the_budget_is_spent() -> None:
    async with pool_of(results("0x1"), results("0x2"), upstream=HEDGED, real_time=True, timeout_seconds=15) as setting:
        await warm_up(setting)
        setting.nodes[0].answer = stalls
        async with asyncio.timeout(12):
            calls = [setting.pool.request("m", []) for _ in range(60)]
            assert await asyncio.gather(*calls) == ["0x2"] * 60
        assert setting.pool.hedges.sent > 20


async def test_calls_that_usually_take_long_are_not_doubled() -> None:
    async with pool_of(results("0x1"), results("0x2"), upstream=HEDGED) as setting:
        for _ in range(ENOUGH_FOR_HEDGING):
            setting.pool.members[0].latencies.note("debug_traceBlock", 3.0, setting.clock.monotonic())
        setting.nodes[0].answer = stalls
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(setting.pool.request("debug_traceBlock", []), 0.3)
        assert setting.counts == [1, 0]


async def test_a_failing_hedge_does_not_spoil_the_first_answer() -> None:
    gate = asyncio.Event()
    async with pool_of(results("0x1"), text("<html>"), upstream=HEDGED, real_time=True) as setting:
        await warm_up(setting)
        setting.nodes[0].answer = held(gate, errors(3, "execution reverted"))
        call = asyncio.create_task(setting.pool.request("m", []))
        await setting.nodes[1].wait_for_calls(1)
        await until(lambda: setting.pool.members[1].in_flight == 0)
        gate.set()
        with pytest.raises(NodeError, match="reverted"):
            await call


async def test_an_upstream_that_is_always_overtaken_becomes_a_worse_choice() -> None:
    async with pool_of(results("0x1"), results("0x2"), upstream=HEDGED, real_time=True, in_order=False) as setting:
        await warm_up(setting, 80)
        setting.nodes[0].answer = stalls
        setting.nodes[0].calls.clear()
        # Less than the time of one attempt: nobody waited for the stalling upstream.
        async with asyncio.timeout(4):
            for _ in range(100):
                assert await setting.pool.request("m", []) == "0x2"
        assert setting.counts[0] <= 8


async def test_trying_an_upstream_that_is_still_dead_does_not_delay_the_caller() -> None:
    async with pool_of(text("<html>"), results("0x2"), upstream=HEDGED) as setting:
        for _ in range(3):
            await setting.pool.request("m", [])
        setting.nodes[0].answer = stalls
        setting.clock.advance(1.0)
        async with asyncio.timeout(30):
            assert await setting.pool.request("m", []) == "0x2"
        assert setting.counts[0] == 4
        # The try was given up, so it is made again after another pause, and not before.
        assert await setting.pool.request("m", []) == "0x2"
        assert setting.counts[0] == 4
        setting.nodes[0].answer = results("0x1")
        setting.clock.advance(1.0)
        assert await setting.pool.request("m", []) == "0x1"


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_the_share_of_doubled_calls_is_that_of_the_network(share: float) -> None:
    async with pool_of(results("0x1"), results("0x2"), hedge_share=share) as setting:
        doubled = 0
        for _ in range(40):
            setting.pool.hedges.earn()
            doubled += setting.pool.hedges.spend()
        assert doubled == 40 * share


async def test_what_is_slow_is_the_quantile_of_the_upstream() -> None:
    async with pool_of(results("0x1"), upstream={"hedge_quantile": 0.5}) as setting:
        latencies = setting.pool.members[0].latencies
        for tenths in range(20):
            latencies.note("eth_call", tenths / 10, setting.clock.monotonic())
        assert latencies.slow("eth_call") == pytest.approx(1.0)
