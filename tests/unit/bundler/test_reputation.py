"""The arithmetic of reputation: thresholds, fading, and what an unstaked paymaster has earned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.bundler.reputation import Reputation, ReputationBook, ReputationRules
from tests.unit.bundler.parts import address

A, B = address(1), address(2)
HOUR = 3600
counts = st.integers(0, 100_000)


def book(seen: int, included: int, rules: ReputationRules | None = None) -> ReputationBook:
    made = ReputationBook(rules)
    made.restore([Reputation(A, seen, included)], hour=0)
    return made


def of(entries: ReputationBook, who: bytes) -> tuple[int, int]:
    return next(((each.seen, each.included) for each in entries if each.address == who), (0, 0))


@pytest.mark.parametrize(
    ("seen", "included", "standing"),
    [
        (0, 0, "ok"),
        (109, 0, "ok"),
        (110, 0, "throttled"),
        (119, 1, "ok"),
        (120, 1, "throttled"),
        (509, 0, "throttled"),
        (510, 0, "banned"),
        (519, 1, "throttled"),
        (520, 1, "banned"),
        (10_000, 0, "banned"),
        (10_000, 1000, "ok"),
    ],
)
def test_who_is_seen_much_more_than_included_is_held_back(seen: int, included: int, standing: str) -> None:
    assert book(seen, included).standing(A) == standing


@given(counts, counts)
def test_the_standing_is_that_of_the_standard(seen: int, included: int) -> None:
    expected = "ok"
    if seen // 10 > included + 50:
        expected = "banned"
    elif seen // 10 > included + 10:
        expected = "throttled"
    assert book(seen, included).standing(A) == expected


@given(counts, counts, st.integers(0, 200))
def test_counts_fade_by_a_twenty_fourth_each_hour(seen: int, included: int, hours: int) -> None:
    faded = book(seen, included)
    faded.fade(hours * HOUR + 59)
    for _ in range(hours):
        seen, included = seen * 23 // 24, included * 23 // 24
    assert of(faded, A) == (seen, included)


@given(st.lists(st.integers(0, 5 * HOUR), max_size=20), counts)
def test_it_does_not_matter_how_often_one_looks(steps: list[int], seen: int) -> None:
    often, once = book(seen, 0), book(seen, 0)
    now = 0
    for step in steps:
        now += step
        often.fade(now)
    once.fade(now)
    assert of(often, A) == of(once, A)


def test_a_ban_is_over_after_days_and_nothing_is_kept_for_ever() -> None:
    banned = ReputationBook()
    banned.fade(0)
    banned.condemn(A)
    assert banned.standing(A) == "banned"
    banned.fade(60 * HOUR)
    assert banned.standing(A) == "banned"
    banned.fade(80 * HOUR)
    assert banned.standing(A) == "throttled"
    banned.fade(24 * 30 * HOUR)
    assert banned.standing(A) == "ok"
    banned.fade(10**12)
    assert list(banned) == []


def test_a_clock_that_goes_back_changes_nothing() -> None:
    entries = book(100, 50)
    entries.fade(10 * HOUR)
    before = of(entries, A)
    entries.fade(2 * HOUR)
    entries.fade(10 * HOUR)
    assert of(entries, A) == before


@given(counts, counts)
def test_an_unstaked_paymaster_earns_by_being_included(seen: int, included: int) -> None:
    allowed = book(seen, included).allowed_unstaked(A)
    earned = included * min(included, 10_000) // seen if seen else 0
    assert allowed == 10 + earned


def test_counting_goes_up_and_down_and_never_below_nothing() -> None:
    entries = ReputationBook()
    for _ in range(3):
        entries.add_seen(A)
    entries.add_included(A)
    entries.take_back_seen(A)
    entries.take_back_included(A)
    entries.take_back_included(A)
    assert of(entries, A) == (2, 0)
    for _ in range(5):
        entries.take_back_seen(A)
    assert list(entries) == []
    entries.take_back_seen(B)
    assert list(entries) == []


def test_lists_of_the_operator_come_first() -> None:
    entries = ReputationBook(never_limited=[A], always_banned=[B])
    entries.condemn(A)
    assert (entries.standing(A), entries.standing(B)) == ("ok", "banned")
