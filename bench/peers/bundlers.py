"""The bundlers that bench/bundler.py compares: ours as `capstan serve`, and alto from npm.

Each runs as a process of its own in front of a given node, with the same number of accounts to send bundles from, and
without tracing: the development chain has no tracer that alto could use, so both only simulate. alto is installed on
first use into `bench/peers/alto`, which git ignores, and left out where npm cannot install it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec

from bench.peers.others import free_port
from capstan.devnet.models import Deployment

ALTO = Path(__file__).resolve().parent / "alto"
_START_SECONDS = 90.0
_INSTALL_SECONDS = 600.0
_NETWORK = "ethereum/devnet"


class Bundler(msgspec.Struct, frozen=True):
    """A bundler that is running."""

    name: str
    url: str
    pid: int
    headers: dict[str, str] = {}


@contextmanager
def capstan(node_url: str, deployment: Deployment, version: str, *, full: bool = False) -> Iterator[Bundler]:
    """Our own; with `full` it validates by ERC-7562."""
    settings = {
        "mode": "development",
        "log.access": False,
        "bundler.signers": [account.private_key for account in deployment.bundler_executors],
        "networks": {
            _NETWORK: {
                "upstreams": [node_url],
                "entry_points": {version: deployment.entry_points[version]},
                "block_time_ms": 1000,
                "bundler_unsafe": not full,
            }
        },
    }
    with tempfile.TemporaryDirectory() as directory:
        environment = _environment(settings) | {"CAPSTAN_DATA_DIR": directory}
        command = [sys.executable, "-m", "capstan"]
        made = subprocess.run(
            [*command, "keys", "create", "--plan", "enterprise", "--json"],
            env=environment,
            check=True,
            capture_output=True,
            timeout=60,
        )
        process = subprocess.Popen(
            [*command, "serve", "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            port = next(int(found[1]) for line in process.stderr if (found := re.search(r"127.0.0.1:(\d+)/v1", line)))
            with _drained(process):
                url = f"http://127.0.0.1:{port}/v1/bundler/{_NETWORK}"
                yield Bundler("capstan", url, process.pid, {"X-API-Key": json.loads(made.stdout)["key"]})
        finally:
            _end(process)


@contextmanager
def alto(node_url: str, deployment: Deployment, version: str) -> Iterator[Bundler | None]:
    """alto, or None where it cannot be installed."""
    if not _install():
        yield None
        return
    port = free_port()
    keys = [account.private_key for account in deployment.bundler_executors]
    options = {
        "entrypoints": deployment.entry_points[version],
        "executor-private-keys": ",".join(keys),
        "utility-private-key": deployment.accounts[19].private_key,
        "rpc-url": node_url,
        "port": str(port),
        "safe-mode": "false",
        "log-level": "fatal",
        "block-time": "1000",
        # What a node of the development chain takes in one transaction.
        "max-gas-per-bundle": "15000000",
        "mempool-pop-batch-size": "100",
        "min-executor-balance": "0",
        "enable-debug-endpoints": "false",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    process = subprocess.Popen(
        ["node", "node_modules/@pimlico/alto/esm/cli/alto.js", *arguments],
        cwd=ALTO,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}/rpc"
        _wait_for(url, process)
        yield Bundler("alto", url, process.pid)
    finally:
        _end(process)


def _install() -> bool:
    if (ALTO / "node_modules" / "@pimlico" / "alto").is_dir():
        return True
    sys.stdout.write("installing alto from npm (once)\n")
    sys.stdout.flush()
    try:
        done = subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--omit=dev"],
            cwd=ALTO,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_supportedEntryPoints", "params": []}).encode()
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.post(url, content=body, headers={"Content-Type": "application/json"}, timeout=5, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("alto did not start")


@contextmanager
def _drained(process: subprocess.Popen[str]) -> Iterator[None]:
    """Read what a process writes, so that it never waits for us."""

    def read() -> None:
        assert process.stderr is not None
        for _ in process.stderr:
            continue

    threading.Thread(target=read, daemon=True).start()
    yield


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(settings: dict[str, object]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")}
    named = {
        "CAPSTAN_" + name.upper().replace(".", "__"): value
        if isinstance(value, str)
        else msgspec.json.encode(value).decode()
        for name, value in settings.items()
    }
    return {**kept, **named}
