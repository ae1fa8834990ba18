"""A service on the development chain, and schemathesis, which compares what it answers with its own description.

Used by `tests/e2e/test_openapi.py` and, with more examples, by `bench/openapi.py`.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.devnet import EvmDevnet
from tests.support.service import Service, run_json

_SECONDS = 280.0


class Described:
    """A running service and a key for it."""

    def __init__(self, service: Service, key: str) -> None:
        self.service = service
        self.key = key


@contextmanager
def described_service(directory: Path, devnet: EvmDevnet) -> Iterator[Described]:
    """A service on the development chain."""
    data = str(directory / "data")
    key = run_json("keys", "create", "--plan", "enterprise", "--data-dir", data)["key"]
    # With `debug`, as `capstan dev` has it: internal transfers are found in traces.
    network = f'upstreams = ["{devnet.url}"], extra_namespaces = ["debug"]'
    environment = {
        "CAPSTAN_MODE": "development",
        "CAPSTAN_LOG__ACCESS": "false",
        "CAPSTAN_GAS__SIGNER": devnet.deployment.paymaster_signer.private_key,
        "CAPSTAN_LIMITS__ANONYMOUS_REQUESTS_PER_SECOND": "1000000",
        "CAPSTAN_NETWORKS": f'{{"ethereum/devnet" = {{{network}}}}}',
    }
    service = Service(["--data-dir", data], environment, directory)
    try:
        yield Described(service, key)
    finally:
        service.kill()


def find_faults(
    described: Described,
    directory: Path,
    *options: str,
    examples: int,
    configuration: str = "",
    seconds: float = _SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Send so many requests of each kind to each path. Ends with code 0 when there is nothing to find fault with."""
    (directory / "schemathesis.toml").write_text(configuration)
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{described.service.base_url}/openapi.json"),
            *("--header", f"X-API-Key: {described.key}"),
            *("--max-examples", str(examples)),
            *("--seed", "1", "--generation-deterministic", "--no-color"),
            # A machine that stalls is no fault of the description.
            *("--suppress-health-check", "too_slow"),
            *options,
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
