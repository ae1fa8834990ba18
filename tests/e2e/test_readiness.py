"""What the service says of itself while a network is halted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import NETWORK, Gateway, serving
from tests.support.scripted_chain import Chain, ScriptedNode, scripted_nodes
from tests.support.servers import wait_until

FINALITY = 6
SECONDS = 60.0


@pytest.fixture
def halting(tmp_path: Path) -> Iterator[tuple[Gateway, ScriptedNode]]:
    """A service in front of one node whose chain the test writes; nobody subscribes to anything."""
    with (
        scripted_nodes(Chain.of(40), 1) as nodes,
        serving(tmp_path, [nodes[0].url], finality_depth=FINALITY, index="off") as gateway,
    ):
        yield gateway, nodes[0]


def readiness(gateway: Gateway) -> dict[str, Any]:
    answer = httpx.get(f"{gateway.service.origin}/readyz", timeout=20, trust_env=False)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_a_halted_network_is_named_until_its_chain_is_back(halting: tuple[Gateway, ScriptedNode]) -> None:
    gateway, node = halting
    assert gateway.node.block_number() == node.chain.head.number
    # Asking for the number keeps the network followed closely. These blocks are known to the service, one by one.
    node.chain = chain = node.chain.extend(3 * FINALITY, branch=0)
    wait_until(lambda: gateway.node.block_number() == chain.head.number, seconds=SECONDS)
    before = readiness(gateway)
    assert (before["status"], before["halted"]) == ("ready", {})
    node.chain = chain.fork(2 * FINALITY, 3 * FINALITY, branch=1)

    def status() -> str:
        gateway.node.block_number()
        return str(readiness(gateway)["status"])

    wait_until(lambda: status() == "degraded", seconds=SECONDS)
    assert "final" in readiness(gateway)["halted"][NETWORK]
    assert gateway.metric("capstan_stream_halted", network=NETWORK) == 1
    node.chain = chain.extend(4 * FINALITY, branch=0)
    wait_until(lambda: status() == "ready", seconds=SECONDS)
    assert gateway.metric("capstan_stream_halted", network=NETWORK) == 0
