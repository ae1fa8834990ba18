"""Many mixed calls through the service, which is killed twice meanwhile: the usage ledger against the client's log.

Used by `tests/e2e/test_usage_killed.py` and, with more calls, by `bench/usage_killed.py`. The client writes down what
it sent and what came back, and works out the units itself. The ledger must be the same, but for the second before each
kill, of which some may be missing; and it never holds more than was asked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec

from tests.support.gateway import NETWORK, OPERATOR, Gateway
from tests.support.scripted_chain import REVERTS, RICH, TOKEN, Chain, scripted_nodes
from tests.support.servers import wait_until
from tests.support.service import Service, run_json, variables

BATCH = 100
CALLERS = 4
KEYS = 3
# When the machine stalls before a kill, more calls are made to say something after all: up to so many.
MOST_CALLS = 400_000
SECONDS = 120.0
BLOCKS = 200
# What a crash may lose, and how long an answer takes when the machine is free.
LOST_SECONDS = 1.0
USUAL_SECONDS = 0.1
DEAD = "ethereum/sepolia"
# A method, its params, its units (decisions of the project, not read from its table), and whether it fails.
KINDS: list[tuple[str, list[Any], int, bool]] = [
    ("eth_chainId", [], 0, False),
    ("eth_blockNumber", [], 1, False),
    ("eth_getBlockByNumber", ["0x5", False], 2, False),
    ("eth_getBalance", [RICH, hex(BLOCKS - 2)], 2, False),
    # Old state costs ten times as much.
    ("eth_getBalance", [RICH, "0x1"], 20, False),
    ("eth_call", [{"to": TOKEN, "data": "0x01"}, "latest"], 3, False),
    ("eth_getLogs", [{"fromBlock": "0x2", "toBlock": "0x8"}], 6, False),
    ("eth_getTransactionReceipt", ["0x" + "00" * 32], 2, False),
]
# One in so many calls reverts, which is never kept in memory; the kinds above share the rest.
REVERT: tuple[str, list[Any], int, bool] = ("eth_call", [{"to": TOKEN, "data": REVERTS}, "latest"], 3, True)
ONE_IN = 20
# One in so many batches goes to a network whose only upstream is dead: that costs nothing and counts as failed.
DEAD_CALL: tuple[str, list[Any], int, bool] = ("eth_gasPrice", [], 0, True)
DEAD_ONE_IN = 50

Counts = Counter[tuple[int, str, str]]


class Sent(msgspec.Struct):
    """A batch: what it adds to the ledger, when it was sent, and when it was answered, if it was."""

    counts: Counts
    sent_at: float
    answered_at: float | None = None


class Client:
    """Sends batches and keeps the log."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.log: list[Sent] = []
        self.calls = 0

    def batch(self, key: int) -> tuple[str, list[dict[str, Any]], Counts]:
        """The next batch: its network, its calls and what they add to the ledger."""
        number = len(self.log)
        dead = number % DEAD_ONE_IN == DEAD_ONE_IN - 1
        calls, counts = [], Counts()
        for place in range(BATCH):
            usual = REVERT if place % ONE_IN == 0 else KINDS[place % len(KINDS)]
            method, params, units, fails = DEAD_CALL if dead else usual
            calls.append({"jsonrpc": "2.0", "id": place, "method": method, "params": params})
            counts[key, method, "requests"] += 1
            counts[key, method, "units"] += units
            counts[key, method, "errors"] += fails
        return DEAD if dead else NETWORK, calls, counts

    async def run(self, service: Service, until: int) -> None:
        """Send until so many calls were made, or the service is gone."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            await asyncio.gather(*(self._send(session, service, until) for _ in range(CALLERS)))

    async def _send(self, session: aiohttp.ClientSession, service: Service, until: int) -> None:
        while self.calls < until:
            key = len(self.log) % KEYS
            network, calls, counts = self.batch(key)
            entry = Sent(counts, time.monotonic())
            self.log.append(entry)
            self.calls += BATCH
            url, headers = f"{service.base_url}/rpc/{network}", {"X-API-Key": self.keys[key]}
            try:
                async with session.post(url, json=calls, headers=headers) as answer:
                    body = await answer.read()
                    assert answer.status == 200, body
            except aiohttp.ClientError:
                return
            entry.answered_at = time.monotonic()
            failed = sum("error" in item for item in json.loads(body))
            wanted = sum(count for (_, _, what), count in counts.items() if what == "errors")
            assert failed == wanted, body[:2000]

    def stood(self, killed_at: float) -> float:
        """For how long in the seconds before a kill nothing got on, because the machine was busy elsewhere."""
        moments = sorted(
            entry.answered_at
            for entry in self.log
            if entry.answered_at is not None and killed_at - 3.0 <= entry.answered_at <= killed_at
        )
        return sum(max(0.0, later - earlier - USUAL_SECONDS) for earlier, later in pairwise([*moments, killed_at]))

    def bounds(self, kills: list[float]) -> tuple[Counts, Counts]:
        """The least and the most that the ledger may hold."""
        least, most = Counts(), Counts()
        windows = [(killed_at - LOST_SECONDS - self.stood(killed_at), killed_at) for killed_at in kills]
        for entry in self.log:
            most.update(entry.counts)
            answered = entry.answered_at
            if answered is not None and not any(begins <= answered <= ends for begins, ends in windows):
                least.update(entry.counts)
        return least, most


class Ledger:
    """The service on one data directory, started again after each kill."""

    def __init__(self, directory: Path, upstream: str) -> None:
        self._directory = directory
        self._settings = variables(
            {
                "log.access": False,
                "server.operator_token": OPERATOR,
                "networks": {NETWORK: {"upstreams": [upstream]}, DEAD: {"upstreams": ["http://127.0.0.1:1"]}},
            }
        )
        data = str(directory / "data")
        self.keys = [run_json("keys", "create", "--plan", "enterprise", "--data-dir", data)["key"] for _ in range(KEYS)]

    @contextmanager
    def serve(self) -> Iterator[Service]:
        service = Service(["--data-dir", str(self._directory / "data")], self._settings, self._directory)
        try:
            gateway = Gateway(service, self.keys[0])
            # Until the service knows its head it cannot know which blocks are old.
            wait_until(lambda: gateway.metric("capstan_head_number") == BLOCKS - 1, seconds=20)
            yield service
        finally:
            service.kill()

    def read(self, service: Service) -> Counts:
        """What the ledger holds of JSON-RPC calls."""
        found = Counts()
        for key, secret in enumerate(self.keys):
            answer = httpx.get(
                f"{service.base_url}/usage?days=2", headers={"X-API-Key": secret}, timeout=20, trust_env=False
            )
            for row in answer.json()["rows"]:
                if row["name"].startswith("eth_"):
                    for what in ("requests", "units", "errors"):
                        found[key, row["name"], what] = row[what]
        return found


async def kill_twice(directory: Path, calls: int) -> int:
    """Make at least so many calls, kill the service twice, and compare. Returns how many calls it made."""
    with scripted_nodes(Chain.of(BLOCKS), 1) as (node,):
        ledger = await asyncio.to_thread(Ledger, directory, node.url)
        client, kills = Client(ledger.keys), list[float]()
        # The first kill comes in the middle of calls.
        with ledger.serve() as service:
            running = asyncio.create_task(client.run(service, calls))
            async with asyncio.timeout(SECONDS):
                while client.calls < calls // 3:
                    await asyncio.sleep(0.005)
            service.process.kill()
            kills.append(time.monotonic())
            await running
        # The second when every call was answered: then the ledger cannot hold one too many.
        with ledger.serve() as service:
            await client.run(service, 2 * calls // 3)
            service.process.kill()
            kills.append(time.monotonic())
        with ledger.serve() as service:
            least, most = await _send_the_rest(client, service, kills, calls)
            await asyncio.to_thread(_compare, ledger, service, least, most)
    unanswered = [entry for entry in client.log if entry.answered_at is None]
    assert client.calls >= calls
    assert len(unanswered) <= CALLERS
    return client.calls


async def _send_the_rest(client: Client, service: Service, kills: list[float], calls: int) -> tuple[Counts, Counts]:
    """Send until all calls were made and the bounds are near each other, so that little can hide between them."""
    for until in range(calls, max(4 * calls, MOST_CALLS), calls // 3):
        await client.run(service, until)
        least, most = client.bounds(kills)
        if least.total() > most.total() / 2:
            return least, most
    raise AssertionError("the calls before the kills were too few to say anything")


def _compare(ledger: Ledger, service: Service, least: Counts, most: Counts) -> None:
    """Wait for what was recorded last, then compare every count of every key and method."""
    wait_until(lambda: all(ledger.read(service)[name] >= count for name, count in least.items()), seconds=20)
    found = ledger.read(service)
    assert set(found) <= set(most)
    assert not {name: (count, found[name], most[name]) for name, count in least.items() if found[name] > most[name]}
