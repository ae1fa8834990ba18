"""Starts the service as its users do: as a process, from the command line, on a free port.

`start_service` gives tests as many processes as they need; all of them end with the test. `capstan` runs one command.
Both are spared the loading of modules, see `tests/support/forks.py`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.forks import run_module, start_module

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_COMMAND_SECONDS = 60.0
CAPSTAN = [sys.executable, "-m", "capstan"]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without whatever the machine sets for Capstan."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")}
    return {**kept, **(extra or {})}


class Service:
    """One `capstan serve` process."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self._lines: list[str] = []
        self._ready = threading.Event()
        self._asked_to_stop = False
        self.base_url = ""
        reading, writing = os.pipe()
        try:
            self.process = start_module(
                *("capstan", "serve", "--port", "0", *arguments),
                environment=clean_environment(environment),
                directory=directory,
                stderr=writing,
            )
        finally:
            os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_SECONDS) or not self.base_url:
            self.kill()
            raise AssertionError("the service did not start:\n" + "\n".join(self._lines[-30:]))

    @property
    def origin(self) -> str:
        """The address without the version."""
        return self.base_url.removesuffix("/v1")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log so far; lines that are not JSON are left out."""
        found = []
        for line in list(self._lines):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @property
    def log_text(self) -> str:
        """The log so far as it was written."""
        return "\n".join(self._lines)

    def ask_to_stop(self) -> None:
        """SIGTERM, once: a second one ends what is under way, or a process that is just about to exit."""
        if not self._asked_to_stop and self.process.poll() is None:
            self._asked_to_stop = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM if it had none yet, and the exit code."""
        self.ask_to_stop()
        code = self.process.wait(_STOP_SECONDS)
        self._reader.join(_STOP_SECONDS)
        return code

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_STOP_SECONDS)
        self._reader.join(_STOP_SECONDS)

    def _read(self, stream: int) -> None:
        with open(stream, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._lines.append(line.rstrip("\n"))
                if '"event": "started"' in line:
                    started = json.loads(line)
                    # Of several processes, that of the API.
                    if not self.base_url or "api" in started["roles"]:
                        self.base_url = started["base_url"]
                    self._ready.set()
        self._ready.set()


StartService = Callable[..., Service]
RunCapstan = Callable[..., Any]


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[StartService]:
    """Starts services: `start_service(settings={…}, data_dir=…)`; settings are dotted names."""
    with ExitStack() as stack:

        def start(settings: Mapping[str, Any] | None = None, data_dir: Path | None = None) -> Service:
            service = Service(["--data-dir", str(data_dir or tmp_path / "data")], variables(settings), tmp_path)
            stack.callback(service.kill)
            return service

        yield start


@pytest.fixture
def capstan(tmp_path: Path) -> RunCapstan:
    """Runs a command and returns its JSON: `capstan("keys", "create")`."""

    def run(*arguments: str, data_dir: Path | None = None, settings: Mapping[str, Any] | None = None) -> Any:
        return run_json(*arguments, "--data-dir", str(data_dir or tmp_path / "data"), settings=settings)

    return run


def run_json(*arguments: str, settings: Mapping[str, Any] | None = None) -> Any:
    """Runs one command that must succeed and returns the JSON it prints."""
    done = run_command(*arguments, "--json", settings=settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_command(
    *arguments: str, settings: Mapping[str, Any] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs one command."""
    environment = clean_environment(variables(settings))
    return run_module("capstan", *arguments, seconds=_COMMAND_SECONDS, environment=environment, directory=directory)


def variables(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings by their dotted names, as the environment of a process."""
    return {"CAPSTAN_" + name.upper().replace(".", "__"): _text(value) for name, value in (settings or {}).items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@pytest.fixture
def evm_devnet_url(evm_devnet: Any) -> str:
    """The address of the EVM development chain."""
    return str(evm_devnet.url)
