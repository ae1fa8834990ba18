"""Disturbs a cluster at random under load, and counts what was lost or doubled. Not a measure of speed.

Run `python bench/cluster_faults.py [seconds] [seed]`; without arguments ten minutes. Two supervisors with two processes
each share PostgreSQL and a Redis Cluster of three nodes. One of them at a time is killed, paused and woken, or loses a
node of Redis or the database for a moment, while tokens are minted to a webhook's address and user operations are sent.
Exits with 1 when an event was not delivered or has two ids or two contents, an accepted operation was not included, or
a disturbance was not over 30 seconds after its end (the goal is 15; the time is printed). It does not cut networks, and
does not look at minutes of usage or at who wrote while two believed that they led.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
from eth_account import Account

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.devnet.install import ensure_node_project
from tests.support.bundler import Accounts, BundlerError
from tests.support.deployment import Deployment, deployed, end, is_running, ready_processes, wait_ready
from tests.support.devnet import EvmDevnet, running_devnet
from tests.support.service import Service
from tests.support.webhooks import Hooks, Receiver, mint

_SECONDS = 600.0
_SEED = 10
_RECOVERY_SECONDS = 30.0
_PATH = "/faults"


class Load:
    """Mints and operations, one after the other, until stopped. What was accepted is remembered."""

    def __init__(self, deployment: Deployment, services: list[Service], devnet: EvmDevnet, holder: str) -> None:
        self.minted = 0
        self.accepted: list[str] = []
        self.refused = 0
        self._deployment = deployment
        self._services = services
        self._devnet = devnet
        self._holder = holder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        accounts, token = Accounts(self._devnet, "0.7"), self._devnet.deployment.tokens[0].address
        while not self._stop.wait(0.2):
            self.minted += 1
            mint(self._devnet, self._devnet.deployment.accounts[11], token, self._holder, self.minted)
            operation, _ = accounts.new()
            bundler = self._deployment.bundler(self._services[self.minted % len(self._services)])
            try:
                self.accepted.append(accounts.send(bundler, operation))
            except (httpx.HTTPError, BundlerError, AssertionError):
                # Not accepted: whoever sent it knows.
                self.refused += 1

    def stop(self) -> None:
        """Let the one under way finish."""
        self._stop.set()
        self._thread.join(120)


def waited(condition: Callable[[], bool], seconds: float) -> float | None:
    """How long it took; None when it did not come about."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if condition():
            return time.monotonic() - began
        threading.Event().wait(0.1)
    return None


def is_ready(service: Service) -> bool:
    """Whether whoever answers says that it is ready."""
    try:
        return httpx.get(f"{service.origin}/readyz", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def disturb(dice: random.Random, deployment: Deployment, services: list[Service]) -> str:
    """One disturbance, over when this returns."""
    kind = dice.choice(("kill", "pause", "redis", "database"))
    if kind in ("kill", "pause"):
        name, pids = dice.choice(sorted(ready_processes(dice.choice(services)).items()))
        if not is_running(pids[-1]):
            return f"{kind}: {name} was gone already"
        if kind == "kill":
            os.kill(pids[-1], signal.SIGKILL)
            return f"kill {name}"
        os.kill(pids[-1], signal.SIGSTOP)
        threading.Event().wait(dice.uniform(1, 20))
        os.kill(pids[-1], signal.SIGCONT)
        return f"pause {name}"
    if kind == "redis":
        node = dice.choice(deployment.valkey.nodes)
        node.freeze()
        threading.Event().wait(dice.uniform(1, 5))
        node.resume()
        return "a node of Redis stands still"
    deployment.postgres.kill()
    threading.Event().wait(dice.uniform(0, 3))
    deployment.postgres.start()
    return "PostgreSQL crashes and starts again"


def main(seconds: float, seed: int) -> int:
    """Disturb, settle, count, print."""
    dice, receiver, slow = random.Random(seed), Receiver(), []
    with (
        running_devnet(ensure_node_project(print)) as devnet,
        tempfile.TemporaryDirectory() as home,
        deployed(Path(home), devnet) as deployment,
    ):
        services = [deployment.start("--workers", "2") for _ in range(2)]
        try:
            for service in services:
                wait_ready(service, 3)
            holder = str(Account.create().address)
            hooks = Hooks(deployment.gateway(services[0]), devnet, Path(home))
            hooks.created(receiver.url(_PATH), event_type="TOKEN_TRANSFER", config={"receivers": [holder]})
            load, ends = Load(deployment, services, devnet, holder), time.monotonic() + seconds
            while time.monotonic() < ends:
                what = disturb(dice, deployment, services)
                took = waited(lambda: all(map(is_ready, services)), _RECOVERY_SECONDS)
                print(f"{what}; ready again after {'never' if took is None else f'{took:.1f} s'}", flush=True)
                slow += [what] if took is None else []
                threading.Event().wait(dice.uniform(1, 6))
            load.stop()
            verdict = judged(load, deployment, services, receiver)
        finally:
            for service in services:
                end(service)
            receiver.close()
    print(f"seed {seed}: {verdict['text']}; disturbances that were not over in time: {slow or 'none'}")
    return int(bool(slow) or not verdict["good"])


def judged(load: Load, deployment: Deployment, services: list[Service], receiver: Receiver) -> dict[str, object]:
    """What became of everything that was accepted."""
    bundler = deployment.bundler(services[0])
    included = waited(lambda: all(bundler.status(each) == "included" for each in load.accepted[-5:]), 120)
    lost = [each for each in load.accepted if bundler.status(each) != "included"] if load.accepted else []

    def delivered() -> set[int]:
        return {int(request.json["data"]["value"]) for request in receiver.at(_PATH)}

    waited(lambda: len(delivered()) == load.minted, 120)
    bodies: dict[str, set[bytes]] = {}
    for request in receiver.at(_PATH):
        bodies.setdefault(request.json["id"], set()).add(request.body)
    values = Counter(int(request.json["data"]["value"]) for request in receiver.at(_PATH))
    ids, missing = len(bodies), load.minted - len(values)
    two = sum(len(each) > 1 for each in bodies.values())
    repeats = sum(values.values()) - ids
    good = not lost and included is not None and not missing and not two and ids == load.minted
    text = (
        f"{load.minted} transfers, {missing} events missing, {ids} ids, {two} with two contents, {repeats} sent again; "
        f"{len(load.accepted)} operations accepted, {len(lost)} not included, {load.refused} refused"
    )
    return {"good": good, "text": text}


if __name__ == "__main__":
    duration = float(sys.argv[1]) if len(sys.argv) > 1 else _SECONDS
    sys.exit(main(duration, int(sys.argv[2]) if len(sys.argv) > 2 else _SEED))
