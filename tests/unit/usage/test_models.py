"""The histogram of latencies and what is read from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.storage.schema import LATENCY_BUCKETS
from capstan.usage.models import BUCKET_OF_BITS, Counts, Tally, quantile_microseconds


def _buckets(*latencies: int) -> tuple[int, ...]:
    buckets = [0] * LATENCY_BUCKETS
    for microseconds in latencies:
        buckets[BUCKET_OF_BITS[microseconds.bit_length()]] += 1
    return tuple(buckets)


@pytest.mark.parametrize(
    ("microseconds", "bucket"),
    [(0, 0), (127, 0), (128, 1), (255, 1), (256, 2), (2**24 - 1, 17), (2**24, 18), (2**63, 18)],
)
def test_a_latency_is_found_by_its_bits(microseconds: int, bucket: int) -> None:
    assert _buckets(microseconds)[bucket] == 1


@given(st.lists(st.integers(0, 2**24 - 1), min_size=1, max_size=60), st.integers(1, 100))
def test_a_quantile_is_in_the_bucket_of_the_true_one(latencies: list[int], percent: int) -> None:
    true = sorted(latencies)[-(-len(latencies) * percent // 100) - 1]
    found = quantile_microseconds(_buckets(*latencies), percent)
    number = BUCKET_OF_BITS[true.bit_length()]
    assert (0 if number == 0 else 2 ** (6 + number)) <= found <= 2 ** (7 + number)


@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=60))
def test_quantiles_do_not_fall(latencies: list[int]) -> None:
    buckets = _buckets(*latencies)
    found = [quantile_microseconds(buckets, percent) for percent in (1, 25, 50, 95, 99, 100)]
    assert found == sorted(found)


def test_what_took_longer_than_the_last_bound_counts_as_that_bound() -> None:
    assert quantile_microseconds(_buckets(90_000_000), 50) == 2**24


def test_without_requests_there_is_no_latency() -> None:
    assert Counts().mean_microseconds == 0
    assert Counts().quantile_microseconds(99) == 0


def test_a_quantile_outside_of_the_percents_is_refused() -> None:
    with pytest.raises(ValueError, match="101"):
        Counts().quantile_microseconds(101)


def test_counts_add_up() -> None:
    one = Counts(3, 10, 1, 2, 600, _buckets(100, 200, 300))
    two = Counts(1, 5, 0, 0, 40, _buckets(40))
    assert one + two == Counts(4, 15, 1, 2, 640, _buckets(100, 200, 300, 40))
    assert (one + two).mean_microseconds == 160


def test_a_tally_gives_its_numbers_in_the_order_of_the_columns() -> None:
    tally = Tally("acc_1")
    tally.units, tally.errors, tally.cached, tally.microseconds = 7, 1, 2, 900
    tally.buckets[3] = 4
    assert tally.numbers()[:5] == (4, 7, 1, 2, 900)
    assert len(tally.numbers()) == 5 + LATENCY_BUCKETS
