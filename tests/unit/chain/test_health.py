"""When an upstream is passed over, and for how long."""

from capstan.chain.health import FAILURES_BEFORE_REST, UpstreamHealth
from capstan.core.clock import ManualClock


def failing(clock: ManualClock) -> UpstreamHealth:
    health = UpstreamHealth(clock)
    for _ in range(FAILURES_BEFORE_REST):
        health.attempt()
        health.failed()
    return health


def test_failures_that_are_not_in_a_row_do_not_count() -> None:
    health = UpstreamHealth(ManualClock())
    for _ in range(10):
        assert not health.failed()
        assert not health.failed()
        assert not health.succeeded()
    assert not health.resting


def test_failures_in_a_row_lead_to_a_rest_that_ends() -> None:
    clock = ManualClock()
    health = failing(clock)
    assert health.resting
    clock.advance(1.0)
    assert not health.resting


def test_after_a_rest_one_attempt_keeps_the_others_away() -> None:
    clock = ManualClock()
    health = failing(clock)
    clock.advance(1.0)
    health.attempt()
    assert health.resting
    assert health.succeeded()
    assert not health.resting


def test_rests_grow_up_to_a_bound() -> None:
    clock = ManualClock()
    health = failing(clock)
    rests = []
    for _ in range(2_000):
        seconds = 0.0
        while health.resting:
            clock.advance(0.5)
            seconds += 0.5
        rests.append(seconds)
        health.attempt()
        health.failed()
    assert rests[:6] == [1, 2, 4, 8, 16, 30]
    assert set(rests[6:]) == {30}


def test_going_to_rest_is_reported_once() -> None:
    health = UpstreamHealth(ManualClock())
    assert [health.failed() for _ in range(5)] == [False, False, True, False, False]
