"""When an upstream is taken out of rotation, and how it comes back."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.health import FAILURES_BEFORE_OPENING, BreakerState, CircuitBreaker, ErrorRate
from capstan.core.clock import ManualClock

LONGEST_PAUSE = 30.0


class NoJitter(Random):
    """Pauses of their full length."""

    def random(self) -> float:
        return 0.0


def opened(clock: ManualClock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock, NoJitter())
    for _ in range(FAILURES_BEFORE_OPENING):
        breaker.failed(probe=breaker.begin())
    assert breaker.state is BreakerState.OPEN
    return breaker


def pause_of(breaker: CircuitBreaker, clock: ManualClock) -> float:
    seconds = 0.0
    while not breaker.due:
        clock.advance(0.5)
        seconds += 0.5
    return seconds


def test_failures_that_are_not_in_a_row_do_not_open_it() -> None:
    breaker = CircuitBreaker(ManualClock())
    for _ in range(10):
        assert not breaker.failed(probe=False)
        assert not breaker.succeeded(probe=False)
        assert not breaker.succeeded(probe=False)
    assert breaker.state is BreakerState.CLOSED


def test_failures_in_a_row_open_it_and_that_is_reported_once() -> None:
    breaker = CircuitBreaker(ManualClock())
    assert [breaker.failed(probe=False) for _ in range(5)] == [False, False, True, False, False]


def test_one_fatal_failure_is_enough() -> None:
    breaker = CircuitBreaker(ManualClock())
    assert breaker.failed(probe=False, fatal=True)
    assert breaker.state is BreakerState.OPEN


def test_a_high_share_of_failures_opens_it_although_they_are_not_in_a_row() -> None:
    breaker = CircuitBreaker(ManualClock())
    outcomes = []
    for _ in range(20):
        breaker.succeeded(probe=False)
        outcomes.append(breaker.failed(probe=False))
    assert outcomes.index(True) == 9
    assert breaker.state is BreakerState.OPEN


def test_after_the_pause_one_call_tries_it_and_a_success_closes_it() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(0.99)
    early = breaker.due
    clock.advance(0.01)
    assert [early, breaker.due] == [False, True]
    states = [breaker.state]
    assert breaker.begin()
    second = breaker.due
    states.append(breaker.state)
    assert [second, breaker.succeeded(probe=True)] == [False, True]
    states.append(breaker.state)
    assert states == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]
    assert not breaker.begin()


def test_pauses_grow_up_to_a_bound() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    pauses = []
    for _ in range(1_100):
        pauses.append(pause_of(breaker, clock))
        breaker.failed(probe=breaker.begin())
    assert pauses[:6] == [1, 2, 4, 8, 16, LONGEST_PAUSE]
    assert set(pauses[6:]) == {LONGEST_PAUSE}


def test_several_failing_probes_at_once_lengthen_the_pause_once() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    probes = [breaker.begin() for _ in range(50)]
    for probe in probes:
        breaker.failed(probe=probe)
    assert pause_of(breaker, clock) == 2.0


def test_one_that_breaks_again_soon_after_closing_pauses_longer_and_a_settled_one_does_not() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(1.0)
    breaker.succeeded(probe=breaker.begin())
    breaker.failed(probe=False, fatal=True)
    assert pause_of(breaker, clock) == 2.0
    breaker.succeeded(probe=breaker.begin())
    clock.advance(60.0)
    breaker.failed(probe=False, fatal=True)
    assert pause_of(breaker, clock) == 1.0


def test_a_call_from_before_the_opening_does_not_close_it() -> None:
    breaker = opened(ManualClock())
    assert not breaker.succeeded(probe=False)
    assert breaker.state is BreakerState.OPEN


def test_a_probe_that_was_given_up_lets_another_one_try_later() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(1.0)
    breaker.abandoned(probe=breaker.begin())
    assert breaker.state is BreakerState.OPEN
    assert pause_of(breaker, clock) == 1.0


def test_pauses_are_spread_and_never_longer_than_the_bound() -> None:
    pauses = set()
    for seed in range(50):
        clock = ManualClock()
        breaker = CircuitBreaker(clock, Random(seed))
        breaker.failed(probe=False, fatal=True)
        clock.advance(0.75)
        early = breaker.due
        clock.advance(0.25)
        assert breaker.due
        pauses.add(early)
        clock.advance(-0.1)
        pauses.add(breaker.due)
    assert pauses == {True, False}


@given(st.lists(st.sampled_from(["call", "fail", "fatal", "cancel", "wait"]), max_size=60), st.integers())
def test_whatever_happens_it_can_be_tried_again_and_closes_on_success(steps: list[str], seed: int) -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock, Random(seed))
    for step in steps:
        if step == "wait":
            clock.advance(0.7)
            continue
        probe = breaker.begin()
        if step == "call":
            breaker.succeeded(probe=probe)
            assert breaker.state is BreakerState.CLOSED
        elif step == "cancel":
            breaker.abandoned(probe=probe)
        else:
            breaker.failed(probe=probe, fatal=step == "fatal")
        assert breaker.state is not BreakerState.HALF_OPEN
    clock.advance(LONGEST_PAUSE)
    assert breaker.state is BreakerState.CLOSED or breaker.due
    breaker.succeeded(probe=breaker.begin())
    assert breaker.state is BreakerState.CLOSED


def test_the_error_rate_forgets() -> None:
    rate = ErrorRate()
    for moment in range(100, 104):
        rate.note(moment, failed=True)
    assert rate.counts(104) == (4, 4)
    assert rate.rate(104) == pytest.approx(0.5)
    rate.note(106, failed=False)
    assert rate.counts(106) == (5, 4)
    assert rate.counts(112) == (1, 0)
    assert rate.counts(130) == (0, 0)
