"""What the settings tests share: writing a file, loading with it, and reading the problems of a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from capstan.settings import Problem, Settings, SettingsError, load_settings


def write(directory: Path, text: str) -> Path:
    path = directory / "my-capstan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def load(
    directory: Path,
    text: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    return load_settings(write(directory, text), environ or {}, overrides or {})


def problems(
    directory: Path,
    text: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> list[Problem]:
    """The problems the settings are refused with. Also checks that the error's text tells each of them."""
    with pytest.raises(SettingsError) as caught:
        load(directory, text, environ=environ, overrides=overrides)
    found = list(caught.value.problems)
    assert str(caught.value).splitlines() == [str(problem) for problem in found]
    for problem in found:
        assert problem.source in str(problem)
        assert problem.key in str(problem)
        assert problem.reason in str(problem)
    return found


def problem(
    directory: Path,
    text: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Problem:
    """The one problem the settings are refused with."""
    found = problems(directory, text, environ=environ, overrides=overrides)
    assert len(found) == 1, found
    return found[0]
