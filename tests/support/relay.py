"""Relays in front of a real node, each a process: several upstreams that can be killed, stopped and started again."""

import contextlib
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.support.children import die_with_parent

_START_SECONDS = 20.0
_STOP_SECONDS = 10.0


class Relay:
    """One relay. It keeps its port between a death and a new start."""

    def __init__(self, name: str, node_url: str) -> None:
        self.name = name
        self._node_port = urlsplit(node_url).port
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def upstream(self, **settings: Any) -> dict[str, Any]:
        """It as an upstream in the settings of the service."""
        return {"name": self.name, "url": self.url, **settings}

    def start(self) -> None:
        """Start it and wait until it listens: on a free port the first time, afterwards on that one."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.relay_process", str(self._node_port), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        assert line, f"{self.name} did not start"
        self.port = int(line)

    def kill(self) -> None:
        """SIGKILL: what is open is cut, and nobody listens any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()

    def freeze(self) -> None:
        """SIGSTOP: the system still takes connections, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def relays(node_url: str, count: int) -> Iterator[list[Relay]]:
    """So many running relays before a node."""
    found = [Relay(f"relay-{place}", node_url) for place in range(count)]
    try:
        for relay in found:
            relay.start()
        yield found
    finally:
        for relay in found:
            relay.kill()
