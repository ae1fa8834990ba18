"""The surroundings of what processes share of a network: a real Valkey or a cluster of two, and topics on it.

`tests/conftest.py` makes the fixture `valkey` known to every test. Tests that use it run once for each kind of server.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from capstan.chain.heads.headers import Header
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.shared.models import Entry, Finality, ShareOptions
from capstan.chain.shared.store import SharedStore
from capstan.chain.shared.topic import Topic
from capstan.core.clock import SystemClock
from capstan.limits.redis import connect

QUICK = ShareOptions(
    lease_seconds=0.6,
    tick_seconds=0.05,
    wait_seconds=20.0,
    # The first command to a cluster asks where everything is.
    command_seconds=20.0,
    read_seconds=0.2,
    rest_seconds=0.05,
)
HEADER = Header(7, "0x" + "07" * 32, "0x" + "06" * 32, 1_700_000_000)
CLOCK = SystemClock()


class Valkey:
    """Clients of one server, and a network of the test's own on it."""

    def __init__(self, url: str, *, cluster: bool) -> None:
        self.client: Any
        self._reading: Any
        self.client, self._reading = (
            connect(url, cluster=cluster, connect_timeout=5.0, command_timeout=20.0) for _ in range(2)
        )
        self.spec = spec_of(secrets.token_hex(4))

    def store(self, holder: str, options: ShareOptions = QUICK) -> SharedStore:
        return SharedStore(self.client, self._reading, self.spec, holder, options)

    async def open(self) -> None:
        # The client of a cluster asks first where everything is, and does that badly when many want something at once.
        await asyncio.gather(*(client.initialize() for client in (self.client, self._reading)))

    async def close(self) -> None:
        await asyncio.gather(*(client.aclose() for client in (self.client, self._reading)))


def spec_of(network: str, url: str = "http://127.0.0.1:1") -> NetworkSpec:
    upstreams = (UpstreamSpec(name="one", url=url),)
    return NetworkSpec(chain="ethereum", network=network, family="evm", block_time_ms=1000, upstreams=upstreams)


@pytest.fixture(params=["valkey", "cluster"])
async def valkey(request: pytest.FixtureRequest) -> AsyncIterator[Valkey]:
    is_cluster = request.param == "cluster"
    found = Valkey(request.getfixturevalue("valkey_cluster_url" if is_cluster else "valkey_url"), cluster=is_cluster)
    await found.open()
    yield found
    await found.close()


class Listener:
    """A topic, and what it was told."""

    def __init__(self, store: SharedStore, **options: Any) -> None:
        self.heard: list[tuple[Entry, bool]] = []
        self.is_able = True
        self.unled = 0
        self.topic = Topic(
            store,
            "heads",
            CLOCK,
            QUICK,
            able=lambda: self.is_able,
            wanted=lambda: options.get("wanted", False),
            on_entry=lambda entry, earlier: self.heard.append((entry, earlier)),
            on_unled=self._lost,
        )
        self.topic.start()

    def _lost(self) -> None:
        self.unled += 1

    def numbers(self) -> list[int]:
        return [entry.finalized for entry, _ in self.heard if isinstance(entry, Finality)]

    async def close(self) -> None:
        await self.topic.close()
