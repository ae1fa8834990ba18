"""How fast the bundler accepts operations and brings them onto the chain, on the development chain.

Each operation creates an account (entry point 0.7). Eight clients send at once, each the next operation when the last
was accepted. Printed: the time to accept, operations included for each second from the first request to the last
inclusion, operations in a bundle, and calls to the node and processor time for each operation. Operations are made and
signed before the clock runs. Run it alone, `python -m bench.bundler [operations]`, or with `make bench`. Validation is
by simulation, which is what others do on this chain; `--full` validates by ERC-7562.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Found by the line above when run as a script.
from capstan.devnet.install import ensure_node_project
from capstan.userops.models import UserOperation
from tests.support.bundler import Accounts, BundlerClient, bundler_settings, serving_bundler
from tests.support.devnet import running_devnet, wait_until
from tests.support.gateway import Gateway

_CLIENTS = 8
_SIGNERS = 2


class Run:
    """One measurement."""

    def __init__(self, accounts: Accounts, gateway: Gateway, bundler: BundlerClient) -> None:
        self._accounts = accounts
        self._gateway = gateway
        self._bundler = bundler
        self._waiting: list[UserOperation] = []
        self._took: list[float] = []
        self._hashes: list[str] = []

    def measure(self, count: int) -> None:
        """Send so many operations and print what it took."""
        self._waiting = [self._accounts.new()[0] for _ in range(count)]
        calls, used = self._calls(), self._processor_seconds()
        began = time.perf_counter()
        threads = [threading.Thread(target=self._send) for _ in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        accepted = time.perf_counter() - began
        for operation_hash in self._hashes:
            self._bundler.wait_for(operation_hash, seconds=600)
        seconds = time.perf_counter() - began
        calls, used = self._calls() - calls, self._processor_seconds() - used
        bundles = {self._bundler.ask("eth_getUserOperationByHash", each)["transactionHash"] for each in self._hashes}
        p50, p95 = (statistics.quantiles(self._took, n=100)[place - 1] * 1000 for place in (50, 95))
        print(f"{count} operations, {_CLIENTS} clients, {_SIGNERS} signers")
        print(f"  accepted: p50 {p50:.0f} ms, p95 {p95:.0f} ms, {count / accepted:.1f} for each second")
        print(f"  included: {count / seconds:.1f} for each second, {count / len(bundles):.1f} in a bundle")
        print(f"  for each operation: {calls / count:.1f} calls to the node, {used / count * 1000:.1f} ms of processor")
        print(flush=True)

    def _send(self) -> None:
        client = BundlerClient(self._bundler.url, self._gateway.key)
        while True:
            try:
                operation = self._waiting.pop()
            except IndexError:
                return
            began = time.perf_counter()
            told = self._accounts.send(client, operation)
            self._took.append(time.perf_counter() - began)
            self._hashes.append(told)

    def _processor_seconds(self) -> float:
        """What the service has used of processors, without its node: other load does not disturb this figure."""
        fields = Path(f"/proc/{self._gateway.service.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _calls(self) -> float:
        lines = self._gateway.metrics().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("capstan_upstream_calls_total"))


def main(arguments: list[str]) -> None:
    """Measure once for each number of operations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", type=int, default=[100])
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args(arguments)
    with running_devnet(ensure_node_project(print)) as devnet, tempfile.TemporaryDirectory() as directory:
        settings = bundler_settings(devnet, signers=_SIGNERS)
        with serving_bundler(Path(directory), devnet, settings, unsafe=not given.full) as (gateway, bundler):
            accounts = Accounts(devnet, "0.7")
            warm = accounts.send(bundler, accounts.new()[0])
            wait_until(lambda: bundler.status(warm) == "included", 60, "the first operation")
            for count in given.operations:
                Run(accounts, gateway, bundler).measure(count)


if __name__ == "__main__":
    main(sys.argv[1:])
