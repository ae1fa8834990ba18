"""Several processes follow one chain together over a real Valkey: who leads may die, be paused, or lose Valkey.

The chain grows and is reorganised all the time. Whatever happens, every client of every process that lives is told
each block once, in order, proved by parent hashes, and holds the canonical logs in the end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, CountingNode
from tests.support.devnet import LoopThread
from tests.support.scripted_chain import Chain
from tests.support.servers import ValkeyProcess

FIRST_BLOCKS = 80
CLIENTS = 5
BLOCKS = 30


@pytest.fixture
async def cluster(tmp_path: Path, valkey_server: ValkeyProcess) -> AsyncIterator[Cluster]:
    """Two nodes and a Valkey, and no process yet."""
    async with AsyncExitStack() as stack:
        thread = stack.enter_context(LoopThread())
        nodes = [CountingNode(Chain.of(FIRST_BLOCKS)) for _ in range(2)]
        for node in nodes:
            thread.run(node.server.start())
            stack.callback(thread.run, node.server.stop())
        yield Cluster(tmp_path, valkey_server.url, nodes, stack)


async def test_more_processes_ask_upstreams_no_more_and_the_death_of_the_leader_is_not_noticed(
    cluster: Cluster,
) -> None:
    await cluster.start(clients=CLIENTS)
    await cluster.leader()
    alone = await _calls(cluster)
    await asyncio.gather(*(cluster.start(clients=CLIENTS) for _ in range(2)))
    await cluster.leader()
    # What a process asks once, when it starts, is not meant.
    await cluster.drive(6)
    await cluster.check()
    together = await _calls(cluster)
    for _ in range(2):
        # On a machine that stalls, a leader may seem dead; then the others ask for themselves, as they should.
        if together >= 1.5 * alone:
            together = await _calls(cluster)
    # Three that ask for themselves would be three times as many.
    assert together < 1.5 * alone, f"{alone} calls for one process, {together} for three"
    name = 'capstan_stream_shared_blocks_total{network="ethereum/devnet",source="colleague"}'
    shared = [await cluster.metric(service, name) or 0.0 for service in cluster.services]
    assert sum(shared) > BLOCKS, "the others had their blocks from the one that fetched them"

    leader = await cluster.leader()

    async def kill() -> None:
        await asyncio.to_thread(leader.kill)

    # The step after is a reorganisation, which nobody leads through.
    await cluster.drive(BLOCKS, events={4: kill})
    await cluster.check()
    assert await cluster.leader() is not leader


async def test_nothing_is_missed_while_the_leader_is_paused_or_valkey_is_away(
    cluster: Cluster, valkey_server: ValkeyProcess
) -> None:
    await asyncio.gather(*(cluster.start(clients=CLIENTS) for _ in range(3)))
    leader = await cluster.leader()

    async def pause() -> None:
        leader.process.send_signal(signal.SIGSTOP)

    async def resume() -> None:
        assert await cluster.leader(but=leader) is not leader
        leader.process.send_signal(signal.SIGCONT)

    await cluster.drive(BLOCKS, events={4: pause, 22: resume})
    await cluster.check()

    async def kill() -> None:
        await asyncio.to_thread(valkey_server.kill)

    async def start() -> None:
        # Without anything that it knew.
        await asyncio.to_thread(valkey_server.start)

    async def freeze() -> None:
        await cluster.leader()
        valkey_server.freeze()

    async def thaw() -> None:
        valkey_server.resume()

    await cluster.drive(2 * BLOCKS, events={4: kill, 14: start, 34: freeze, 46: thaw})
    await cluster.check()
    await cluster.leader()


async def _calls(cluster: Cluster) -> int:
    """How many calls the nodes get while the chain grows and is reorganised."""
    before = cluster.asked()
    await cluster.drive(BLOCKS)
    await cluster.check()
    asked = cluster.asked()
    asked.subtract(before)
    return asked.total()
