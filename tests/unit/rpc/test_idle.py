"""A network that nobody asked about for a while is followed slowly. Whoever asks then is not told of an old head."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from capstan.chain.heads.source import HeadOptions
from capstan.chain.registry import Network
from capstan.core.clock import ManualClock
from capstan.gateway import Gateway
from capstan.rpc.service import RpcService
from capstan.settings import load_settings
from tests.support.faulty_node import FaultyNode
from tests.support.rpc_gateway import BOTH, UsageLog, call

NAME = "acme/testnet"
NOBODY = "0x" + "11" * 20
# Long, so that what is kept for two blocks would outlast the time after which a network is left alone.
BLOCK_SECONDS = 60


class Chain:
    """A node whose balances are the height of its chain. Its heads can be kept from being told."""

    def __init__(self) -> None:
        self.height = 10
        self.tells = asyncio.Event()
        self.tells.set()

    async def answer(self, _: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        if asked["method"] == "eth_getBlockByNumber":
            await asyncio.wait_for(self.tells.wait(), 20)
            name = asked["params"][0]
            result: Any = self._block(int(name, 16) if name.startswith("0x") else self.height)
        elif asked["method"] == "eth_getBlockByHash":
            result = self._block(int(asked["params"][0], 16) - 1)
        else:
            result = hex(self.height)
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def _block(self, number: int) -> dict[str, str]:
        return {
            "number": hex(number),
            "hash": f"0x{number + 1:064x}",
            "parentHash": f"0x{number:064x}",
            "timestamp": hex(1_700_000_000 + number * BLOCK_SECONDS),
        }


class Setting:
    def __init__(self, chain: Chain, gateway: Gateway, service: RpcService, clock: ManualClock) -> None:
        self.chain = chain
        self.gateway = gateway
        self.clock = clock
        self._service = service

    @property
    def network(self) -> Network:
        return self.gateway.registry.networks()[0]

    async def ask(self, method: str, *params: Any) -> tuple[int, str]:
        """The result as a number, and where it came from."""
        body = web.json_response(call(method, *params)).body

        async def charge(requests: int, units: int) -> None:
            assert requests == 1
            assert units > 0

        assert isinstance(body, bytes)
        reply = await self._service.handle(BOTH, self.network, body, charge=charge)
        text = reply.body.decode()
        return int(text[text.index('"result":"') + 10 : text.rindex('"')], 16), dict(reply.headers)["X-Cache"]

    async def fall_asleep(self) -> None:
        """Let the time pass after which the network is left alone, and the rhythm become the slow one."""
        tracker = self.gateway.heads.tracker(NAME)
        # At each look it takes note that somebody asked since the last one.
        tracker.interval()
        self.clock.advance(HeadOptions().idle_after + 1)
        tracker.interval()
        assert tracker.asleep
        # It is still asked now and then, so the head was told a moment ago.
        await tracker.poll()
        assert tracker.asleep


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[Setting]:
    chain, clock = Chain(), ManualClock()
    async with FaultyNode(chain.answer) as node, AsyncExitStack() as stack:
        network = {
            "chain_id": 7,
            "kind": "testnet",
            "family": "evm",
            "block_time_ms": BLOCK_SECONDS * 1000,
            "upstreams": [node.url],
            "hedge": False,
        }
        overrides = {f'networks."{NAME}".{key}': value for key, value in network.items()}
        settings = load_settings(overrides={"data_dir": str(tmp_path), "cache.disk_bytes": 0, **overrides})
        gateway = await Gateway.open(settings, clock, CollectorRegistry(), stack)
        service = gateway.service(
            settings, units=lambda: settings.units.table(), archive_depth=lambda: 128, usage=UsageLog()
        )
        await gateway.heads.tracker(NAME).wait_for(chain.height, 10)
        yield Setting(chain, gateway, service, clock)
        chain.tells.set()


async def test_a_head_that_stays_is_told_from_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as setting:
        assert await setting.ask("eth_getBalance", NOBODY, "latest") == (10, "miss")
        assert await setting.ask("eth_getBalance", NOBODY, "latest") == (10, "hit")
        assert await setting.ask("eth_blockNumber") == (10, "hit")


async def test_no_old_head_and_no_old_state_after_idling(tmp_path: Path) -> None:
    async with opened(tmp_path) as setting:
        assert await setting.ask("eth_getBalance", NOBODY, "latest") == (10, "miss")
        await setting.fall_asleep()
        # The chain goes on, and no news of it comes through.
        setting.chain.tells.clear()
        setting.chain.height = 11
        assert await setting.ask("eth_blockNumber") == (11, "miss")
        assert await setting.ask("eth_getBalance", NOBODY, "latest") == (11, "miss")
        assert not setting.gateway.heads.tracker(NAME).asleep


async def test_another_read_that_wakes_the_network_does_not_make_the_head_fresh(tmp_path: Path) -> None:
    async with opened(tmp_path) as setting:
        await setting.fall_asleep()
        setting.chain.tells.clear()
        setting.chain.height = 11
        assert await setting.ask("eth_getBalance", NOBODY, "latest") == (11, "miss")
        assert await setting.ask("eth_blockNumber") == (11, "miss")
        setting.clock.advance(0.01)
        setting.chain.tells.set()
        await setting.gateway.heads.tracker(NAME).wait_for(11, 10)
        assert await setting.ask("eth_blockNumber") == (11, "hit")
