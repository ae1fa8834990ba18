"""The sliding windows against a brute-force count of every admission."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.clock import ManualClock
from capstan.limits import windows
from capstan.limits.models import REQUESTS_PER_SECOND, UNITS_PER_SECOND, Limits
from capstan.limits.windows import Window, Windows
from tests.unit.limits.parts import memory_limiter, most_in_a_second


class Arrival(NamedTuple):
    gap: float
    requests: int
    units: int


# Gaps that land exactly on the edge of a window matter most, so they are drawn often.
_gaps = st.one_of(
    st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.875, 1.0]),
    st.floats(min_value=0.0, max_value=1.2),
    st.floats(min_value=0.0, max_value=0.01),
)
_arrivals = st.lists(
    st.builds(Arrival, _gaps, st.integers(min_value=0, max_value=4), st.integers(min_value=0, max_value=12)),
    max_size=60,
)


class Oracle:
    """Remembers everything that was ever admitted."""

    def __init__(self) -> None:
        self.admitted: list[tuple[float, int, int]] = []

    def refusal(self, now: float, limits: Limits, requests: int, units: int, age: float = 1.0) -> str:
        recent = [entry for entry in self.admitted if now - entry[0] < age]
        if requests and sum(entry[1] for entry in recent) + requests > limits.requests_per_second:
            return REQUESTS_PER_SECOND
        if units and sum(entry[2] for entry in recent) + units > limits.units_per_second:
            return UNITS_PER_SECOND
        return ""

    def most_requests(self) -> int:
        return most_in_a_second((moment, requests) for moment, requests, _ in self.admitted)

    def most_units(self) -> int:
        return most_in_a_second((moment, units) for moment, _, units in self.admitted)


@settings(max_examples=300, deadline=None)
@given(_arrivals, st.integers(min_value=4, max_value=9), st.integers(min_value=12, max_value=30))
def test_every_decision_is_that_of_an_exact_count(arrivals: list[Arrival], rate: int, budget: int) -> None:
    clock, oracle = ManualClock(), Oracle()
    limiter = memory_limiter(clock)
    limits = Limits(rate, 0, budget)
    for arrival in arrivals:
        clock.advance(arrival.gap)
        now = clock.monotonic()
        expected = oracle.refusal(now, limits, arrival.requests, arrival.units)
        decision = limiter.take_now("a", limits, requests=arrival.requests, units=arrival.units)
        assert decision is not None
        assert (decision.allowed, decision.reason) == (not expected, expected)
        if decision.allowed:
            oracle.admitted.append((now, arrival.requests, arrival.units))
        used = sum(requests for moment, requests, _ in oracle.admitted if now - moment < 1.0)
        assert decision.remaining == rate - used
    assert oracle.most_requests() <= rate
    assert oracle.most_units() <= budget


@settings(max_examples=200, deadline=None)
@given(_arrivals, st.integers(min_value=4, max_value=9), st.integers(min_value=12, max_value=30))
def test_whoever_waits_as_told_gets_in(arrivals: list[Arrival], rate: int, budget: int) -> None:
    clock = ManualClock()
    limiter = memory_limiter(clock)
    limits = Limits(rate, 0, budget)
    for arrival in arrivals:
        clock.advance(arrival.gap)
        decision = limiter.take_now("a", limits, requests=arrival.requests, units=arrival.units)
        assert decision is not None
        if not decision.allowed:
            clock.advance(decision.retry_after)
            again = limiter.take_now("a", limits, requests=arrival.requests, units=arrival.units)
            assert again is not None
            assert again.allowed


@settings(max_examples=200, deadline=None)
@given(_arrivals, st.integers(min_value=4, max_value=9), st.integers(min_value=12, max_value=30))
def test_merged_entries_are_strict_by_a_quantum_at_most(arrivals: list[Arrival], rate: int, budget: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Merging begins at once and is coarse, so that short sequences show its effect.
        patch.setattr(windows, "EXACT_ENTRIES", 1)
        patch.setattr(windows, "QUANTUM", 0.25)
        clock, oracle = ManualClock(), Oracle()
        limiter = memory_limiter(clock)
        limits = Limits(rate, 0, budget)
        for arrival in arrivals:
            clock.advance(arrival.gap)
            now = clock.monotonic()
            decision = limiter.take_now("a", limits, requests=arrival.requests, units=arrival.units)
            assert decision is not None
            if decision.allowed:
                oracle.admitted.append((now, arrival.requests, arrival.units))
            else:
                assert oracle.refusal(now, limits, arrival.requests, arrival.units, age=1.25)
        assert oracle.most_requests() <= rate
        assert oracle.most_units() <= budget


def test_a_merged_entry_counts_until_its_last_admission_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "EXACT_ENTRIES", 1)
    monkeypatch.setattr(windows, "QUANTUM", 0.25)
    clock = ManualClock()
    limiter = memory_limiter(clock)
    limits = Limits(8, 0, 0)
    for requests in (1, 1, 6):
        taken = limiter.take_now("a", limits, requests=requests)
        assert taken is not None
        assert taken.allowed
        clock.advance(0.0625)
    # 1.0625 s after the first admission, 0.9375 s after the last: all three are one entry, and that still counts.
    clock.advance(0.875)
    refused = limiter.take_now("a", limits, requests=8)
    assert refused is not None
    assert (refused.allowed, refused.remaining) == (False, 0)
    clock.advance(0.0625)
    admitted = limiter.take_now("a", limits, requests=8)
    assert admitted is not None
    assert admitted.allowed


def test_a_window_of_a_huge_limit_stays_small_and_never_holds_too_much() -> None:
    clock = ManualClock()
    limiter = memory_limiter(clock)
    limits = Limits(100_000, 0, 0)
    admitted: list[tuple[float, int]] = []
    largest = 0
    for _ in range(250_000):
        clock.advance(0.000_005)
        decision = limiter.take_now("a", limits)
        assert decision is not None
        if decision.allowed:
            admitted.append((clock.monotonic(), 1))
        largest = max(largest, len(limiter._windows.of("a", clock.monotonic()).events))
    assert largest <= 2_100
    # 200,000 a second come during 1.25 s. The limit is used up after 0.5 s; from 1 s on it comes back as it was used.
    assert 149_000 <= len(admitted) <= 150_000
    for start in range(0, len(admitted) - 100_000, 97):
        assert admitted[start + 100_000][0] - admitted[start][0] >= 1.0


def test_ten_thousand_idle_subjects_are_forgotten() -> None:
    found = Windows()
    for number in range(10_000):
        found.of(f"subject-{number}", 100.0).add(100.0, 1, 1)
    assert len(found) == 10_000
    found.of("late", 102.5)
    found.of("late", 105.0)
    assert len(found) == 1


def test_a_subject_in_use_is_never_forgotten() -> None:
    found = Windows()
    now = 100.0
    for _ in range(100):
        found.of("busy", now).add(now, 1, 0)
        now += 0.3
        # 0.3 s apart, the last second always holds three admissions.
        assert found.of("busy", now).requests in {1, 2, 3}
    assert found.of("busy", now).requests == 3


@pytest.mark.parametrize("stamp", [10.25, 0.0])
def test_units_are_taken_back_from_the_right_admission(stamp: float) -> None:
    window = Window()
    for moment in (10.0, 10.25, 10.5):
        window.add(moment, 1, 5)
    window.take_back(10.75, 4, stamp)
    assert window.units == 11
    assert [units for _, _, units in window.events] == ([5, 1, 5] if stamp else [1, 5, 5])


def test_units_that_left_the_window_are_not_taken_back_from_others() -> None:
    window = Window()
    window.add(10.0, 1, 5)
    window.add(10.9, 1, 5)
    window.expire(11.0)
    window.take_back(11.0, 5, 10.0)
    assert window.units == 5


def test_more_units_than_an_admission_cost_are_not_taken_back() -> None:
    window = Window()
    window.add(10.0, 1, 5)
    window.add(10.5, 1, 5)
    window.take_back(10.6, 100, 10.0)
    assert window.units == 5
