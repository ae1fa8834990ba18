"""How fast the WebSocket feed is, as ratios to a bare broadcast loop measured in the same run.

The server runs on one core, its clients on the other. The baseline is `broadcast` of the `websockets` library on
uvloop, which sends one and the same message to everybody and checks nothing. The feed does so with keys, limits, usage,
metrics and an id for each subscription; only the chain is made on command. What is compared is the CPU time that the
server takes for one message to one client, because the time until it arrives depends on the clients as well.

    python bench/feed.py [--clients 2000] [--log-clients 500] [--heads 30]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capstan.feed.filters import LogFilter
from capstan.feed.matching import LogIndex

ROOT = Path(__file__).resolve().parent.parent
SERVER_CORE, CLIENT_CORE = "0", "1"
MOST_RATIO = 1.5
MOST_MATCHING_MILLISECONDS = 10.0
INTERVAL = 0.15
ROUND_HEADS = 5
DISTURBED_CLIENTS = 500
HALF_OPEN, DISTURBERS = 10_000, 100


class Peer:
    """A process that is talked to by lines."""

    def __init__(self, core: str, *command: str) -> None:
        pinned = ["taskset", "-c", core] if shutil.which("taskset") else []
        self.process = subprocess.Popen(
            [*pinned, sys.executable, "-m", *command],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> list[str]:
        """The words of the next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark has ended")
        return line.split()

    def write(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def peers(*started: Peer) -> Iterator[None]:
    try:
        yield
    finally:
        for peer in started:
            peer.end()


def run(server: Peer, path: str, clients: int, log_clients: int, heads: int) -> float:
    """Send heads to all clients, print the times, and return the server's CPU microseconds for each message."""
    port = server.read()[0]
    audience = Peer(
        CLIENT_CORE, "bench.peers.feed_clients", f"ws://127.0.0.1:{port}{path}", str(clients), str(log_clients)
    )
    with peers(server, audience):
        audience.read()
        everybody = clients + log_clients
        server.write(f"heads 3 {INTERVAL}")
        audience.write(str(3 * everybody))
        server.read()
        audience.read()
        # Short rounds, and several: one that nothing disturbed is among them.
        rounds: list[tuple[float, float, float]] = []
        for _ in range(max(1, heads // ROUND_HEADS)):
            server.write(f"heads {ROUND_HEADS} {INTERVAL}")
            audience.write(str(ROUND_HEADS * everybody))
            seconds = float(server.read()[0])
            _, median, p99, _ = audience.read()
            rounds.append((seconds / (ROUND_HEADS * everybody) * 1e6, float(median), float(p99)))
        cost = min(figures[0] for figures in rounds)
        print(
            f"  {cost:6.2f} us of CPU for each client and message; from sending to receiving: median "
            f"{min(figures[1] for figures in rounds)} ms, p99 {min(figures[2] for figures in rounds)} ms "
            f"(the best of {len(rounds)} rounds)"
        )
        return cost


def disturbed(server: Peer, path: str, clients: int, heads: int) -> None:
    """Print the times of some clients alone, and among many that are half-open, silent, slow or send garbage."""
    port = server.read()[0]
    audience = Peer(CLIENT_CORE, "bench.peers.feed_clients", f"ws://127.0.0.1:{port}{path}", str(clients), "0")
    with peers(server, audience):
        audience.read()

        def measure() -> tuple[float, float]:
            """The best median and p99 of several rounds."""
            rounds = []
            for _ in range(max(1, heads // ROUND_HEADS)):
                server.write(f"heads {ROUND_HEADS} {INTERVAL / 3}")
                audience.write(str(ROUND_HEADS * clients))
                server.read()
                rounds.append(audience.read())
            return min(float(figures[1]) for figures in rounds), min(float(figures[2]) for figures in rounds)

        measure()
        median, alone = measure()
        crowd = Peer(CLIENT_CORE, "bench.peers.disturbers", port, path, str(HALF_OPEN), str(DISTURBERS))
        with peers(crowd):
            half_open = crowd.read()[1]
            median_among, among = measure()
        print(f"  alone: median {median} ms, p99 {alone} ms")
        print(
            f"  among {half_open} half-open and {DISTURBERS} each silent, slow, garbage: median {median_among} ms, ",
            end="",
        )
        print(f"p99 {among} ms, that is {among / alone:.2f} times")


def capstan(directory: str) -> tuple[Peer, str]:
    """The service, and the path of its feed with a key."""
    command = [sys.executable, "-m", "capstan", "keys", "create", "--plan", "enterprise", "--json"]
    made = subprocess.run([*command, "--data-dir", directory], check=True, capture_output=True, timeout=60, cwd=ROOT)
    key = json.loads(made.stdout)["key"]
    return Peer(SERVER_CORE, "bench.peers.feed_server", directory), f"/v1/ws/ethereum/sepolia?apiKey={key}"


def matching(filters: int, logs: int) -> float:
    """Milliseconds to match a block against distinct filters: the usual one, transfers of a token to one account."""
    index: LogIndex[int] = LogIndex()
    transfer = "0x" + "dd" * 32
    tokens = [f"0x{number:040x}" for number in range(20)]
    for number in range(filters):
        receiver = frozenset({f"0x{number:064x}"})
        index.add(number, LogFilter(frozenset({tokens[number % 20]}), (frozenset({transfer}), None, receiver)))
    block = [(tokens[number % 20], (transfer, "0x" + "11" * 32, f"0x{number:064x}")) for number in range(logs)]
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        matched = sum(len(index.match(address, topics)) for address, topics in block)
        best = min(best, time.perf_counter() - began)
    if matched != logs:
        raise SystemExit(f"{matched} matches, expected {logs}")
    return best * 1e3


def main() -> None:
    """Run everything."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=2000, help="clients with newHeads")
    options.add_argument("--log-clients", type=int, default=500, help="clients with distinct logs filters, at most 500")
    options.add_argument("--heads", type=int, default=30, help="heads that are sent")
    chosen = options.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    took = matching(10_000, 500)
    print(f"matching 10,000 distinct filters against a block of 500 logs: {took:.2f} ms")
    print(f"bare broadcast of `websockets`, {chosen.clients} clients:")
    bare = run(Peer(SERVER_CORE, "bench.peers.broadcast"), "/", chosen.clients, 0, chosen.heads)
    with tempfile.TemporaryDirectory() as directory:
        server, path = capstan(directory)
        print(f"capstan, {chosen.clients} clients with newHeads:")
        heads = run(server, path, chosen.clients, 0, chosen.heads)
    with tempfile.TemporaryDirectory() as directory:
        server, path = capstan(directory)
        print(f"capstan, {chosen.clients} clients with newHeads and {chosen.log_clients} with distinct logs filters:")
        both = run(server, path, chosen.clients, chosen.log_clients, chosen.heads)
    with tempfile.TemporaryDirectory() as directory:
        server, path = capstan(directory)
        print(f"capstan, {DISTURBED_CLIENTS} clients with newHeads:")
        disturbed(server, path, DISTURBED_CLIENTS, 2 * chosen.heads)
    print(f"ratio to the bare broadcast: {heads / bare:.2f} with heads, {both / bare:.2f} with heads and logs")
    if max(heads, both) > MOST_RATIO * bare or took > MOST_MATCHING_MILLISECONDS:
        raise SystemExit(f"over the bound: {MOST_RATIO} times the baseline, {MOST_MATCHING_MILLISECONDS} ms")


if __name__ == "__main__":
    main()
