"""When deliveries are tried again."""

import random

import pytest

from capstan.settings import LiveSettings
from capstan.webhooks.retries import next_delay, parse_retry_after

FORMAT_A = (10, 60, 600, 3600, 21600)
FORMAT_B = (1, 5, 30, 300, 1800, 7200, 28800)
NOW = 1_700_000_000.0


@pytest.mark.parametrize("ladder", [FORMAT_A, FORMAT_B])
def test_waits_are_those_of_the_schedule_or_up_to_a_tenth_longer(ladder: tuple[int, ...]) -> None:
    dice = random.Random(7)
    for retries, planned in enumerate(ladder):
        waits = [next_delay(ladder, retries, dice=dice) for _ in range(200)]
        assert all(wait is not None and planned <= wait <= planned * 1.1 for wait in waits)
        assert len(set(waits)) > 100
    assert next_delay(ladder, len(ladder)) is None


def test_a_receiver_may_ask_for_more_but_not_for_less_and_not_without_end() -> None:
    assert next_delay(FORMAT_A, 0, 1.0) == pytest.approx(10, rel=0.1)
    assert next_delay(FORMAT_A, 0, 120.0) == 120.0
    assert next_delay(FORMAT_A, 0, 10.0**9) == 21600
    assert next_delay(FORMAT_A, 5, 1.0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("9" * 400, 9_999_999_999.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tue, 99 Nov 2023 22:00:00 GMT", None),
        ("٣", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, NOW) == seconds


def test_the_ladders_of_the_settings_are_the_documented_ones() -> None:
    chosen = LiveSettings(None, {}, {}).current.webhooks
    assert list(chosen.format_a_delays) == list(FORMAT_A)
    assert list(chosen.format_b_delays) == list(FORMAT_B)
    assert chosen.timeout_seconds == 15
