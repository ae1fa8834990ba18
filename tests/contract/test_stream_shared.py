"""What processes share of a network, on a real Valkey and on a cluster of two: the lead, entries, blocks, mempools."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from capstan.chain.follower.models import Block, Demand, Log, PendingTransaction
from capstan.chain.follower.pending import PendingTransactions
from capstan.chain.follower.reader import ContentUnavailable
from capstan.chain.heads.headers import Header
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.shared.blocks import SharedBlocks
from capstan.chain.shared.metrics import ShareMetrics
from capstan.chain.shared.models import Entry, Finality, Report, ShareOptions, read_entry, write_entry
from capstan.chain.shared.network import SharedNetwork
from capstan.chain.shared.store import SharedStore, group_of
from capstan.chain.shared.topic import Topic
from capstan.core.clock import SystemClock
from capstan.limits.redis import connect
from tests.support.head_nodes import HeadNode, Tracked, chain_of
from tests.support.stream_nodes import until
from tests.unit.chain.follower.test_pending import MempoolNode, pending_of

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


async def test_one_leads_and_a_new_leader_has_a_greater_token(valkey: Valkey) -> None:
    one, two = valkey.store("one"), valkey.store("two")
    first = await one.tick("heads", lead=True, wanted=False)
    assert first.holder == "one"
    assert (await two.tick("heads", lead=True, wanted=False)).holder == "one"
    assert (await one.tick("heads", lead=True, wanted=False)).token == first.token, "renewed, not taken anew"
    assert (await one.tick("heads", lead=False, wanted=False)).holder == ""
    second = await two.tick("heads", lead=True, wanted=False)
    assert second.holder == "two"
    assert second.token > first.token


async def test_a_server_that_lost_its_memory_gives_greater_tokens_all_the_same(valkey: Valkey) -> None:
    one, two = valkey.store("one"), valkey.store("two")
    first = await one.tick("heads", lead=True, wanted=False)
    for name in ("lease", "token"):
        await valkey.client.delete(one._key("heads", name))
    second = await two.tick("heads", lead=True, wanted=False)
    assert second.holder == "two"
    assert second.token > first.token


async def test_a_leader_that_was_overtaken_can_tell_nobody_anything(valkey: Valkey) -> None:
    one, two = valkey.store("one"), valkey.store("two")
    first = await one.tick("heads", lead=True, wanted=False)
    assert await one.publish("heads", first.token, [b"before"])

    async def taken() -> bool:
        return (await two.tick("heads", lead=True, wanted=False)).holder == "two"

    # It is paused: its lease runs out.
    await until(taken, seconds=30, what="the end of the lease")
    assert not await one.publish("heads", first.token, [b"after"])
    assert [data for _, data in await two.backlog("heads")] == [b"before"]


async def test_what_the_leader_tells_is_heard_in_order_and_once(valkey: Valkey) -> None:
    leader = Listener(valkey.store("leader"))
    await until(lambda: leader.topic.leading, seconds=30)
    early = Listener(valkey.store("early"))
    await until(lambda: early.topic.led, seconds=30)
    for number in range(300):
        leader.topic.tell(Finality(leader.topic.token, number, None, None))
    await until(lambda: len(early.heard) == 300, seconds=30)
    late = Listener(valkey.store("late"))
    await until(lambda: len(late.heard) == 300, seconds=30)
    assert early.numbers() == late.numbers() == list(range(300))
    assert not any(earlier for _, earlier in early.heard)
    assert all(earlier for _, earlier in late.heard), "what was told before it listened is no news"
    assert leader.heard == [], "nobody is told what he said himself"
    for one in (leader, early, late):
        await one.close()


async def test_entries_of_an_earlier_leader_are_ignored(valkey: Valkey) -> None:
    store = valkey.store("old")
    old = await store.tick("heads", lead=True, wanted=False)
    await store.tick("heads", lead=False, wanted=False)
    new = Listener(valkey.store("new"))
    await until(lambda: new.topic.leading, seconds=30)
    other = Listener(valkey.store("other"))
    await until(lambda: other.topic.led, seconds=30)
    key = store._key("heads", "entries")
    await valkey.client.xadd(key, {"entry": write_entry(Finality(old.token, 1, None, None))})
    await valkey.client.xadd(key, {"entry": b"of another version"})
    new.topic.tell(Finality(new.topic.token, 2, None, None))
    await until(lambda: other.heard, seconds=30)
    assert other.numbers() == [2]
    for one in (new, other):
        await one.close()


async def test_one_that_cannot_ask_upstreams_gives_up_the_lead(valkey: Valkey) -> None:
    one = Listener(valkey.store("one"))
    await until(lambda: one.topic.leading, seconds=30)
    two = Listener(valkey.store("two"))
    await until(lambda: two.topic.led, seconds=30)
    one.is_able = False
    await until(lambda: two.topic.leading and one.topic.led, seconds=30)
    one.is_able = True
    await two.close()
    await until(lambda: one.topic.leading, seconds=30, what="the lead of one that was closed")
    assert one.unled == 1
    await one.close()


async def test_the_wish_of_the_leader_does_not_come_back_to_it(valkey: Valkey) -> None:
    """It keeps a network awake for others; were it one of them, the network would never sleep again."""
    leader = Listener(valkey.store("leader"), wanted=True)
    await until(lambda: leader.topic.leading, seconds=30)
    await until(lambda: not leader.topic.others_want, seconds=30)
    for _ in range(3):
        await leader.topic._tick()
        assert not leader.topic.others_want
    await leader.close()


async def test_the_leader_knows_that_another_process_wants_the_topic(valkey: Valkey) -> None:
    leader = Listener(valkey.store("leader"))
    await until(lambda: leader.topic.leading, seconds=30)
    assert not leader.topic.others_want
    other = Listener(valkey.store("other"), wanted=True)
    await until(lambda: leader.topic.others_want, seconds=30)
    await other.close()
    await until(lambda: not leader.topic.others_want, seconds=30)
    await leader.close()


def test_only_processes_with_the_same_upstreams_share_a_network() -> None:
    assert group_of(spec_of("devnet")) == group_of(spec_of("devnet"))
    assert group_of(spec_of("devnet")) != group_of(spec_of("devnet", "http://127.0.0.1:2"))
    assert "127.0.0.1" not in group_of(spec_of("devnet")), "addresses hold keys"


# --- blocks


def block_of(demand: Demand) -> Block:
    log = Log("0x" + "aa" * 20, ("0x" + "01" * 32,), 0, "0x" + "ee" * 32, b'{"removed":false}')
    logs = (log,) if demand >= Demand.LOGS else None
    return Block(HEADER.number, HEADER.hash, HEADER.parent_hash, HEADER.timestamp, b"{}", None, None, logs)


class Process:
    """The blocks of one process, and a fetcher that the test lets go on."""

    def __init__(self, valkey: Valkey, name: str, *, up: bool = True, head: int = 10) -> None:
        self.registry = CollectorRegistry()
        self.fetches = 0
        self.fails = False
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.blocks = SharedBlocks(
            "ethereum/devnet",
            valkey.store(name),
            CLOCK,
            QUICK,
            ShareMetrics(self.registry),
            head=lambda: head,
            is_up=lambda: up,
        )
        self._listener = Listener(valkey.store(name))
        self._listener.topic._on_entry = self._on_entry

    def _on_entry(self, entry: Any, _earlier: bool) -> None:
        if hasattr(entry, "hash"):
            self.blocks.stored(entry.hash)

    async def get(self, demand: Demand = Demand.LOGS) -> Block:
        async def fetch() -> Block:
            self.fetches += 1
            await self.may_go.wait()
            if self.fails:
                raise ContentUnavailable("not now")
            return block_of(demand)

        return await self.blocks.block(HEADER.number, HEADER.hash, demand, fetch)

    async def close(self) -> None:
        await self.blocks.close()
        await self._listener.close()


async def test_a_block_that_several_need_is_fetched_by_one(valkey: Valkey) -> None:
    processes = [Process(valkey, f"process-{number}") for number in range(4)]
    found = await asyncio.gather(*(process.get() for process in processes))
    assert found == [block_of(Demand.LOGS)] * 4
    assert sum(process.fetches for process in processes) == 1
    late = Process(valkey, "late")
    assert await late.get(Demand.HEADERS) == block_of(Demand.LOGS), "more than was asked for will do"
    assert late.fetches == 0
    assert await late.get(Demand.FULL) == block_of(Demand.FULL), "less will not"
    for process in (*processes, late):
        await process.close()


async def test_two_that_wait_in_one_process_are_both_told(valkey: Valkey) -> None:
    one, two = Process(valkey, "one"), Process(valkey, "two")
    one.may_go.clear()
    first = asyncio.create_task(one.get(Demand.LOGS))
    await until(lambda: one.fetches, seconds=30)
    waiting = [asyncio.create_task(two.get(demand)) for demand in (Demand.HEADERS, Demand.LOGS)]
    await until(lambda: len(two.blocks._waiting.get(HEADER.hash, ())) == 2, seconds=30)
    one.may_go.set()
    assert await asyncio.wait_for(asyncio.gather(first, *waiting), 15) == [block_of(Demand.LOGS)] * 3
    assert two.fetches == 0
    for process in (one, two):
        await process.close()


async def test_when_the_one_that_fetches_fails_another_does(valkey: Valkey) -> None:
    one, two = Process(valkey, "one"), Process(valkey, "two")
    one.fails = True
    one.may_go.clear()
    first = asyncio.create_task(one.get())
    await until(lambda: one.fetches, seconds=30)
    second = asyncio.create_task(two.get())
    await asyncio.sleep(0.05)
    assert two.fetches == 0
    one.may_go.set()
    assert await asyncio.wait_for(second, 30) == block_of(Demand.LOGS)
    with pytest.raises(ContentUnavailable):
        await first
    for process in (one, two):
        await process.close()


async def test_blocks_that_are_old_or_cannot_be_shared_are_fetched_at_once(valkey: Valkey) -> None:
    one = Process(valkey, "one")
    assert await one.get() == block_of(Demand.LOGS)
    away, far = Process(valkey, "away", up=False), Process(valkey, "far", head=1_000)
    for process in (away, far):
        assert await process.get() == block_of(Demand.LOGS)
        assert process.fetches == 1
    for process in (one, away, far):
        await process.close()


# --- heads and mempools


class Peer:
    """A tracker of one process that asks a node of its own when it is told to."""

    def __init__(self, valkey: Valkey, name: str, node: HeadNode) -> None:
        self.node = node
        self.tracked = Tracked(node)
        self.tracked.tracker._running = True
        self.shared = SharedNetwork(
            self.tracked.tracker, valkey.store(name), CLOCK, QUICK, ShareMetrics(CollectorRegistry())
        )

    @property
    def head(self) -> int | None:
        return self.tracked.tracker.number


async def test_a_process_that_is_told_has_the_same_chain_without_asking(valkey: Valkey) -> None:
    blocks = chain_of(10, 20)
    leader, other = (Peer(valkey, name, HeadNode("one", blocks)) for name in ("leader", "other"))
    await leader.tracked.tracker.poll()
    leader.shared.start()
    await until(lambda: leader.shared.leading, seconds=30)
    other.shared.start()
    await until(lambda: other.shared._heads.led, seconds=30)
    for length in range(1, 6):
        leader.node.blocks = blocks + chain_of(30, length, on=blocks[-1])
        await leader.tracked.tracker.poll()
    await until(lambda: other.head == leader.head == 34, seconds=30)
    # A branch of which only the last block was told to the leader.
    leader.node.reorganise(31, chain_of(32, 6, branch=1, on=leader.node.blocks[2 + 20 - 1]))
    await leader.tracked.tracker.poll()
    await until(lambda: other.head == leader.head == 37, seconds=30)
    assert other.tracked.tracker.latest == leader.tracked.tracker.latest
    assert other.node.calls == [], "nothing was asked for that the leader knows"
    for peer in (leader, other):
        await peer.shared.close()


def watching_of(valkey: Valkey, place: int, node: MempoolNode) -> PendingTransactions:
    """The pending transactions of one process."""
    tracked = Tracked(HeadNode("one", chain_of(1, 2)))
    store = valkey.store(f"process-{place}")
    shared = SharedNetwork(tracked.tracker, store, CLOCK, QUICK, ShareMetrics(CollectorRegistry()))
    pending = pending_of(node)
    pending.sharing = lambda: shared.pending(pending)
    return pending


async def test_a_pending_transaction_is_watched_for_by_one_and_told_once_in_each_process(valkey: Valkey) -> None:
    nodes = [MempoolNode("one"), MempoolNode("one")]
    watching = [watching_of(valkey, place, node) for place, node in enumerate(nodes)]
    heard: list[list[PendingTransaction]] = [[], []]
    end = watching[0].subscribe(heard[0].append, full=False)
    await until(lambda: "eth_getFilterChanges" in nodes[0].calls, seconds=30)
    await until(lambda: _topic(watching[0], "leading"), seconds=30)
    watching[1].subscribe(heard[1].append, full=True)
    await until(lambda: _topic(watching[1], "led"), seconds=30)
    # The leader learns what the other process wants, and watches anew for that.
    await until(lambda: nodes[0].calls.count("eth_newPendingTransactionFilter") == 2, seconds=30)
    await until(lambda: nodes[0].calls[-1] == "eth_getFilterChanges", seconds=30)
    nodes[0].mempool += [f"0x{number:064x}" for number in range(20)]
    await until(lambda: all(len(told) == 20 for told in heard), seconds=30)
    assert all(told.transaction is not None for told in heard[1]), "whole, though the leader wants hashes alone"
    end()
    # Who watched has left; the other one watches its own node from now on.
    before = nodes[1].calls.count("eth_newPendingTransactionFilter")
    await until(lambda: nodes[1].calls.count("eth_newPendingTransactionFilter") > before, seconds=30)
    nodes[1].mempool += ["0x" + "ff" * 32]
    await until(lambda: len(heard[1]) == 21, seconds=30)
    assert len({told.hash for told in heard[1]}) == 21
    for pending in watching:
        await pending.close()


def _topic(pending: PendingTransactions, standing: str) -> bool:
    """Whether the process leads, or is led, once it has begun."""
    shared: Any = pending._shared
    return shared is not None and bool(getattr(shared._topic, standing))


def test_an_entry_reads_as_it_was_written() -> None:
    report = Report(5, "one", HEADER, (HEADER,), 1.5)
    assert read_entry(write_entry(report)) == report
    assert read_entry(b"\x00 something else") is None
