"""The canonical stream against a real node: content, reorganisations, heads and pending transactions over both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

from capstan.chain.follower.followers import Followers
from capstan.chain.follower.models import Demand, PendingTransaction, Reverted
from capstan.chain.follower.pending import PendingOptions
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.heads.source import HeadOptions
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.devnet.evm import EvmNode
from capstan.devnet.install import NodeProject
from capstan.devnet.rpc import NodeRpc
from tests.support.faulty_node import network_spec
from tests.support.stream_nodes import Walker, until

# The chain moves only when a test moves it.
NEVER = 3600.0
HEADS = HeadOptions(fastest_interval=0.02, slowest_interval=0.05, finality_tags=False)
# Creation code that emits one log with the topic 0x2a and leaves an empty contract behind.
EMITS_A_LOG = "0x602a60006000a100"


class LogChain:
    """A node of this file's own, whose history may be rewritten and whose blocks have logs."""

    def __init__(self, node: EvmNode, rpc: NodeRpc, sender: str) -> None:
        self.node = node
        self.rpc = rpc
        self._sender = sender
        self._branches = 0

    @classmethod
    async def open(cls, node: EvmNode, rpc: NodeRpc) -> LogChain:
        return cls(node, rpc, (await rpc.call("eth_accounts"))[0])

    async def send(self) -> str:
        """Send a transaction that will emit a log, without mining it."""
        sent = await self.rpc.call("eth_sendTransaction", {"from": self._sender, "data": EMITS_A_LOG, "gas": "0x30d40"})
        return str(sent)

    async def mine(self, blocks: int, transactions: int = 0) -> None:
        for _ in range(blocks):
            for _ in range(transactions):
                await self.send()
            await self.rpc.call("evm_mine")

    async def reorganise(self, depth: int, length: int, transactions: int) -> None:
        """Mine `depth` blocks, take them back and mine `length` others."""
        snapshot = await self.rpc.call("evm_snapshot")
        await self.mine(depth, transactions)
        assert await self.rpc.call("evm_revert", snapshot)
        # Blocks of the same second would be the very same blocks again; another beneficiary makes them others.
        self._branches += 1
        await self.rpc.call("hardhat_setCoinbase", f"0x{self._branches:040x}")
        await self.mine(length, transactions)

    async def logs(self, first: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.rpc.call("eth_getLogs", {"fromBlock": hex(first), "toBlock": "latest"})
        return found

    async def hashes(self, first: int) -> list[str]:
        height = int(await self.rpc.call("eth_blockNumber"), 16)
        blocks = [await self.rpc.call("eth_getBlockByNumber", hex(n), False) for n in range(first, height + 1)]
        return [block["hash"] for block in blocks]


class Streams:
    """Heads and followers over the addresses of a node."""

    def __init__(self, *urls: str, heads: HeadOptions = HEADS, **changes: Any) -> None:
        clock = SystemClock()
        upstreams = [UpstreamSpec(name=f"node-{place}", url=url) for place, url in enumerate(urls)]
        self.registry = ChainRegistry(open_session(), clock)
        self.registry.replace([network_spec(*upstreams, **changes)])
        self.heads = LatestHeads(clock, options=heads)
        self.followers = Followers(self.heads, clock, pending=PendingOptions(poll_seconds=0.02))
        networks = self.registry.networks()
        self.heads.sync(networks)
        self.followers.sync(networks)
        self.follower = self.followers.get(networks[0].name)
        self.tracker = self.heads.tracker(networks[0].name)

    async def close(self) -> None:
        await self.followers.close()
        await self.heads.close()
        await self.registry.close()


async def agreed(streams: Streams, chain: LogChain) -> None:
    async def there() -> bool:
        head = await chain.rpc.call("eth_getBlockByNumber", "latest", False)
        position = streams.follower.position
        return position is not None and position.hash == head["hash"]

    await until(there, seconds=20, what="the node's head")


@pytest.fixture
async def chain(node_project: NodeProject) -> AsyncIterator[LogChain]:
    node = EvmNode(node_project, block_time=NEVER)
    await node.start()
    try:
        async with NodeRpc(node.url) as rpc:
            yield await LogChain.open(node, rpc)
    finally:
        await node.stop()


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_reorganisations_the_logs_are_exactly_those_of_the_node(seed: int, chain: LogChain) -> None:
    random = Random(seed)
    await chain.mine(25)
    streams = Streams(chain.node.url, chain.node.websocket_url)
    try:
        await streams.tracker.wait_for(25, 20)
        walker = Walker(joins_later=True)
        streams.follower.subscribe(walker, Demand.LOGS)
        await agreed(streams, chain)
        for _ in range(15):
            if random.random() < 0.5:
                await chain.mine(random.randint(1, 3), random.randint(0, 3))
            else:
                depth = random.randint(1, 20)
                await chain.reorganise(depth, depth + random.randint(1, 2), random.randint(0, 2))
            if random.random() < 0.5:
                await agreed(streams, chain)
        await chain.mine(1, 2)
        await agreed(streams, chain)
        first = walker.blocks[0].number
        assert walker.hashes == await chain.hashes(first)
        logs = [msgspec.json.decode(log.raw) for block in walker.blocks for log in block.logs or ()]
        assert logs == await chain.logs(first)
        assert logs
        assert any(isinstance(delta, Reverted) for delta in walker.deltas)
    finally:
        await streams.close()


async def test_a_reload_that_exchanges_the_upstreams_is_not_noticed(chain: LogChain) -> None:
    streams = Streams(chain.node.url)
    try:
        await streams.tracker.wait_for(0, 20)
        walker = Walker(joins_later=True)
        streams.follower.subscribe(walker, Demand.LOGS)
        await agreed(streams, chain)
        for url in (chain.node.websocket_url, chain.node.url, chain.node.websocket_url):
            await chain.mine(3, 1)
            streams.registry.replace([network_spec(UpstreamSpec(name="other", url=url))])
            streams.heads.sync(streams.registry.networks())
            streams.followers.sync(streams.registry.networks())
            await chain.mine(2, 1)
            await agreed(streams, chain)
        assert walker.hashes == await chain.hashes(walker.blocks[0].number)
        assert len(walker.blocks) == 15
        streams.registry.replace([])
        streams.heads.sync([])
        streams.followers.sync([])
        assert streams.followers.find("ethereum/devnet") is None
    finally:
        await streams.close()


async def test_receipts_come_one_by_one_where_the_node_has_no_other_way(chain: LogChain) -> None:
    streams = Streams(chain.node.url)
    try:
        await streams.tracker.wait_for(0, 20)
        walker = Walker(joins_later=True)
        streams.follower.subscribe(walker, Demand.FULL)
        await agreed(streams, chain)
        await chain.mine(3, 4)
        await agreed(streams, chain)
        assert [len(block.transactions or ()) for block in walker.blocks] == [4, 4, 4]
        for block in walker.blocks:
            for transaction, receipt in zip(block.transactions or (), block.receipts or (), strict=True):
                transaction_hash = msgspec.json.decode(transaction)["hash"]
                expected = await chain.rpc.call("eth_getTransactionReceipt", transaction_hash)
                assert msgspec.json.decode(receipt) == expected
        logs = [msgspec.json.decode(log.raw) for block in walker.blocks for log in block.logs or ()]
        assert logs == await chain.logs(walker.blocks[0].number)
    finally:
        await streams.close()


async def test_a_development_chain_that_is_reset_is_followed_from_its_beginning(chain: LogChain) -> None:
    streams = Streams(chain.node.url, dev_methods=True)
    try:
        await chain.mine(30)
        await streams.tracker.wait_for(30, 20)
        walker = Walker(joins_later=True)
        streams.follower.subscribe(walker, Demand.LOGS)
        await agreed(streams, chain)
        await chain.mine(5, 1)
        await agreed(streams, chain)
        await chain.rpc.call("hardhat_reset")
        await chain.mine(3, 1)
        await agreed(streams, chain)
        # Reset within one second of its birth, the chain has the same first block again: that one is then not told.
        assert walker.hashes[-3:] == await chain.hashes(1)
    finally:
        await streams.close()


async def test_a_head_told_over_websocket_does_not_wait_for_the_next_question(chain: LogChain) -> None:
    heads = HeadOptions(fastest_interval=60.0, slowest_interval=60.0, finality_tags=False)
    streams = Streams(chain.node.websocket_url, heads=heads)
    try:
        walker = Walker(joins_later=True)
        streams.follower.subscribe(walker, Demand.LOGS)
        await streams.tracker.wait_for(0, 20)
        # Until the subscription stands, a block may go unheard: mine until one is told.

        async def told() -> bool:
            await chain.mine(1, 1)
            await asyncio.sleep(0.05)
            return bool(walker.blocks)

        await until(told, seconds=20, what="a head without polling")
        await agreed(streams, chain)
        assert walker.hashes == await chain.hashes(walker.blocks[0].number)
    finally:
        await streams.close()


@pytest.mark.parametrize("way", ["http", "websocket", "both"])
async def test_pending_transactions_are_told_once(way: str, chain: LogChain) -> None:
    urls = {"http": [chain.node.url], "websocket": [chain.node.websocket_url]}
    streams = Streams(*urls.get(way, [chain.node.url, chain.node.websocket_url, chain.node.websocket_url]))
    hashes: list[str] = []
    whole: list[PendingTransaction] = []
    try:
        await streams.tracker.wait_for(0, 20)
        unsubscribe = streams.follower.subscribe_pending(lambda told: hashes.append(told.hash), False)
        streams.follower.subscribe_pending(whole.append, True)
        sent = [await chain.send()]

        async def heard() -> bool:
            # What was sent before the upstream was subscribed to is not told.
            if not hashes:
                sent.append(await chain.send())
                await asyncio.sleep(0.05)
            return bool(hashes) and bool(whole)

        await until(heard, seconds=20, what="a pending transaction")
        later = [await chain.send() for _ in range(5)]
        await until(lambda: set(later) <= set(hashes), seconds=20, what="the others")
        await until(lambda: set(later) <= {told.hash for told in whole}, seconds=20, what="the others, whole")
        assert len(hashes) == len(set(hashes))
        assert set(hashes) <= {*sent, *later}
        for told in whole:
            assert told.transaction is not None
            assert msgspec.json.decode(told.transaction)["hash"] == told.hash
        unsubscribe()
    finally:
        await streams.close()
