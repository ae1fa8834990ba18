"""A running service with gas policies and sponsorship on a development chain.

Used by the tests of gas policies. The service is a process, as users have it; the chain is a real one.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.service import run_json

_SECONDS = 30.0


class Gas:
    """The gas paths of a running service, for one key."""

    def __init__(self, gateway: Gateway, devnet: EvmDevnet, directory: Path, key: str | None = None) -> None:
        self.gateway = gateway
        self.devnet = devnet
        self.directory = directory
        self.key = key or gateway.key
        self.client = httpx.Client(
            base_url=gateway.service.base_url, headers={"X-API-Key": self.key}, timeout=_SECONDS, trust_env=False
        )

    def create(self, rules: Any = None, **body: Any) -> httpx.Response:
        """POST /gas/policies, on ethereum unless told otherwise."""
        given = {"name": "test", "chain": "ethereum", "rules": rules or {"max_total_usd": "100"}, **body}
        return self.client.post("/gas/policies", json=given)

    def policy(self, rules: Any = None, **body: Any) -> dict[str, Any]:
        """A new policy."""
        answer = self.create(rules, **body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def read(self, policy_id: str) -> httpx.Response:
        """GET /gas/policies/{id}."""
        return self.client.get(f"/gas/policies/{policy_id}")

    def change(self, policy_id: str, **body: Any) -> httpx.Response:
        """PATCH /gas/policies/{id}."""
        return self.client.patch(f"/gas/policies/{policy_id}", json=body)

    def page(self, **query: Any) -> httpx.Response:
        """GET /gas/policies."""
        return self.client.get("/gas/policies", params=query)

    def with_key(self, *options: str) -> "Gas":
        """The same service for a new key."""
        made = run_json("keys", "create", *options, "--data-dir", str(self.directory / "data"))
        return Gas(self.gateway, self.devnet, self.directory, made["key"])


@contextlib.contextmanager
def serving_gas(
    directory: Path, devnet: EvmDevnet, settings: Mapping[str, Any] | None = None, **network: Any
) -> Iterator[Gas]:
    """`capstan serve` with the contracts of this chain; `network` are further settings of the network."""
    deployment = devnet.deployment
    native = next(feed.address for feed in deployment.price_feeds if feed.token is None)
    contracts = {
        "entry_points": deployment.entry_points,
        "factories": deployment.factories,
        "paymasters": deployment.paymasters,
        "multicall3": deployment.multicall3,
        "native_usd_feed": native,
        **network,
    }
    chosen = {"mode": "development", "gas.signer": deployment.paymaster_signer.private_key, **(settings or {})}
    with serving(directory, [devnet.url], settings=chosen, **contracts) as gateway:
        yield Gas(gateway, devnet, directory)
