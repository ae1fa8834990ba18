"""The whole service in front of chosen nodes, as a process, with a key: what the tests of the gateway as a whole use.

`serving` runs `capstan serve` for as long as a block lasts. Unlike the fixture `start_service` it may be used in
fixtures that several tests share.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.support.node import Node
from tests.support.service import Service, run_json, variables

NETWORK = "ethereum/devnet"
OPERATOR = "operator-token-of-the-tests"
# Loopback answers at once; a test that waits longer than this has found a fault.
_SECONDS = 30.0
_SETTINGS = {"log.access": False, "server.operator_token": OPERATOR}


class Gateway:
    """A running service with one network, and a key without limits."""

    def __init__(self, service: Service, key: str, network: str = NETWORK) -> None:
        self.service = service
        self.key = key
        self.network = network
        self.url = f"{service.base_url}/rpc/{network}"
        self.headers = {"X-API-Key": key, "Content-Type": "application/json"}
        self.node = Node(self.url, headers=self.headers)
        """The gateway, asked like a node."""

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        """The whole answer to a body, with headers such as `X_Explain`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(self.url, content=body, headers={**self.headers, **named}, timeout=_SECONDS, trust_env=False)

    def metric(self, name: str, *, text: str | None = None, **labels: str) -> float | None:
        """One value of the metrics, asked for now or of an earlier `text`; None when there is no such series."""
        for line in (self.metrics() if text is None else text).splitlines():
            if line.startswith(name) and all(f'{label}="{value}"' in line for label, value in labels.items()):
                return float(line.rpartition(" ")[2])
        return None

    def metrics(self) -> str:
        """All metrics as text."""
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        answer = httpx.get(f"{self.service.origin}/metrics", headers=headers, timeout=_SECONDS, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.text

    def memory_bytes(self) -> int:
        """What the process holds in memory now."""
        return _status(self.service.process.pid, "VmRSS")

    def most_memory_bytes(self) -> int:
        """The most it ever held."""
        return _status(self.service.process.pid, "VmHWM")


def _status(process: int, name: str) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, f"/proc has no {name}"
    return int(found[1]) * 1024


@contextlib.contextmanager
def serving(
    directory: Path,
    upstreams: list[Any],
    *,
    settings: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    **network: Any,
) -> Iterator[Gateway]:
    """`capstan serve` in front of these upstreams; `network` are further settings of the network.

    `others` are networks that are served as well.
    """
    data = directory / "data"
    key = run_json("keys", "create", "--plan", "enterprise", "--data-dir", str(data))["key"]
    networks = {NETWORK: {"upstreams": upstreams, **network}, **(others or {})}
    environment = variables({**_SETTINGS, **(settings or {}), "networks": networks})
    service = Service(["--data-dir", str(data)], environment, directory)
    try:
        yield Gateway(service, key)
    finally:
        service.kill()
