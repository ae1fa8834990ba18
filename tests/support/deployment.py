"""The service as a cluster runs it: PostgreSQL, a Redis Cluster of three nodes, and `capstan serve --workers`.

Used by tests/cluster and by the benchmarks of the cluster. All servers are real ones on this machine; everything ends
with the block.
"""

import contextlib
import re
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.support.bundler import BundlerClient, bundler_settings, network_settings
from tests.support.devnet import EvmDevnet
from tests.support.gateway import NETWORK, OPERATOR, Gateway
from tests.support.servers import PostgresProcess, ValkeyCluster, wait_until
from tests.support.service import Service, run_command, run_json, variables

_SECONDS = 60.0


class Deployment:
    """A supervisor, its processes, and what they share."""

    def __init__(
        self, directory: Path, devnet: EvmDevnet, postgres: PostgresProcess, valkey: ValkeyCluster, **settings: Any
    ) -> None:
        self.directory = directory
        self.postgres = postgres
        self.valkey = valkey
        self._network = {"upstreams": [devnet.url], **network_settings(devnet, unsafe=True)}
        self.settings: dict[str, Any] = {
            **bundler_settings(devnet),
            "log.access": False,
            "server.operator_token": OPERATOR,
            "storage.url": postgres.url("postgres"),
            "redis.url": valkey.url,
            "redis.cluster": True,
            "webhooks.secret_key": "the same for all processes",
            **settings,
        }
        self._config = directory / "capstan.toml"
        self.configure()
        migrated = run_command("migrate", settings=self.settings)
        assert migrated.returncode == 0, migrated.stderr
        self.key: str = self.new_key("--plan", "enterprise")

    def configure(self, **changes: Any) -> None:
        """Write the file that a reload reads."""
        network = {**self._network, **changes}
        lines = [f"[networks.{msgspec.json.encode(NETWORK).decode()}]"]
        for name, value in network.items():
            lines.append(f"{name} = {_toml(value)}")
        self._config.write_text("\n".join(lines) + "\n")

    def start(self, *arguments: str, **settings: Any) -> Service:
        """`capstan serve` with these arguments on what the cluster shares."""
        chosen = {**self.settings, **settings}
        given = ["--data-dir", str(self.directory / "data"), "--config", str(self._config), *arguments]
        return Service(given, variables(chosen), self.directory)

    def new_key(self, *options: str) -> str:
        """A key of a new account."""
        made: str = run_json("keys", "create", *options, settings=self.settings)["key"]
        return made

    def gateway(self, service: Service) -> Gateway:
        """A service of the cluster, as the tests of one process know it."""
        return Gateway(service, self.key)

    def bundler(self, service: Service) -> BundlerClient:
        """The bundler of a service of the cluster."""
        return BundlerClient(f"{service.base_url}/bundler/{NETWORK}", self.key)


def wait_ready(service: Service, processes: int) -> None:
    """Until the supervisor has seen so many processes become ready."""
    wait_until(lambda: len(ready_processes(service)) >= processes, seconds=_SECONDS)


def ready_processes(service: Service) -> dict[str, list[int]]:
    """The process ids that ever became ready, by name, the latest last."""
    found: dict[str, list[int]] = {}
    for line in service.log:
        if line.get("event") == "supervisor.process_ready":
            found.setdefault(line["process"], []).append(line["pid"])
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and is not a dead one that nobody has looked at."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return re.search(r"^State:\s+Z", text, re.MULTILINE) is None


@contextlib.contextmanager
def deployed(directory: Path, devnet: EvmDevnet, **settings: Any) -> Iterator[Deployment]:
    """The servers that the processes of a cluster share."""
    with tempfile.TemporaryDirectory(prefix="capstan-pg-") as home, contextlib.ExitStack() as stack:
        postgres = PostgresProcess(Path(home))
        postgres.start()
        stack.callback(postgres.stop)
        nodes = directory / "valkey"
        nodes.mkdir()
        valkey = ValkeyCluster(nodes, 3)
        stack.callback(valkey.stop)
        valkey.start()
        yield Deployment(directory, devnet, postgres, valkey, **settings)


def end(service: Service) -> None:
    """Stop a supervisor and all that it started."""
    if service.process.poll() is None:
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(_SECONDS)
    service.kill()


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(name)} = {_toml(each)}" for name, each in value.items()) + " }"
    return msgspec.json.encode(value).decode()
