"""How fast the gateway is, as ratios to the practical ceiling measured in the same run.

Runs each server on one core, and wrk and the upstream on the other. Answers from memory are compared with a bare
asyncio.Protocol that answers from memory; proxied calls, with params that never repeat, with a bare pass-through proxy.
With us the key check, all three limits, units and metrics are on; the access log is off. nginx and eRPC are measured
too when they are installed. All servers run during the whole time, and the loads go round: so other work on the
machine, which changes from minute to minute, disturbs all of them alike. The table has medians over the rounds:
requests per second, the processor time of the server for one request, both as a share of the baseline, and the latency
that is added at one connection. The two shares differ where the load, on its one core, cannot keep the baseline busy.

    python bench/rpc.py [--rounds 5] [--seconds 3]
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
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.peers.others import erpc, nginx  # noqa: E402 - found by the line above when run as a script

SERVER_CORE, LOAD_CORE = "0", "1"
CONNECTIONS = 64
NETWORK = "ethereum/sepolia"

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


class Figures:
    """One kind of load on one server: requests per second, and microseconds of processor time for each."""

    def __init__(self, rate: float, cpu: float | None) -> None:
        self.rate = rate
        self.cpu = cpu


def pinned(core: str, command: list[str]) -> list[str]:
    """The command bound to one core, where the machine can do that."""
    return ["taskset", "-c", core, *command] if shutil.which("taskset") else command


def on_server_core(command: list[str]) -> list[str]:
    """The command bound to the core of the servers."""
    return pinned(SERVER_CORE, command)


@contextmanager
def peer(core: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """A bare server; gives its port and its process."""
    process = subprocess.Popen(
        pinned(core, [sys.executable, "-m", "bench.peers.bare", *arguments]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def capstan(core: str, upstream: int) -> Iterator[tuple[int, str, int]]:
    """The service with one upstream; gives its port, a key and its process."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")},
            "CAPSTAN_DATA_DIR": directory,
            "CAPSTAN_LOG__ACCESS": "false",
            # Large, so that nothing is refused; without a limit nothing would be counted.
            "CAPSTAN_PLANS__ENTERPRISE__REQUESTS_PER_SECOND": "1000000",
            "CAPSTAN_PLANS__ENTERPRISE__UNITS_PER_SECOND": "100000000",
            "CAPSTAN_PLANS__ENTERPRISE__REQUESTS_PER_DAY": "1000000000",
            "CAPSTAN_NETWORKS": f'{{"{NETWORK}" = {{upstreams = ["http://127.0.0.1:{upstream}"]}}}}',
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
            yield port, json.loads(made.stdout)["key"], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def processor_seconds(pid: int) -> float | None:
    """What a process has used so far, all its threads together; None where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(url: str, script: str, seconds: int, pid: int, connections: int = CONNECTIONS) -> Figures:
    """What wrk gets through; fails when an answer was not 2xx."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", file.name, url]
        before = processor_seconds(pid)
        done = subprocess.run(
            pinned(LOAD_CORE, command), check=True, capture_output=True, text=True, timeout=seconds + 60
        )
        after = processor_seconds(pid)
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"the load met errors:\n{done.stdout}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    count = re.search(r"(\d+) requests in", done.stdout)
    assert rate is not None, done.stdout
    assert count is not None, done.stdout
    cpu = None if before is None or after is None else (after - before) / int(count[1]) * 1_000_000
    return Figures(float(rate[1]), cpu)


def one_at_a_time(url: str, key: str, calls: int = 3000) -> float:
    """Median microseconds of a call on one connection, one after the other."""
    times = []
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for count in range(calls):
            address = f"0x{count + calls:040x}"
            body = f'{{"jsonrpc":"2.0","id":{count},"method":"eth_getBalance","params":["{address}","latest"]}}'
            request = (
                f"POST {parts.path or '/'} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            )
            began = time.perf_counter()
            connection.sendall(request.encode())
            answer = connection.recv(65536)
            times.append(time.perf_counter() - began)
            if b" 200 OK" not in answer[:20]:
                raise SystemExit(f"unexpected answer: {answer[:300]!r}")
    return statistics.median(times) * 1_000_000


class Server:
    """One server that is measured, with what each round found."""

    def __init__(self, name: str, pids: tuple[int, int], urls: tuple[str, str], key: str = "none") -> None:
        self.name = name
        # For answers from memory, and for proxied calls.
        self.pids = pids
        self.urls = urls
        self.key = key
        self.memory: list[Figures] = []
        self.proxied: list[Figures] = []
        self.added: list[float] = []

    def warm_up(self) -> None:
        """Let it learn what it learns."""
        load(self.urls[0], SAME_CALL % self.key, 1, self.pids[0])
        load(self.urls[1], OTHER_CALLS % self.key, 1, self.pids[1])


def measure(servers: list[Server], node: int, rounds: int, seconds: int) -> None:
    """Each kind of load on one server after the other, again and again, so that other work disturbs all alike."""
    for server in servers:
        server.warm_up()
    for _ in range(rounds):
        for server in servers:
            server.memory.append(load(server.urls[0], SAME_CALL % server.key, seconds, server.pids[0]))
        for server in servers:
            server.proxied.append(load(server.urls[1], OTHER_CALLS % server.key, seconds, server.pids[1]))
        for server in servers:
            direct = one_at_a_time(f"http://127.0.0.1:{node}/", "none")
            server.added.append(one_at_a_time(server.urls[1], server.key) - direct)


def ratio(ours: list[Figures], base: list[Figures]) -> str:
    """The median over the rounds of what is ours in the baseline of the same round: by rate, and by processor time."""
    by_rate = statistics.median(one.rate / other.rate for one, other in zip(ours, base, strict=True))
    pairs = [(one.cpu, other.cpu) for one, other in zip(ours, base, strict=True) if one.cpu and other.cpu]
    by_cpu = f"{statistics.median(other / one for one, other in pairs):.2f}" if pairs else "-"
    return f"{by_rate:>7.2f}{by_cpu:>7}"


def cells(ours: list[Figures], base: list[Figures]) -> str:
    """The medians of one kind of load."""
    rate = statistics.median(one.rate for one in ours)
    known = [one.cpu for one in ours if one.cpu]
    cpu = f"{statistics.median(known):.1f}" if known else "-"
    return f"{rate:>10,.0f}{cpu:>8}{ratio(ours, base)}"


def show(servers: list[Server]) -> None:
    """The table. The first server is the baseline."""
    base = servers[0]
    columns = f"{'req/s':>10}{'CPU µs':>8}{'ratio':>7}{'of CPU':>7}"
    print(f"{'':36}{'from memory':^32}{'proxied':^32}{'one at a time':>14}")
    print(f"{'':36}{columns}{columns}{'added µs':>14}")
    for server in servers:
        both = cells(server.memory, base.memory) + cells(server.proxied, base.proxied)
        print(f"{server.name:36}{both}{statistics.median(server.added):>14.0f}", flush=True)


def main() -> None:
    """Run everything."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=int, default=3, help="how long each load runs")
    arguments.add_argument("--rounds", type=int, default=5, help="how often each load runs on each server")
    options = arguments.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("bench/rpc.py needs wrk on PATH (Debian package wrk)")
    with ExitStack() as stack:
        node, _ = stack.enter_context(peer(LOAD_CORE, "0"))
        answering, answering_pid = stack.enter_context(peer(SERVER_CORE, "0"))
        passing, passing_pid = stack.enter_context(peer(SERVER_CORE, "0", str(node)))
        port, key, pid = stack.enter_context(capstan(SERVER_CORE, node))
        url = f"http://127.0.0.1:{port}/v1/rpc/{NETWORK}"
        servers = [
            Server(
                "bare asyncio.Protocol (baseline)",
                (answering_pid, passing_pid),
                (f"http://127.0.0.1:{answering}/", f"http://127.0.0.1:{passing}/"),
            ),
            Server("capstan", (pid, pid), (url, url), key),
        ]
        for start in (nginx, erpc):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            other = stack.enter_context(start(on_server_core, node, directory))
            if other is None:
                print(f"{start.__name__} is not installed, so it is not in the table")
                continue
            servers.append(Server(other.name, (other.pid, other.pid), (other.memory_url, other.proxied_url)))
        measure(servers, node, options.rounds, options.seconds)
        show(servers)


if __name__ == "__main__":
    main()
