"""How many requests two API processes answer against one, on PostgreSQL and a Redis Cluster of three nodes.

Run `python bench/cluster.py [seconds]`. The load is `wrk`, which takes processor time too: with two cores the ratio
of requests per second says little, so the processor time per request is printed beside it. The verdict is on the ratio
of requests alone: run it on an idle machine with three cores or more. The goal is 1.7.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.devnet.install import ensure_node_project
from tests.support.deployment import Deployment, deployed, end, ready_processes, wait_ready
from tests.support.devnet import running_devnet
from tests.support.gateway import NETWORK

_SECONDS = 5
_GOAL = 1.7
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["X-API-Key"] = "{key}"
wrk.body = '{{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}}'
"""


def processor_seconds(pids: list[int]) -> float:
    """What these processes used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(deployment: Deployment, workers: int, seconds: int, script: Path) -> tuple[float, float]:
    """Requests per second, and microseconds of processor time per request."""
    service = deployment.start("--roles", "api", "--workers", str(workers))
    try:
        pids = [service.process.pid]
        if workers > 1:
            wait_ready(service, workers)
            pids = [each[-1] for each in ready_processes(service).values()]
        before = processor_seconds(pids)
        url = f"{service.base_url}/rpc/{NETWORK}"
        command = ["wrk", "-t1", "-c64", f"-d{seconds}s", "-s", str(script), url]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout
        used = processor_seconds(pids) - before
    finally:
        end(service)
    if "Non-2xx" in text:
        raise SystemExit(f"some requests were refused:\n{text}")
    rate = float(text.split("Requests/sec:")[1].split()[0])
    count = int(text.split(" requests in ")[0].split()[-1])
    return rate, used / count * 1e6


def main(seconds: int) -> int:
    """Measure both, print, judge."""
    with (
        running_devnet(ensure_node_project(print)) as devnet,
        tempfile.TemporaryDirectory() as home,
        deployed(Path(home), devnet) as deployment,
    ):
        script = Path(home) / "load.lua"
        script.write_text(_SCRIPT.format(key=deployment.key))
        one, one_cost = measured(deployment, 1, seconds, script)
        two, two_cost = measured(deployment, 2, seconds, script)
    print(f"cores {os.cpu_count()}, load average {os.getloadavg()[0]:.1f}")
    print(f"one process    {one:8.0f} requests/s  {one_cost:6.1f} us of processor time each")
    print(f"two processes  {two:8.0f} requests/s  {two_cost:6.1f} us of processor time each")
    by_cost = 2 * one_cost / two_cost
    print(f"ratio {two / one:.2f} (goal {_GOAL}); by processor time, with a core for each: {by_cost:.2f}")
    return int(two / one < _GOAL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else _SECONDS))
