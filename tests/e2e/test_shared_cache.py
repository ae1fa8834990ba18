"""Two processes share what they know of final blocks in a real Valkey, and do without it when it is away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from redis.asyncio import Redis

from tests.support.faulty_node import FaultyNode
from tests.support.servers import ValkeyProcess, free_port
from tests.support.service import RunCapstan, Service, StartService

HEAD, FINAL = 100, 60


async def node(_: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    """A chain that stands still; a balance is the number of the block it is asked at."""
    method, params = asked["method"], asked["params"]
    if method in ("eth_getBlockByNumber", "eth_getBlockByHash"):
        tags = {"latest": HEAD, "finalized": FINAL, "safe": FINAL}
        number = tags[params[0]] if params[0] in tags else int(params[0], 16)
        number -= method == "eth_getBlockByHash"
        result: Any = {
            "number": hex(number),
            "hash": f"0x{number + 1:064x}",
            "parentHash": f"0x{number:064x}",
            "timestamp": hex(1_700_000_000 + number),
        }
    else:
        result = params[1] if method == "eth_getBalance" else "0x1"
    return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})


class Pair:
    """Two services with one Valkey and one node."""

    def __init__(self, services: list[Service], node: FaultyNode, valkey: ValkeyProcess, key: str) -> None:
        self.node = node
        self.valkey = valkey
        self._services = services
        self._client = httpx.AsyncClient(headers={"X-API-Key": key}, timeout=30)
        self.metrics: list[int] = []

    async def ask(self, service: int, account: int, block: int) -> tuple[str, str]:
        """A balance, and where it came from."""
        params = [f"0x{account:040x}", hex(block)]
        body = {"jsonrpc": "2.0", "id": 1, "method": "eth_getBalance", "params": params}
        answer = await self._client.post(f"{self._services[service].base_url}/rpc/lab/shared", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"], answer.headers["x-cache"]

    async def event(self, service: int, event: str) -> float:
        text = (await self._client.get(f"http://127.0.0.1:{self.metrics[service]}/metrics")).text
        name = f'capstan_rpc_cache_redis_total{{event="{event}"}} '
        return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))

    async def knows_finality(self, service: int, first_account: int) -> None:
        """Wait until the service knows that the block is final: then it keeps answers about it in Valkey."""
        before = len(await self.kept())
        async with asyncio.timeout(30):
            while len(await self.kept()) == before:
                first_account += 1
                await self.ask(service, first_account, 5)
                await asyncio.sleep(0.05)

    async def kept(self) -> list[int]:
        """The seconds that each answer in Valkey has left."""
        client = Redis.from_url(self.valkey.url)
        try:
            return [await client.ttl(key) for key in await client.keys("capstan:rpc:*")]
        finally:
            await client.aclose()

    def asked(self) -> int:
        return self.node.methods.count("eth_getBalance")

    async def close(self) -> None:
        await self._client.aclose()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.fixture
async def pair(
    start_service: StartService, capstan: RunCapstan, valkey_server: ValkeyProcess, tmp_path: Path
) -> AsyncIterator[Pair]:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    async with FaultyNode(node) as faulty:
        ports = [free_port(), free_port()]
        settings = {
            "cache.disk_bytes": 0,
            "cache.redis_seconds": 600,
            "redis.url": valkey_server.url,
            "redis.command_timeout_seconds": 20,
            "networks.lab_shared.chain_id": 7,
            "networks.lab_shared.kind": "testnet",
            "networks.lab_shared.family": "evm",
            "networks.lab_shared.block_time_ms": 1000,
            "networks.lab_shared.upstreams": [faulty.url],
        }
        services = [start_service({**settings, "server.metrics_port": port}) for port in ports]
        found = Pair(services, faulty, valkey_server, key)
        found.metrics = ports
        yield found
        await found.close()


async def test_final_answers_are_shared_and_others_are_not(pair: Pair) -> None:
    await pair.knows_finality(0, 1_000)
    await pair.knows_finality(1, 2_000)
    before = len(await pair.kept())
    for account in range(10):
        assert await pair.ask(0, account, 7) == ("0x7", "miss")

    async def all_written() -> bool:
        return len(await pair.kept()) >= before + 10

    await until(all_written)
    asked = pair.asked()
    for account in range(10):
        assert await pair.ask(1, account, 7) == ("0x7", "hit")
    assert pair.asked() == asked
    assert await pair.event(1, "hit") == 10
    # A block that may still be taken back is each process's own affair.
    assert await pair.ask(0, 1, HEAD - 1) == (hex(HEAD - 1), "miss")
    assert await pair.ask(1, 1, HEAD - 1) == (hex(HEAD - 1), "miss")
    assert all(0 < seconds <= 600 for seconds in await pair.kept())


async def test_without_redis_every_answer_still_comes_and_the_failures_are_counted(pair: Pair) -> None:
    await pair.knows_finality(0, 1_000)
    pair.valkey.stop()
    for account in range(20):
        assert await pair.ask(0, account, 9) == ("0x9", "miss")
        assert await pair.ask(0, account, 9) == ("0x9", "hit")
    assert await pair.event(0, "failed") >= 1
    pair.valkey.start()

    async def works_again() -> bool:
        await pair.ask(0, int(pair.asked()) + 5_000, 9)
        return await pair.event(0, "miss") > misses

    misses = await pair.event(0, "miss")
    await until(works_again)
