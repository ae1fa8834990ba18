"""How much of a day a claim is granted."""

from hypothesis import given
from hypothesis import strategies as st

from capstan.limits.store import Claim, day_text, grant

_amounts = st.integers(min_value=0, max_value=200)


@given(_amounts, _amounts, st.integers(min_value=-100, max_value=100), _amounts, _amounts)
def test_a_grant_never_passes_the_limit_and_serves_who_waits(
    limit: int, reserved: int, add: int, need: int, want: int
) -> None:
    answer = grant(Claim("a", 0, limit, add, need, want), reserved)
    before = max(0, reserved + add)
    room = max(0, limit - before)
    assert answer.reserved == before + answer.granted
    assert answer.reserved <= max(limit, before)
    assert min(need, room) <= answer.granted <= max(need, want)


def test_near_the_end_of_a_day_less_is_set_aside() -> None:
    granted = [grant(Claim("a", 0, 1_000, 0, 0, 100), reserved).granted for reserved in (0, 600, 700, 900, 996, 999)]
    assert granted == [100, 100, 75, 25, 1, 0]


def test_giving_back_more_than_there_is_leaves_nothing_owed() -> None:
    assert grant(Claim("a", 0, 10, -50, 0, 0), 20).reserved == 0


def test_days_are_stored_so_that_text_order_is_time_order() -> None:
    assert [day_text(day) for day in (0, 19_675, 19_676)] == ["1970-01-01", "2023-11-14", "2023-11-15"]
