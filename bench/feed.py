"""How fast the WebSocket feed is, as ratios to a bare broadcast loop measured in the same run.

The server runs on one core, its clients on the other. The baseline is `broadcast` of the `websockets` library on
uvloop, which sends one and the same message to everybody and checks nothing. The feed does so with keys, limits, usage,
metrics and an id for each subscription; only the chain is made on command. What is compared is the CPU time that the
server takes for one message to one client, because the time until it arrives depends on the clients as well.

    python bench/feed.py [--clients 2000] [--log-clients 500] [--heads 30] [--pairs 16] [--disturbed]
"""

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from capstan.feed.filters import LogFilter
from capstan.feed.matching import LogIndex

ROOT = Path(__file__).resolve().parent.parent
SERVER_CORE, CLIENT_CORE = "0", "1"
MOST_RATIO = 1.5
MOST_DISTURBANCE = 1.2
MOST_MATCHING_MILLISECONDS = 10.0
INTERVAL = 0.15
ROUND_HEADS = 5
DISTURBED_CLIENTS = 500
HALF_OPEN, DISTURBERS = 10_000, 100
DISTURBED_HEADS = 10
CROWD_SECONDS = 0.3


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

    def hurry(self) -> None:
        """Let it run before everything else on the machine, where that is allowed."""
        with suppress(OSError, AttributeError):
            os.sched_setscheduler(self.process.pid, os.SCHED_FIFO, os.sched_param(1))

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


class Figures(NamedTuple):
    """What one round took, in milliseconds."""

    median: float
    p99: float
    # Of the server's CPU for one head, whatever it did besides included.
    cpu: float


class Audience:
    """A server with clients that are measured."""

    def __init__(self, server: Peer, path: str, clients: int) -> None:
        self.server = server
        self.path = path
        self.port = server.read()[0]
        self.clients = clients
        self.peer = Peer(
            CLIENT_CORE, "bench.peers.feed_clients", f"ws://127.0.0.1:{self.port}{path}", str(clients), "0"
        )

    def round(self) -> Figures:
        """Send some heads; the median and p99 of the times to the clients, and the server's CPU time for a head."""
        self.server.write(f"heads {DISTURBED_HEADS} {INTERVAL / 3}")
        self.peer.write(str(DISTURBED_HEADS * self.clients))
        seconds = float(self.server.read()[0])
        _, middle, p99, _ = self.peer.read()
        return Figures(float(middle), float(p99), seconds / DISTURBED_HEADS * 1e3)


def disturbed(calm: tuple[Peer, str], busy: tuple[Peer, str], clients: int, pairs: int) -> float:
    """The times of some clients alone, and among many that are half-open, silent, slow or send garbage; their ratio.

    Two servers on the same core, which take turns, so that whatever else the machine does meets both. Those that
    disturb are stopped while the other one has its turn. The slow ones are subscribed too, and never read.
    """
    alone, among = Audience(*calm, clients), Audience(*busy, clients)
    with peers(alone.server, among.server, alone.peer, among.peer):
        alone.peer.read()
        among.peer.read()
        for peer in (alone.server, among.server, alone.peer, among.peer):
            peer.hurry()
        crowd = Peer(CLIENT_CORE, "bench.peers.disturbers", among.port, among.path, str(HALF_OPEN), str(DISTURBERS))
        with peers(crowd):
            half_open = crowd.read()[1]
            # What they themselves cost must not be taken for what the server takes longer.
            os.setpriority(os.PRIO_PROCESS, crowd.process.pid, 19)
            rounds: dict[Audience, list[Figures]] = {alone: [], among: []}
            for number in range(pairs + 2):
                for audience in (alone, among) if number % 2 else (among, alone):
                    crowd.process.send_signal(signal.SIGCONT if audience is among else signal.SIGSTOP)
                    # They go on for a while before anything is measured.
                    time.sleep(CROWD_SECONDS)
                    rounds[audience].append(audience.round())
    calm_figures, busy_figures = (_middle(rounds[audience][2:]) for audience in (alone, among))
    print(
        f"  alone: median {calm_figures.median:.2f} ms, p99 {calm_figures.p99:.2f} ms, {calm_figures.cpu:.2f} ms of CPU"
    )
    print(
        f"  among {half_open} half-open and {DISTURBERS} each silent, slow, garbage: "
        f"median {busy_figures.median:.2f} ms, p99 {busy_figures.p99:.2f} ms, {busy_figures.cpu:.2f} ms of CPU"
    )
    print(
        f"  p99 is {busy_figures.p99 / calm_figures.p99:.2f} times that of those alone "
        f"(medians of {pairs} rounds of {DISTURBED_HEADS} heads, in turns)"
    )
    return busy_figures.p99 / calm_figures.p99


def _middle(rounds: list[Figures]) -> Figures:
    """The median of each figure."""
    return Figures(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def capstan(directory: str) -> tuple[Peer, str]:
    """The service, and the path of its feed with a key."""
    command = [sys.executable, "-m", "capstan", "keys", "create", "--plan", "enterprise", "--json"]
    made = subprocess.run([*command, "--data-dir", directory], check=True, capture_output=True, timeout=60, cwd=ROOT)
    key = json.loads(made.stdout)["key"]
    return Peer(SERVER_CORE, "bench.peers.feed_server", directory), f"/v1/ws/ethereum/sepolia?apiKey={key}"


def disturbance(pairs: int) -> None:
    """Measure what clients that disturb mean for the others, and end when it is too much."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        print(f"capstan, {DISTURBED_CLIENTS} clients with newHeads:")
        ratio = disturbed(capstan(one), capstan(two), DISTURBED_CLIENTS, pairs)
    if ratio > MOST_DISTURBANCE:
        raise SystemExit(f"over the bound: {MOST_DISTURBANCE} times the p99 of those alone")


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
    options.add_argument("--pairs", type=int, default=16, help="rounds with and without clients that disturb")
    options.add_argument("--disturbed", action="store_true", help="measure nothing but that")
    chosen = options.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if chosen.disturbed:
        disturbance(chosen.pairs)
        return
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
    print(f"ratio to the bare broadcast: {heads / bare:.2f} with heads, {both / bare:.2f} with heads and logs")
    if max(heads, both) > MOST_RATIO * bare or took > MOST_MATCHING_MILLISECONDS:
        raise SystemExit(f"over the bound: {MOST_RATIO} times the baseline, {MOST_MATCHING_MILLISECONDS} ms")
    disturbance(chosen.pairs)


if __name__ == "__main__":
    main()
