"""A second service on the same embedded database is noticed, as long as both run."""

from pathlib import Path

from capstan.storage.presence import alone


def test_the_second_is_told_and_the_third_after_the_end_is_not(tmp_path: Path) -> None:
    """The mark ends with whoever set it."""
    file = tmp_path / "capstan.sqlite3"
    with alone(file) as first:
        assert first
        with alone(file) as second:
            assert not second
    with alone(file) as third:
        assert third


def test_another_database_is_another_matter(tmp_path: Path) -> None:
    """The mark is beside its file."""
    with alone(tmp_path / "one") as first, alone(tmp_path / "two") as second:
        assert first
        assert second
