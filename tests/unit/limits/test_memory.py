"""What only the memory limiter promises: answers at once, by the clock it was given, without a database."""

import pytest

from capstan.core.clock import ManualClock
from capstan.limits.models import REQUESTS_PER_DAY, REQUESTS_PER_SECOND, Decision, Limits
from capstan.limits.windows import EXACT_ENTRIES
from tests.unit.limits.parts import memory_limiter

FREE = Limits(10, 0, 200)


def _allowed(decision: Decision | None) -> bool:
    assert decision is not None
    return decision.allowed


def test_reset_is_the_second_at_which_the_window_is_empty_again() -> None:
    clock = ManualClock(now=1_700_000_000.25)
    limiter = memory_limiter(clock)
    first = limiter.take_now("a", FREE)
    clock.advance(0.5)
    second = limiter.take_now("a", FREE)
    assert first is not None
    assert second is not None
    # 00.25 + 1 is during the second 01, so the window has fully reset at 02; 00.75 + 1 likewise.
    assert (first.reset, second.reset) == (1_700_000_002, 1_700_000_002)
    clock.advance(0.5)
    third = limiter.take_now("a", FREE)
    assert third is not None
    assert third.reset == 1_700_000_003


async def test_an_untouched_window_has_reset_already() -> None:
    limiter = memory_limiter(ManualClock(now=1_700_000_000.25))
    assert await limiter.peek("a", FREE) == Decision(True, 10, 10, 1_700_000_001, 0, "")


def test_a_jump_of_the_wall_clock_does_not_open_the_window() -> None:
    clock = ManualClock()
    limiter = memory_limiter(clock)
    assert all(_allowed(limiter.take_now("a", FREE)) for _ in range(10))
    clock._now += 3_600
    assert not _allowed(limiter.take_now("a", FREE))
    clock._now -= 7_200
    clock.advance(1.0)
    assert _allowed(limiter.take_now("a", FREE))


def test_accounts_without_a_day_limit_never_reach_the_database() -> None:
    limiter = memory_limiter()
    for limits in (Limits(0, 0, 0), FREE, Limits(0, 0, 50)):
        assert limiter.take_now("a", limits) is not None


def test_a_batch_larger_than_the_day_can_never_pass() -> None:
    decision = memory_limiter().take_now("a", Limits(0, 10, 0), requests=11)
    assert decision is not None
    assert (decision.allowed, decision.reason, decision.fits_never) == (False, REQUESTS_PER_DAY, True)


@pytest.mark.parametrize(("requests", "units"), [(-1, 1), (1, -1)])
def test_a_negative_cost_is_refused_as_a_mistake(requests: int, units: int) -> None:
    with pytest.raises(ValueError, match="zero or more"):
        memory_limiter().take_now("a", FREE, requests=requests, units=units)


def test_messages_that_are_no_requests_use_units_only() -> None:
    limiter = memory_limiter()
    for _ in range(200):
        pushed = limiter.take_now("a", FREE, requests=0, units=1)
        assert pushed is not None
        assert (pushed.allowed, pushed.remaining) == (True, 10)
    assert not _allowed(limiter.take_now("a", FREE, requests=0, units=1))
    free_call = limiter.take_now("a", FREE, requests=1, units=0)
    assert free_call is not None
    assert (free_call.allowed, free_call.remaining) == (True, 9)


def test_many_small_messages_under_a_small_request_limit_stay_small_in_memory() -> None:
    clock = ManualClock()
    limiter = memory_limiter(clock)
    limits = Limits(10, 0, 50_000)
    for _ in range(40_000):
        clock.advance(0.000_04)
        limiter.take_now("a", limits, requests=0, units=2)
    assert len(limiter._windows.of("a", clock.monotonic()).events) <= 2 * EXACT_ENTRIES + 100


def test_a_window_full_of_denials_is_not_longer_than_one_of_silence() -> None:
    clock = ManualClock()
    limiter = memory_limiter(clock)
    assert all(_allowed(limiter.take_now("a", FREE)) for _ in range(10))
    for _ in range(999):
        clock.advance(0.001)
        refused = limiter.take_now("a", FREE)
        assert refused is not None
        assert (refused.allowed, refused.reason, refused.retry_after) == (False, REQUESTS_PER_SECOND, 1)
    clock.advance(0.001_001)
    assert _allowed(limiter.take_now("a", FREE))


def test_the_figures_of_a_refusal_are_those_of_its_moment() -> None:
    """Time goes on between two looks at the clock; a refusal must not say that there is room."""

    class Running(ManualClock):
        """Moves on by more than the rest of the window whenever it is read, once it runs."""

        step = 0.0

        def monotonic(self) -> float:
            self._monotonic += self.step
            return self._monotonic

    clock = Running()
    limiter = memory_limiter(clock)
    assert all(_allowed(limiter.take_now("a", FREE)) for _ in range(10))
    clock.step = 0.6
    decision = limiter.take_now("a", FREE)
    assert decision is not None
    assert (decision.allowed, decision.remaining) == (False, 0)
