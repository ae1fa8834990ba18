"""Head tracking against real nodes: reorganisations made with snapshots, a rewritten chain, a death, and Solana."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from capstan.chain.heads.headers import ChainChange, Header
from capstan.chain.heads.source import HeadOptions
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.devnet.evm import EvmNode
from capstan.devnet.install import NodeProject
from capstan.devnet.rpc import NodeRpc
from tests.support.faulty_node import network_spec

# The chain moves only when a test moves it.
NEVER = 3600.0
OPTIONS = HeadOptions(fastest_interval=0.02, slowest_interval=0.05, finality_tags=False, finality_depth=200)


class PrivateChain:
    """A node of this file's own, whose history may be rewritten."""

    def __init__(self, node: EvmNode, rpc: NodeRpc) -> None:
        self.node = node
        self.rpc = rpc
        self._branches = 0

    async def mine(self, blocks: int) -> int:
        for _ in range(blocks):
            await self.rpc.call("evm_mine")
        return await self.height()

    async def height(self) -> int:
        return int(await self.rpc.call("eth_blockNumber"), 16)

    async def reorganise(self, depth: int, length: int) -> None:
        """Take back `depth` blocks, which are mined here, and mine `length` others."""
        snapshot = await self.rpc.call("evm_snapshot")
        await self.mine(depth)
        await self.replace(snapshot, length)

    async def replace(self, snapshot: Any, length: int) -> None:
        assert await self.rpc.call("evm_revert", snapshot)
        # Blocks of the same second would be the very same blocks again; another beneficiary makes them others.
        self._branches += 1
        await self.rpc.call("hardhat_setCoinbase", f"0x{self._branches:040x}")
        await self.mine(length)

    async def headers(self, first: int) -> list[Header]:
        blocks = [
            await self.rpc.call("eth_getBlockByNumber", hex(number), False)
            for number in range(first, await self.height() + 1)
        ]
        return [
            Header(int(block["number"], 16), block["hash"], block["parentHash"], int(block["timestamp"], 16))
            for block in blocks
        ]


class Consumer:
    """Replays the changes and checks each."""

    def __init__(self, tracker: HeadTracker) -> None:
        self.blocks: list[Header] = []
        self.depths: list[int] = []
        self.restarts = 0
        tracker.subscribe(self._take)

    def _take(self, change: ChainChange) -> None:
        if change.restarted:
            self.restarts += 1
            self.blocks.clear()
        if change.reverted:
            self.depths.append(len(change.reverted))
        for header in change.reverted:
            if self.blocks:
                assert self.blocks.pop() == header
        for header in change.applied:
            assert not self.blocks or self.blocks[-1].hash == header.parent_hash
            self.blocks.append(header)


async def until(condition: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


@pytest.fixture
async def chain(node_project: NodeProject) -> AsyncIterator[PrivateChain]:
    node = EvmNode(node_project, block_time=NEVER)
    await node.start()
    try:
        async with NodeRpc(node.url) as rpc:
            yield PrivateChain(node, rpc)
    finally:
        await node.stop()


@pytest.fixture
async def registry() -> AsyncIterator[ChainRegistry]:
    opened = ChainRegistry(open_session(), SystemClock())
    yield opened
    await opened.close()


def follow(registry: ChainRegistry, *urls: str, options: HeadOptions = OPTIONS, **changes: Any) -> HeadTracker:
    upstreams = [UpstreamSpec(name=f"node-{place}", url=url) for place, url in enumerate(urls)]
    registry.replace([network_spec(*upstreams, **changes)])
    network = registry.networks()[0]
    return HeadTracker(network.spec, network.pool.members, SystemClock(), options=options)


async def agrees(tracker: HeadTracker, chain: PrivateChain) -> None:
    """Wait until the tracker is at the node's head; then all its headers are the node's."""
    head = (await chain.headers(await chain.height()))[0]
    await until(lambda: tracker.latest == head, f"block {head.number}")
    assert tracker.chain is not None
    kept = list(tracker.chain.headers)
    assert kept == await chain.headers(kept[0].number)


async def test_reorganisations_of_every_depth_end_at_the_canonical_chain(
    chain: PrivateChain, registry: ChainRegistry
) -> None:
    await chain.mine(10)
    tracker = follow(registry, chain.node.url)
    consumer = Consumer(tracker)
    tracker.start()
    try:
        await tracker.wait_for(10, 20)
        for depth in range(1, 33):
            snapshot = await chain.rpc.call("evm_snapshot")
            height = await chain.mine(depth)
            await tracker.wait_for(height, 20)
            await chain.replace(snapshot, depth + 1)
            await agrees(tracker, chain)
    finally:
        await tracker.stop()
    assert consumer.restarts == 0
    # A node is asked while it mines, so a reorganisation may be seen in two steps, but never as too shallow.
    assert max(consumer.depths) == 32
    assert len(consumer.depths) >= 32
    assert consumer.blocks == await chain.headers(consumer.blocks[0].number)


@pytest.mark.parametrize("seed", range(3))
async def test_random_rewrites_under_way_replay_exactly(
    seed: int, chain: PrivateChain, registry: ChainRegistry
) -> None:
    random = Random(seed)
    tracker = follow(registry, chain.node.url, chain.node.url)
    consumer = Consumer(tracker)
    tracker.start()
    try:
        await tracker.wait_for(0, 20)
        await chain.mine(40)
        for _ in range(25):
            if random.random() < 0.5:
                await chain.mine(random.randint(1, 5))
            else:
                depth = random.randint(1, 20)
                await chain.reorganise(depth, depth + random.randint(0, 2))
        await chain.mine(1)
        await agrees(tracker, chain)
    finally:
        await tracker.stop()
    assert consumer.blocks == await chain.headers(consumer.blocks[0].number)


@pytest.mark.parametrize("depth", [1, 2, 7, 32])
async def test_the_number_does_not_go_back_while_the_node_replaces_its_blocks(
    depth: int, chain: PrivateChain, registry: ChainRegistry
) -> None:
    await chain.mine(40)
    tracker = follow(registry, chain.node.url)
    await tracker.poll()
    snapshot = await chain.rpc.call("evm_snapshot")
    height = await chain.mine(depth)
    await tracker.poll()
    assert tracker.number == height
    assert await chain.rpc.call("evm_revert", snapshot)
    await tracker.poll()
    assert tracker.number == height, "the node has fewer blocks for a moment"
    await chain.rpc.call("hardhat_setCoinbase", "0x" + "11" * 20)
    await chain.mine(depth)
    await tracker.poll()
    assert tracker.number == height
    await agrees(tracker, chain)


async def test_a_development_chain_can_be_set_back_and_begun_anew(chain: PrivateChain, registry: ChainRegistry) -> None:
    tracker = follow(registry, chain.node.url, options=HeadOptions(fastest_interval=0.02), dev_methods=True)
    consumer = Consumer(tracker)
    tracker.start()
    try:
        snapshot = await chain.rpc.call("evm_snapshot")
        await tracker.wait_for(await chain.mine(90), 20)
        assert await chain.rpc.call("evm_revert", snapshot)
        await agrees(tracker, chain)
        await chain.rpc.call("hardhat_mine", hex(1_000))
        await agrees(tracker, chain)
        assert tracker.number == 1_000
        await chain.rpc.call("hardhat_reset")
        await agrees(tracker, chain)
        assert tracker.number == 0
    finally:
        await tracker.stop()
    assert consumer.blocks[-1].number == 0


async def test_the_head_survives_the_death_of_its_node(
    chain: PrivateChain, registry: ChainRegistry, node_project: NodeProject
) -> None:
    await chain.mine(5)
    tracker = follow(registry, chain.node.url)
    tracker.start()
    try:
        await tracker.wait_for(5, 20)
        port = chain.node.port
        await chain.node.stop()
        await tracker.poll()
        assert tracker.number == 5
        # Another chain comes back at the same address, as if the node had been replaced.
        successor = EvmNode(node_project, port=port, block_time=NEVER)
        await successor.start()
        try:
            async with NodeRpc(successor.url) as rpc:
                for _ in range(8):
                    await rpc.call("evm_mine")
                assert await tracker.wait_for(8, 20) == 8
        finally:
            await successor.stop()
    finally:
        await tracker.stop()


async def test_the_slots_of_a_solana_node_are_followed(solana_devnet: str, registry: ChainRegistry) -> None:
    options = HeadOptions(finality_interval=0.1)
    tracker = follow(registry, solana_devnet, options=options, family="solana", block_time_ms=200)
    tracker.start()
    try:
        first = await tracker.wait_for(1, 20)
        assert await tracker.wait_for(first + 5, 20) >= first + 5
        await until(lambda: tracker.finalized_number is not None, "finality")
        # Slots pass between the questions, so only this order is certain.
        assert (tracker.finalized_number or 0) <= (tracker.safe_number or 0)
    finally:
        await tracker.stop()
