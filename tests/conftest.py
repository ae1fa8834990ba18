"""Fixtures that every test may use. Servers and chains start when the first test asks for them."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

# A machine that stalls is no failure of a property; every test has its own time limit below. The same examples are
# tried in every run, so that a run says something about the change and not about the dice.
settings.register_profile(
    "capstan", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("capstan")

pytest_plugins = [
    "tests.support.devnet",
    "tests.support.servers",
    "tests.support.service",
    "tests.support.solana",
    "tests.support.shared_streams",
    "tests.support.storage",
    "tests.support.browser",
    "tests.support.development",
    "tests.support.javascript",
]

# The directories that run last, in their order: those with many short files, so that no worker is left with a long one
# when the others have nothing to do.
_LAST = ("data", "validation", "contracts", "contract", "unit")

# Far longer than any test takes, on a slow machine too. A test that hangs fails then, instead of holding up the run.
_LONGEST_TEST_SECONDS = 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the directories in their order; else the tests stay as they are."""
    tests = config.rootpath / "tests"

    def place(item: pytest.Item) -> int:
        directory = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        return _LAST.index(directory) if directory in _LAST else -1

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took over {_LONGEST_TEST_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_LONGEST_TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
