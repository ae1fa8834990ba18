"""The plan of ranges: every block once, wider after success, narrower after a refusal."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.clock import ManualClock
from capstan.index.ranges import RangeLimit, RangePlan


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 5_000)), min_size=1, max_size=4),
    st.integers(1, 3_000),
    st.integers(0, 2**32),
)
def test_every_block_is_handed_out_once_whatever_is_refused(gaps: list[tuple[int, int]], most: int, seed: int) -> None:
    random = Random(seed)
    begin, spans = 0, []
    for skip, length in gaps:
        spans.append((begin + skip, begin + skip + length - 1))
        begin += skip + length + 1
    plan = RangePlan(spans, RangeLimit(ManualClock()), first_blocks=random.randrange(1, 5_000))
    fetched: list[tuple[int, int]] = []
    for _ in range(40_000):
        span = plan.take()
        if span is None:
            break
        blocks = span[1] - span[0] + 1
        if blocks > most:
            assert plan.refused(span, limit=random.choice([None, most]), lasting=random.random() < 0.5)
        elif random.random() < 0.1:
            plan.failed(span)
        else:
            fetched.append(span)
            plan.succeeded(span, random.choice([0, 10, 100_000]))
    assert plan.take() is None
    covered = sorted(fetched)
    assert all(first <= last for first, last in covered)
    numbers = sum(last - first + 1 for first, last in covered)
    assert numbers == sum(last - first + 1 for first, last in spans)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(covered))


def test_ranges_grow_while_they_hold_few_events() -> None:
    plan = RangePlan([(0, 10_000_000)], RangeLimit(ManualClock()), first_blocks=100)
    sizes = []
    for _ in range(5):
        span = plan.take()
        assert span is not None
        sizes.append(span[1] - span[0] + 1)
        plan.succeeded(span, 3)
    assert sizes == [100, 200, 400, 800, 1600]


def test_ranges_shrink_when_they_hold_too_many_events() -> None:
    plan = RangePlan([(0, 10_000)], RangeLimit(ManualClock()), first_blocks=1_000)
    span = plan.take()
    assert span is not None
    plan.succeeded(span, 50_000)
    assert plan.blocks == 100


def test_a_limit_that_an_upstream_names_holds_for_all_plans_until_it_is_forgotten() -> None:
    clock = ManualClock()
    limit = RangeLimit(clock)
    plan = RangePlan([(0, 99_999)], limit, first_blocks=50_000)
    span = plan.take()
    assert span is not None
    assert plan.refused(span, limit=2_000, lasting=True)
    assert plan.take() == (0, 1_999)
    assert RangePlan([(0, 99_999)], limit, first_blocks=50_000).take() == (0, 1_999)
    clock.advance(10_000)
    assert RangePlan([(0, 99_999)], limit, first_blocks=50_000).take() == (0, 49_999)


def test_too_many_logs_narrow_only_this_plan() -> None:
    limit = RangeLimit(ManualClock())
    plan = RangePlan([(0, 99)], limit, first_blocks=100)
    assert plan.refused((0, 99), lasting=False)
    assert limit.blocks > 100


@pytest.mark.parametrize("lasting", [True, False])
def test_one_block_cannot_be_made_smaller(lasting: bool) -> None:
    plan = RangePlan([(5, 5)], RangeLimit(ManualClock()), first_blocks=10)
    span = plan.take()
    assert span == (5, 5)
    assert not plan.refused(span, lasting=lasting)
    assert plan.take() is None
