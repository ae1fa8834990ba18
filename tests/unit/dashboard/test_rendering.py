"""Figures for people, charts, cursors, and the tokens of forms."""

import re

import pytest

from capstan.core.errors import InvalidRequest
from capstan.dashboard.charts import Point, bars, ceiling, line
from capstan.dashboard.desk import safe_next
from capstan.dashboard.paging import cursor_number, cursor_of, last_of, page_of
from capstan.dashboard.rendering import browser, compact, duration, elapsed, share
from capstan.dashboard.visitors import Cookies, Visitor


def test_figures_are_short_and_never_round_up_to_something_else() -> None:
    assert [compact(value) for value in (0, 999, 1_000, 1_250, 12_345, 999_999, 2_000_000)] == [
        *("0", "999", "1k", "1.2k", "12k", "999k", "2M")
    ]
    assert [duration(value) for value in (0, 850, 1_000, 12_345, 123_456, 1_250_000)] == [
        *("0", "850 µs", "1 ms", "12.3 ms", "123 ms", "1.2 s")
    ]
    assert (share(1, 3), share(0, 0)) == ("33.3 %", "n/a")
    assert [elapsed(value) for value in (0, 59, 60, 7_200, 90_000, -120)] == [
        *("just now", "just now", "1 min ago", "2 h ago", "1 d ago", "in 2 min")
    ]


def test_a_browser_is_recognised_and_anything_else_is_not_guessed() -> None:
    chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36"
    assert (browser(chrome), browser("curl/8"), browser("")) == ("Chrome on Linux", "unknown", "unknown")


def test_charts_escape_what_they_show_and_keep_within_their_frame() -> None:
    points = [Point("<b>", 7, 3), Point("b", 0), Point("c", 10)]
    drawn = bars(points, title='"><script>', show=str) + line(points, title="t", show=str)
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    assert "&lt;b&gt;: 7, 3 failed" in drawn
    assert all(0 <= float(value) <= 150 for value in re.findall(r' y="([-\d.]+)"', drawn))
    assert bars([], title="none", show=str).startswith("<svg")
    assert [ceiling(value) for value in (1, 3, 7, 11, 240, 501)] == [1, 5, 10, 20, 500, 1000]


def test_a_list_goes_on_behind_its_last_row_and_keeps_its_filters() -> None:
    rows = list(range(4))
    assert last_of(rows, 3) == 2
    page = page_of(rows, path="/x", after="", cursor=(2, "a&b"), filters={"status": "paused", "empty": ""}, most=3)
    assert (page.rows, page.earlier, page.first) == ([0, 1, 2], False, "/x?status=paused")
    assert page.next == "/x?status=paused&after=2~a%26b"
    assert page_of(rows[:3], path="/x", after="1", cursor=(), filters={}, most=3).next is None
    assert (cursor_of("", 2), cursor_of("2~a", 2)) == (None, ["2", "a"])
    for wrong in ("2", "1~2~3"):
        with pytest.raises(InvalidRequest):
            cursor_of(wrong, 2)
    for wrong in ("", "-1", "1e9", "٣", "9" * 20):
        with pytest.raises(InvalidRequest):
            cursor_number(wrong)


def test_a_form_token_is_the_visitors_own_and_tells_nothing_of_the_cookie() -> None:
    one, two = Visitor("a" * 43, None), Visitor("b" * 43, None)
    assert one.sent_by(one.form_token)
    assert not one.sent_by(two.form_token)
    assert not one.sent_by("")
    assert one.cookie not in one.form_token


def test_cookies_by_https_are_for_this_host_alone() -> None:
    cookie = Cookies(secure=True).keep_session("t" * 43, 60)
    assert (cookie.key, cookie.secure, cookie.httponly, cookie.path) == ("__Host-capstan_session", True, True, "/")
    headers = {"cookie": f"__Host-capstan_session={'t' * 43}; other=1"}
    assert Cookies(secure=True).session_token(headers) == "t" * 43
    assert Cookies(secure=False).session_token(headers) is None
    assert Cookies(secure=True).session_token({"cookie": "__Host-capstan_session=short"}) is None


@pytest.mark.parametrize(
    "path", ["https://evil.example", "//evil.example", "/dashboard\r\nX: y", "/dashboard\\", "/v1"]
)
def test_nobody_is_sent_elsewhere_after_signing_in(path: str) -> None:
    assert safe_next(path) == "/dashboard"
