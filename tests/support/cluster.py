"""Several service processes with one Valkey in front of nodes whose chain a test writes, and clients of each.

For the tests of what processes share: the chain grows and is reorganised at a steady pace while leaders die, are paused
or lose their Valkey. Every client holds what it is told against the parent hashes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.support.feed_client import FeedClient, connected, socket_url
from tests.support.gateway import NETWORK, OPERATOR
from tests.support.scripted_chain import Chain, ScriptedNode
from tests.support.service import Service, run_json, variables

SECONDS = 60.0
LEADS, IS_TOLD, ALONE = 2.0, 1.0, 0.0


class CountingNode(ScriptedNode):
    """A node that counts what it is asked."""

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain)
        self.asked: Counter[str] = Counter()

    def reply(self, call: dict[str, Any]) -> dict[str, Any]:
        self.asked[call["method"]] += 1
        return super().reply(call)


class Watcher:
    """One client with heads and logs."""

    def __init__(self, client: FeedClient, since: int, heads: str, logs: str) -> None:
        self._client = client
        # The head when it subscribed: it must be told from the next one on.
        self._since = since
        self._heads = heads
        self._logs = logs

    @property
    def heads(self) -> list[dict[str, Any]]:
        return self._client.of(self._heads)

    async def until_at(self, chain: Chain) -> None:
        """Wait until the client holds this chain, by its heads and by its logs."""

        def has_tip() -> bool:
            logs = self._client.of(self._logs)
            return any(head["hash"] == chain.head.hash for head in self.heads) and any(
                log["blockHash"] == chain.head.hash for log in logs
            )

        try:
            await self._client.wait_for(has_tip, SECONDS)
        except TimeoutError:
            last = self.heads[-1]["number"] if self.heads else None
            raise AssertionError(f"the client stands at {last}, the chain at {hex(chain.head.number)}") from None

    def check(self, chain: Chain) -> None:
        """Nothing was missed, nothing told twice, and what is left is the chain."""
        told = [head["hash"] for head in self.heads]
        assert len(set(told)) == len(told), "a head was told twice"
        held = held_after(self.heads)
        assert int(self.heads[0]["number"], 16) <= self._since + 1, "the first heads are missing"
        assert held[-1]["hash"] == chain.head.hash
        assert [head["hash"] for head in held] == [block.hash for block in chain[-len(held) :]], "not the chain"
        logs: list[Any] = []
        for log in self._client.of(self._logs):
            if log["removed"]:
                assert logs, "a log was taken back that was never told"
                assert logs.pop() == {**log, "removed": False}
            else:
                logs.append(log)
        held_logs = [(int(log["blockNumber"], 16), log["blockHash"][:10]) for log in logs]
        assert held_logs == [(block.number, block.hash[:10]) for block in chain[-len(logs) :]], (
            "not the logs of the chain"
        )
        assert held_logs[0][0] <= self._since + 1, "the first logs are missing"


def held_after(heads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The heads that a client holds. Each one must be the child of one that it held, or the first of all branches."""
    held: list[dict[str, Any]] = []
    for head in heads:
        while held and held[-1]["hash"] != head["parentHash"]:
            left = held.pop()
            assert int(left["number"], 16) >= int(head["number"], 16), f"a head is missing before {head['number']}"
        held.append(head)
    return held


class Cluster:
    """Processes that share a data directory, a Valkey and the nodes."""

    def __init__(
        self, directory: Path, valkey_url: str, nodes: Sequence[CountingNode], stack: AsyncExitStack, **settings: Any
    ) -> None:
        self.nodes = nodes
        self.services: list[Service] = []
        self.watchers: dict[Service, list[Watcher]] = {}
        self._directory = directory
        self._stack = stack
        self._branches = itertools.count(1)
        self._settings: Mapping[str, Any] = {
            "log.access": False,
            "server.operator_token": OPERATOR,
            "redis.url": valkey_url,
            "networks": {
                NETWORK: {
                    "upstreams": [
                        {"name": f"node-{place}", "url": node.url} for place, node in enumerate(nodes, start=1)
                    ],
                    "finality_depth": 500,
                    "index": "off",
                }
            },
            **settings,
        }
        data = str(directory / "data")
        self.key: str = run_json("keys", "create", "--plan", "enterprise", "--data-dir", data)["key"]

    @property
    def chain(self) -> Chain:
        return self.nodes[0].chain

    async def start(self, *, clients: int) -> Service:
        """One process more, with clients of its own."""
        arguments = ["--data-dir", str(self._directory / "data")]
        service = await asyncio.to_thread(Service, arguments, variables(self._settings), self._directory)
        self._stack.callback(service.kill)
        self.services.append(service)
        self.watchers[service] = [await self._watch(service) for _ in range(clients)]
        return service

    async def _watch(self, service: Service) -> Watcher:
        url = socket_url(service.base_url, key=self.key)
        client = await self._stack.enter_async_context(connected(url))
        since = self.chain.head.number
        return Watcher(client, since, await client.subscribe("newHeads"), await client.subscribe("logs", {}))

    async def standing(self, service: Service) -> float | None:
        """How the process has its heads: by leading, from the leader, or by asking for itself."""
        return await self.metric(service, "capstan_stream_shared{")

    async def metric(self, service: Service, name: str) -> float | None:
        """The sum of a metric's series."""
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        async with httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client:
            text = (await client.get(f"{service.origin}/metrics", headers=headers)).text
        found = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)]
        return sum(found) if found else None

    async def leader(self, *, but: Service | None = None) -> Service:
        """Wait until one of the living processes leads and all others are told."""
        deadline = time.monotonic() + SECONDS
        while True:
            living = [service for service in self.services if service is not but and service.process.poll() is None]
            found = {service: await self.standing(service) for service in living}
            leaders = [service for service, standing in found.items() if standing == LEADS]
            if len(leaders) == 1 and all(standing in (LEADS, IS_TOLD) for standing in found.values()):
                return leaders[0]
            assert time.monotonic() < deadline, f"nobody leads: {list(found.values())}"
            await asyncio.sleep(0.05)

    async def drive(
        self, blocks: int, *, pause: float = 0.1, events: Mapping[int, Callable[[], Awaitable[Any]]] | None = None
    ) -> None:
        """Let the chain grow; every sixth step is a reorganisation. `events` happen between two blocks."""
        for step in range(blocks):
            event = (events or {}).get(step)
            if event is not None:
                await event()
            chain = self.chain
            if step % 6 == 5:
                depth = 1 + step % 4
                chain = chain.fork(depth, depth + 2, next(self._branches))
            else:
                chain = chain.extend(1, chain.head.branch)
            for node in self.nodes:
                node.chain = chain
            await asyncio.sleep(pause)

    async def check(self, *, but: Service | None = None) -> None:
        """Every client of every living process holds the chain, and was told of each block once."""
        chain = self.chain
        for service, watchers in self.watchers.items():
            if service is but or service.process.poll() is not None:
                continue
            for watcher in watchers:
                await watcher.until_at(chain)
                watcher.check(chain)

    def asked(self) -> Counter[str]:
        """What the nodes were asked so far."""
        return sum((node.asked for node in self.nodes), Counter())
