"""Equal calls under way are one call; nobody pays for another's hanging up or running out of time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed
from capstan.rpc.cache.coalesce import Coalescer


class Upstream:
    """Calls that end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[str]] = []
        self.cancelled = 0

    async def call(self) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.calls.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def start(work: Coroutine[Any, Any, tuple[str, bool]]) -> "asyncio.Task[tuple[str, bool]]":
    return asyncio.create_task(work)


async def test_equal_calls_are_one_and_different_ones_are_not() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    tasks = [start(coalescer.run(key, upstream.call, timeout=30)) for key in ("a", "a", "b", "a")]
    await settle()
    assert len(upstream.calls) == 2
    upstream.calls[0].set_result("A")
    upstream.calls[1].set_result("B")
    assert await asyncio.gather(*tasks) == [("A", False), ("A", True), ("B", False), ("A", True)]
    assert len(coalescer) == 0


async def test_a_call_after_the_answer_is_a_new_call() -> None:
    coalescer: Coalescer[int] = Coalescer()
    count = 0

    async def call() -> int:
        nonlocal count
        count += 1
        return count

    assert await coalescer.run("a", call, timeout=30) == (1, False)
    assert await coalescer.run("a", call, timeout=30) == (2, False)


async def test_the_call_goes_on_when_the_first_hangs_up() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    first = start(coalescer.run("a", upstream.call, timeout=30))
    second = start(coalescer.run("a", upstream.call, timeout=30))
    await settle()
    first.cancel()
    await settle()
    upstream.calls[0].set_result("A")
    assert await second == ("A", True)
    assert first.cancelled()
    assert (len(upstream.calls), upstream.cancelled) == (1, 0)


async def test_the_call_is_cancelled_when_nobody_waits_any_more() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    tasks = [start(coalescer.run("a", upstream.call, timeout=30)) for _ in range(2)]
    await settle()
    for task in tasks:
        task.cancel()
    await settle()
    assert upstream.cancelled == 1
    assert len(coalescer) == 0


@pytest.mark.parametrize("failure", [TimeoutError(), DeadlinePassed("late"), None])
async def test_when_the_first_runs_out_of_time_one_other_asks_anew_for_the_rest(failure: Exception | None) -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    tasks = [start(coalescer.run("a", upstream.call, timeout=30)) for _ in range(4)]
    await settle()
    for call in range(2):
        if failure is None:
            upstream.calls[call].cancel()
        else:
            upstream.calls[call].set_exception(failure)
        await settle()
        # One at a time, not all at once.
        assert len(upstream.calls) == call + 2
    upstream.calls[2].set_result("A")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, type(failure) if failure else asyncio.CancelledError) for result in results[:2])
    assert results[2:] == [("A", False), ("A", True)]
    assert len(coalescer) == 0


async def test_a_failure_that_is_an_answer_is_one_for_all() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    tasks = [start(coalescer.run("a", upstream.call, timeout=30)) for _ in range(3)]
    await settle()
    upstream.calls[0].set_exception(EveryUpstreamFailed("no"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EveryUpstreamFailed) for result in results)
    assert len(upstream.calls) == 1


async def test_each_one_has_its_own_deadline() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    patient = start(coalescer.run("a", upstream.call, timeout=30))
    hasty = start(coalescer.run("a", upstream.call, timeout=0.01))
    with pytest.raises(TimeoutError):
        await hasty
    upstream.calls[0].set_result("A")
    assert await patient == ("A", False)


async def test_the_first_may_have_the_shortest_time() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    hasty = start(coalescer.run("a", upstream.call, timeout=0.01))
    patient = start(coalescer.run("a", upstream.call, timeout=30))
    with pytest.raises(TimeoutError):
        await hasty
    upstream.calls[0].set_exception(DeadlinePassed("late"))
    await settle()
    upstream.calls[1].set_result("A")
    assert await patient == ("A", False)


async def test_beyond_the_bounds_everyone_asks_alone() -> None:
    coalescer: Coalescer[str] = Coalescer(max_flights=1, max_waiters=2)
    upstream = Upstream()
    tasks = [start(coalescer.run(key, upstream.call, timeout=30)) for key in ("a", "a", "a", "b", "b")]
    await settle()
    assert len(upstream.calls) == 4
    for future in upstream.calls:
        future.set_result("A")
    assert [joined for _, joined in await asyncio.gather(*tasks)] == [False, True, False, False, False]


async def test_closing_ends_those_who_wait() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    tasks = [start(coalescer.run("a", upstream.call, timeout=30)) for _ in range(2)]
    await settle()
    await coalescer.close()
    await settle()
    assert all(task.cancelled() for task in tasks)
    assert upstream.cancelled == 1


async def test_those_who_ask_while_another_leads_get_its_result() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    flight = coalescer.lead("a")
    assert flight is not None
    assert coalescer.lead("a") is None
    tasks = [start(coalescer.run("a", upstream.call, timeout=30)) for _ in range(2)]
    await settle()
    assert not upstream.calls
    coalescer.land(flight, "A")
    assert await asyncio.gather(*tasks) == [("A", True), ("A", True)]
    assert len(coalescer) == 0


async def test_one_who_leads_may_go_on_as_everybody_else() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    flight = coalescer.lead("a")
    other = start(coalescer.run("a", upstream.call, timeout=30))
    await settle()
    leader = start(coalescer.run("a", upstream.call, timeout=30, led=flight))
    await settle()
    assert len(upstream.calls) == 1
    upstream.calls[0].set_result("A")
    assert await leader == ("A", False)
    assert await other == ("A", True)
    assert len(coalescer) == 0


async def test_when_the_one_who_leads_runs_out_of_time_the_others_go_on() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    flight = coalescer.lead("a")
    other = start(coalescer.run("a", upstream.call, timeout=30))
    await settle()
    leader = start(coalescer.run("a", upstream.call, timeout=30, led=flight))
    await settle()
    upstream.calls[0].set_exception(DeadlinePassed("too late"))
    with pytest.raises(DeadlinePassed):
        await leader
    await settle()
    upstream.calls[1].set_result("B")
    assert await other == ("B", False)
    assert len(coalescer) == 0


async def test_when_the_one_who_leads_gives_up_the_first_of_the_others_makes_the_call() -> None:
    coalescer: Coalescer[str] = Coalescer()
    upstream = Upstream()
    flight = coalescer.lead("a")
    assert flight is not None
    tasks = [start(coalescer.run("a", upstream.call, timeout=30)) for _ in range(2)]
    await settle()
    coalescer.abandon(flight)
    await settle()
    assert len(upstream.calls) == 1
    upstream.calls[0].set_result("A")
    assert await asyncio.gather(*tasks) == [("A", False), ("A", True)]
    alone = coalescer.lead("a")
    assert alone is not None
    coalescer.abandon(alone)
    assert len(coalescer) == 0


async def test_nobody_leads_beyond_the_bound_or_after_the_end() -> None:
    coalescer: Coalescer[str] = Coalescer(max_flights=1)
    flight = coalescer.lead("a")
    assert flight is not None
    assert coalescer.lead("b") is None
    waiting = start(coalescer.run("a", Upstream().call, timeout=30))
    await settle()
    await coalescer.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    coalescer.land(flight, "late")

    async def own() -> str:
        return "own"

    assert await coalescer.run("a", own, timeout=30, led=flight) == ("own", False)
    assert len(coalescer) == 0
