"""Keeps a `capstan.toml` that lies in the working directory out of these tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def empty_working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with contextlib.chdir(tmp_path_factory.mktemp("work")):
        yield
