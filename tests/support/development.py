"""Runs `capstan dev` for the tests, as a user does: as a process, on a free port, in a directory of its own.

`tests/conftest.py` makes the fixture `development` known to every test. It starts when the first test asks for it and
is shared, so a test leaves alone what others may rely on and makes keys and accounts of its own. The files that use it
come first, one after the other; after the last of them it gets SIGINT, as from Ctrl-C, and must then exit with code 0
and leave no process behind. It is not kept for the whole session: it follows two chains, which takes time all the time.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import die_with_parent
from tests.support.servers import wait_until
from tests.support.service import CAPSTAN, clean_environment

_START_SECONDS = 120.0
_STOP_SECONDS = 45.0
_POLL_SECONDS = 0.05
_LOG_SHOWN = 3000
# The EVM chain and the Solana endpoint.
_CHAINS = 2

# A process that may have ended, and whose number another one may have since: its number and when it began.
ProcessIdentity = tuple[int, str]


class Development:
    """A running `capstan dev`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        """The working directory of the process."""
        self.directory = home / ".capstan-dev"
        """Its data directory: database, keys, `dev.json`. The name is the default of `capstan dev`."""
        self.document: dict[str, Any] = {}
        """What it wrote to `dev.json`."""
        self._log_file = home / "dev.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """The address of the API with the version, such as `http://127.0.0.1:40123/v1`."""
        return str(self.document["base_url"])

    @property
    def origin(self) -> str:
        """The same without the version."""
        return self.base_url.removesuffix("/v1")

    @property
    def api_key(self) -> str:
        """A `svc_test_` key of an account without limits."""
        return str(self.document["api_key"])

    @property
    def log(self) -> str:
        """Everything it has printed so far."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def process_id(self) -> int | None:
        """The process, once it is started."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it and wait until it has written `dev.json`."""
        file = self.directory / "dev.json"
        # A run that was killed could not remove its file.
        file.unlink(missing_ok=True)
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*CAPSTAN, "dev", "--port", "0", "--data-dir", str(self.directory)],
                env=clean_environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for the tests; they then stop this process in order.
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGINT),
            )
        deadline = time.monotonic() + _START_SECONDS
        # The file appears by a rename, so it is complete as soon as it is there.
        while not file.exists():
            if self._ends_within(_POLL_SECONDS) or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"capstan dev did not become ready:\n{self.log[-_LOG_SHOWN:]}")
        self.document = json.loads(file.read_text(encoding="utf-8"))

    def stop(self) -> int:
        """SIGINT, and the exit code. Fails when it does not end, or leaves one of its chains running."""
        assert self._process is not None, "capstan dev was not started"
        children = descendants(self._process.pid)
        self._process.send_signal(signal.SIGINT)
        if not self._ends_within(_STOP_SECONDS):
            self.kill()
            raise AssertionError(f"capstan dev did not stop in {_STOP_SECONDS:g} s:\n{self.log[-_LOG_SHOWN:]}")
        code = self._process.returncode
        assert len(children) >= _CHAINS, f"capstan dev had no chains to stop: {children}\n{self.log[-_LOG_SHOWN:]}"
        try:
            wait_until(lambda: not any(is_running(child) for child in children), seconds=30.0)
        except TimeoutError:
            left = [child for child in children if is_running(child)]
            raise AssertionError(f"capstan dev left processes behind: {left}") from None
        return code

    def kill(self) -> None:
        """SIGKILL, for when all else has failed. The chains end by themselves when their parent is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)

    def _ends_within(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


class _Shared:
    """The `capstan dev` that runs now, and the files that use one."""

    def __init__(self) -> None:
        self.running: Development | None = None
        self.files: set[Path] = set()

    def stop(self) -> None:
        running, self.running = self.running, None
        if running is None:
            return
        try:
            code = running.stop()
            assert code == 0, f"capstan dev ended with code {code}:\n{running.log[-_LOG_SHOWN:]}"
        finally:
            running.kill()


_shared = _Shared()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that use it first."""
    _shared.files = {item.path for item in items if "development" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in _shared.files)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stop it after the last file that uses it."""
    if nextitem is None or nextitem.path not in _shared.files:
        _shared.stop()


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Development:
    """The `capstan dev` that the tests share."""
    if _shared.running is None:
        running = Development(tmp_path_factory.mktemp("development"))
        try:
            running.start()
        except BaseException:
            running.kill()
            raise
        _shared.running = running
    return _shared.running


def descendants(process_id: int) -> list[ProcessIdentity]:
    """The processes that a process started, and those that they started."""
    children: dict[int, list[ProcessIdentity]] = {}
    for (number, began), parent in _processes().items():
        children.setdefault(parent, []).append((number, began))
    found: list[ProcessIdentity] = []
    waiting = [process_id]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            waiting.append(child[0])
    return found


def is_running(identity: ProcessIdentity) -> bool:
    """Whether that very process still runs."""
    return identity in _processes()


def _processes() -> dict[ProcessIdentity, int]:
    """Every process and its parent. Ended ones that nobody has waited for yet are left out."""
    return _read_proc() if sys.platform.startswith("linux") else _ask_ps()


def _read_proc() -> dict[ProcessIdentity, int]:
    found: dict[ProcessIdentity, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue  # It ended while we looked.
        # The name in parentheses may hold anything, also parentheses. See proc(5) for the fields after it.
        fields = text.rpartition(")")[2].split()
        state, parent, began = fields[0], int(fields[1]), fields[19]
        if state not in "ZX":
            found[int(file.parent.name), began] = parent
    return found


def _ask_ps() -> dict[ProcessIdentity, int]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state=,lstart="], capture_output=True, text=True, timeout=10, check=True
    )
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return {(int(number), began): int(parent) for number, parent, state, began in rows if not state.startswith("Z")}
