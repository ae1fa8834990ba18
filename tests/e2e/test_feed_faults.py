"""The feed while the chain is reorganised and its upstreams die: no client misses anything or is told it twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from tests.support.devnet import EvmDevnet
from tests.support.feed_client import FeedClient, connected, linked, socket_url
from tests.support.gateway import Gateway, serving
from tests.support.relay import Relay, relays

CLIENTS = 20
BLOCKS, KILLS = 40, 6
DEEPEST = 20
_MINT = keccak(text="mint(address,uint256)")[:4]


@pytest.fixture(scope="module")
def gateway(quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    # Nothing is final on this chain, however deep.
    settings = {"mode": "development"}
    with serving(tmp_path_factory.mktemp("faults"), [quiet_devnet.url], settings=settings) as running:
        yield running


@pytest.fixture
async def clients(gateway: Gateway) -> AsyncIterator[list[FeedClient]]:
    async with AsyncExitStack() as stack:
        url = socket_url(gateway.service.base_url, key=gateway.key)
        yield [await stack.enter_async_context(connected(url)) for _ in range(CLIENTS)]


class Miner:
    """Mines blocks with and without logs on a chain whose history is rewritten."""

    def __init__(self, devnet: EvmDevnet, random: Random) -> None:
        self._devnet = devnet
        self._random = random
        self._branches = itertools.count(1)
        self._token = devnet.deployment.tokens[0].address

    async def mine(self, blocks: int) -> None:
        for _ in range(blocks):
            for _ in range(self._random.randrange(3)):
                data = _MINT + encode(["address", "uint256"], ["0x" + "77" * 20, self._random.randrange(1, 1_000)])
                account = self._devnet.deployment.accounts[9].address
                call = {"from": account, "to": self._token, "data": "0x" + data.hex(), "gas": "0x30d40"}
                await self._devnet.call_async("eth_sendTransaction", call)
            await self._devnet.mine_async()

    async def reorganise(self, depth: int) -> None:
        """Mine blocks, and replace them with others."""
        snapshot = await self._devnet.call_async("evm_snapshot")
        await self.mine(depth)
        await asyncio.sleep(self._random.choice((0.0, 0.3)))
        await self._devnet.call_async("evm_revert", snapshot)
        await self._devnet.call_async("hardhat_setCoinbase", f"0x{next(self._branches):040x}")
        await self.mine(depth + self._random.randrange(1, 3))

    async def logs(self, first: int) -> list[Any]:
        query = {"fromBlock": hex(first), "toBlock": "latest"}
        found: list[Any] = await self._devnet.call_async("eth_getLogs", query)
        return found


def after_removals(told: list[Any]) -> list[Any]:
    """The logs that a client holds which applies `removed`. What is removed must be what was told last."""
    held: list[Any] = []
    for log in told:
        if log["removed"]:
            assert held, f"{log} was taken back and never told"
            assert held.pop() == {**log, "removed": False}
        else:
            held.append(log)
    return held


async def until_held(client: FeedClient, logs: str, expected: list[Any]) -> None:
    """Wait until a client holds exactly these logs."""
    await client.wait_for(lambda: after_removals(client.of(logs)) == expected)


async def until_told(client: FeedClient, heads: str, block_hash: str) -> None:
    """Wait until a client was told of a head."""
    await client.wait_for(lambda: any(head["hash"] == block_hash for head in client.of(heads)))


async def test_after_reorganisations_of_depth_1_to_20_every_client_has_the_canonical_logs(
    clients: list[FeedClient], gateway: Gateway, quiet_devnet: EvmDevnet
) -> None:
    random = Random(4)
    miner = Miner(quiet_devnet, random)
    await miner.mine(3)
    # What is subscribed to now is told from the next block on; the service must have seen this one.
    first = quiet_devnet.block_number()
    subscriptions = [await client.subscribe("logs", {"fromBlock": hex(first + 1)}) for client in clients]
    heads = [await client.subscribe("newHeads") for client in clients]
    for depth in range(1, DEEPEST + 1):
        await miner.reorganise(depth)
    await miner.mine(1)
    tip = quiet_devnet.call("eth_getBlockByNumber", "latest", False)["hash"]
    expected = await miner.logs(first + 1)
    assert len(expected) > DEEPEST
    for client, logs, head in zip(clients, subscriptions, heads, strict=True):
        await until_told(client, head, tip)
        await until_held(client, logs, expected)
    assert any(log["removed"] for log in clients[0].of(subscriptions[0]))


async def test_clients_that_join_in_the_middle_hold_the_canonical_logs_too(
    gateway: Gateway, quiet_devnet: EvmDevnet
) -> None:
    miner = Miner(quiet_devnet, Random(5))
    await miner.mine(2)
    first = quiet_devnet.block_number() + 1
    async with AsyncExitStack() as stack:
        joined: list[tuple[FeedClient, str]] = []
        for depth in (3, 1, 8, 2, 5, 13):
            url = socket_url(gateway.service.base_url, key=gateway.key)
            client = await stack.enter_async_context(connected(url))
            joined.append((client, await client.subscribe("logs", {"fromBlock": hex(first)})))
            await miner.reorganise(depth)
        await miner.mine(2)
        expected = await miner.logs(first)
        for client, logs in joined:
            await until_held(client, logs, expected)


@pytest.fixture
def mortal(quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, list[Relay]]]:
    """A service whose two upstreams, one over WebSocket, can be killed."""
    with relays(quiet_devnet.url, 2) as nodes:
        upstreams = [nodes[0].upstream(), nodes[1].upstream(url=nodes[1].url.replace("http", "ws"))]
        with serving(tmp_path_factory.mktemp("mortal"), upstreams) as gateway:
            yield gateway, nodes


async def test_no_head_is_missed_or_repeated_while_upstreams_are_killed(
    mortal: tuple[Gateway, list[Relay]], quiet_devnet: EvmDevnet
) -> None:
    gateway, nodes = mortal
    random = Random(6)
    await quiet_devnet.mine_async()
    async with AsyncExitStack() as stack:
        url = socket_url(gateway.service.base_url, key=gateway.key)
        clients = [await stack.enter_async_context(connected(url)) for _ in range(CLIENTS)]
        heads = [await client.subscribe("newHeads") for client in clients]
        before = await quiet_devnet.mine_async()
        await clients[0].wait_for(lambda: clients[0].of(heads[0]))
        kills = set(random.sample(range(1, BLOCKS), KILLS))
        for block in range(BLOCKS):
            await quiet_devnet.mine_async()
            if block in kills:
                # Both die: for a while there is nobody to ask.
                for node in nodes:
                    await asyncio.to_thread(node.kill)
                await quiet_devnet.mine_async()
                for node in nodes:
                    await asyncio.to_thread(node.start)
        tip = quiet_devnet.call("eth_getBlockByNumber", "latest", False)
        last = int(tip["number"], 16)
        for client, subscription in zip(clients, heads, strict=True):
            await until_told(client, subscription, tip["hash"])
            told = client.of(subscription)
            numbers = [int(head["number"], 16) for head in told]
            # The service may have been told of the block before this one after the clients had subscribed.
            assert numbers[0] in (before - 1, before)
            assert numbers == list(range(numbers[0], last + 1))
            assert linked(told)
