"""Runs Python modules as processes, without the time that loading Capstan takes.

`start_module` is `subprocess.Popen([sys.executable, "-m", module, …])` for tests that start many services and commands,
`run_module` is `subprocess.run`:
on Linux a server that has loaded everything (`tests/support/fork_server.py`) makes a copy of itself, elsewhere a new
Python starts. What a test sees is the same either way: a process with its own number, streams, environment and exit
code. Started by the command line in the usual way are `capstan dev` and all that the pages of docs/ start.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from tests.support.fork_server import Report, Request

_START_SECONDS = 60.0
_LARGEST_REPORT = 4096
_ROOT = Path(__file__).resolve().parents[2]


class Process(Protocol):
    """What the tests use of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class _Copy:
    """A process that the fork server made."""

    def __init__(self, process_id: int) -> None:
        self.pid = process_id
        self._ended = threading.Event()
        self._code: int | None = None

    def end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self._code is not None
        return self._code

    def send_signal(self, sig: int) -> None:
        if self._code is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The fork server, and a thread that hears what becomes of its copies."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server"], stdin=theirs.fileno(), cwd=_ROOT
            )
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._copies: dict[int, _Copy] = {}
        self._started: list[_Copy] = []
        self._gone = False
        threading.Thread(target=self._hear, name="forks", daemon=True).start()

    def start(self, request: Request, streams: Sequence[int]) -> _Copy:
        with self._lock:
            socket.send_fds(self._connection, [msgspec.json.encode(request)], list(streams))
            with self._changed:
                if not self._changed.wait_for(lambda: self._started or self._gone, _START_SECONDS):
                    raise AssertionError(f"the fork server made no process in {_START_SECONDS:g} seconds")
                if not self._started:
                    raise AssertionError("the fork server has ended")
                return self._started.pop()

    def _hear(self) -> None:
        while body := self._connection.recv(_LARGEST_REPORT):
            report = msgspec.json.decode(body, type=Report)
            with self._changed:
                if report.code is None:
                    copy = self._copies[report.process_id] = _Copy(report.process_id)
                    self._started.append(copy)
                else:
                    self._copies.pop(report.process_id).end(report.code)
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()


_server: _Server | None = None
_server_lock = threading.Lock()


def start_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = 2,
) -> Process:
    """Runs `python -m module arguments`. The streams are files that are open, or `subprocess.DEVNULL`."""
    environment = os.environ if environment is None else environment
    if not sys.platform.startswith("linux"):
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            cwd=directory,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    request = Request(module, list(arguments), dict(environment), str((directory or Path.cwd()).resolve()))
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        return _the_server().start(request, [_number(stream, nothing) for stream in (stdin, stdout, stderr)])
    finally:
        os.close(nothing)


def run_module(
    module: str,
    *arguments: str,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m module arguments` to its end, which must come in so many seconds."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        process = start_module(
            module, *arguments, environment=environment, directory=directory, stdout=output, stderr=log
        )
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        output.seek(0)
        log.seek(0)
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.CompletedProcess(command, code, output.read().decode(), log.read().decode())


def _the_server() -> _Server:
    global _server
    with _server_lock:
        if _server is None:
            _server = _Server()
        return _server


def _number(stream: int | IO[Any], nothing: int) -> int:
    if stream == subprocess.DEVNULL:
        return nothing
    return stream if isinstance(stream, int) else stream.fileno()
