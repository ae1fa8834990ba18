"""Entity tags name exact bytes, and If-None-Match is read as the standard says."""

import pytest

from capstan.core.etags import etag_of, matches


def test_other_bytes_have_another_tag() -> None:
    assert etag_of(b"a") == etag_of(b"a")
    assert len({etag_of(b"a"), etag_of(b"b"), etag_of(b"ab"), etag_of(b"a", b"b"), etag_of()}) == 5
    assert etag_of(b"a").startswith('"')


@pytest.mark.parametrize(
    ("header", "same"),
    [
        (None, False),
        ("*", True),
        ('"x"', True),
        ('W/"x"', True),
        ('"a", "x"', True),
        ('"a","b"', False),
        ("", False),
        ("x", False),
    ],
)
def test_if_none_match(header: str | None, same: bool) -> None:
    assert matches(header, '"x"') is same
