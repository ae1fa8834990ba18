"""How fast the gateway is, as ratios to the practical ceiling measured in the same run.

Runs each server on one core and wrk on the other. Answers from memory are compared with a bare asyncio.Protocol that
answers from memory; proxied calls, with params that never repeat, with a bare pass-through proxy. The key check,
limits, units and metrics are on; the access log is off.

    python bench/rpc.py [--seconds 5]
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVER_CORE, LOAD_CORE = "0", "1"
CONNECTIONS = 64

SAME_CALL = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["X-API-Key"] = "%s"
wrk.body = '{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'
"""
OTHER_CALLS = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["X-API-Key"] = "%s"
local count = 0
math.randomseed(os.time())
local salt = math.random(1, 1000000)
request = function()
  count = count + 1
  local address = string.format("0x%%08x%%032x", salt, count)
  return wrk.format(nil, nil, nil, '{"jsonrpc":"2.0","id":' .. count ..
    ',"method":"eth_getBalance","params":["' .. address .. '","latest"]}')
end
"""


def pinned(core: str, command: list[str]) -> list[str]:
    """The command bound to one core, where the machine can do that."""
    return ["taskset", "-c", core, *command] if shutil.which("taskset") else command


@contextmanager
def peer(core: str, *arguments: str) -> Iterator[int]:
    """A bare server; gives its port."""
    process = subprocess.Popen(
        pinned(core, [sys.executable, "-m", "bench.peers.bare", *arguments]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def capstan(core: str, upstream: int) -> Iterator[tuple[int, str]]:
    """The service with one upstream; gives its port and a key."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")},
            "CAPSTAN_DATA_DIR": directory,
            "CAPSTAN_LOG__ACCESS": "false",
            "CAPSTAN_NETWORKS": f'{{"ethereum/sepolia" = {{upstreams = ["http://127.0.0.1:{upstream}"]}}}}',
        }
        made = subprocess.run(
            [sys.executable, "-m", "capstan", "keys", "create", "--plan", "enterprise", "--json"],
            env=environment,
            check=True,
            capture_output=True,
            timeout=60,
        )
        process = subprocess.Popen(
            pinned(core, [sys.executable, "-m", "capstan", "serve", "--port", "0"]),
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            port = next(int(found[1]) for line in process.stderr if (found := re.search(r"127.0.0.1:(\d+)/v1", line)))
            yield port, json.loads(made.stdout)["key"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def load(url: str, script: str, seconds: int, connections: int = CONNECTIONS) -> float:
    """Requests per second that wrk gets through; fails when an answer was not 2xx."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", file.name, url]
        done = subprocess.run(
            pinned(LOAD_CORE, command), check=True, capture_output=True, text=True, timeout=seconds + 60
        )
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"the load met errors:\n{done.stdout}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def one_at_a_time(port: int, path: str, key: str, calls: int = 3000) -> float:
    """Median microseconds of a call on one connection, one after the other."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for count in range(calls):
            address = f"0x{count + calls:040x}"
            body = f'{{"jsonrpc":"2.0","id":{count},"method":"eth_getBalance","params":["{address}","latest"]}}'
            request = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            )
            began = time.perf_counter()
            connection.sendall(request.encode())
            answer = connection.recv(65536)
            times.append(time.perf_counter() - began)
            if b" 200 OK" not in answer[:20]:
                raise SystemExit(f"unexpected answer: {answer[:300]!r}")
    return statistics.median(times) * 1_000_000


def row(name: str, value: float, baseline: float, unit: str) -> None:
    """One line of the table."""
    print(f"{name:44} {value:10,.0f} {unit:8} {value / baseline:6.2f} of the baseline")


def main() -> None:
    """Run everything."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=int, default=5, help="how long each load runs")
    seconds = options.parse_args().seconds
    if shutil.which("wrk") is None:
        raise SystemExit("bench/rpc.py needs wrk on PATH (Debian package wrk)")
    with ExitStack() as stack:
        node = stack.enter_context(peer(LOAD_CORE, "0"))
        with peer(SERVER_CORE, "0") as port:
            memory = load(f"http://127.0.0.1:{port}/", SAME_CALL % "none", seconds)
        row("from memory: bare protocol (baseline)", memory, memory, "req/s")
        with peer(SERVER_CORE, "0", str(node)) as port:
            proxy = load(f"http://127.0.0.1:{port}/", OTHER_CALLS % "none", seconds)
            proxied = one_at_a_time(port, "/", "none")
        direct = one_at_a_time(node, "/", "none")
        port, key = stack.enter_context(capstan(SERVER_CORE, node))
        url = f"http://127.0.0.1:{port}/v1/rpc/ethereum/sepolia"
        load(url, SAME_CALL % key, 1)
        row("from memory: capstan", load(url, SAME_CALL % key, seconds), memory, "req/s")
        row("proxied: bare pass-through (baseline)", proxy, proxy, "req/s")
        row("proxied: capstan", load(url, OTHER_CALLS % key, seconds), proxy, "req/s")
        ours = one_at_a_time(port, "/v1/rpc/ethereum/sepolia", key)
        bare = proxied - direct
        print(f"added latency at one connection, p50: capstan {ours - direct:.0f} µs, bare proxy {bare:.0f} µs")


if __name__ == "__main__":
    main()
