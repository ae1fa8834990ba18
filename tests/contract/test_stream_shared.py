"""What processes share of a network, on a real Valkey and on a cluster of two: the lead, entries, blocks, mempools."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from capstan.chain.follower.models import PendingTransaction
from capstan.chain.follower.pending import PendingTransactions
from capstan.chain.shared.metrics import ShareMetrics
from capstan.chain.shared.models import Finality, Report, read_entry, write_entry
from capstan.chain.shared.network import SharedNetwork
from capstan.chain.shared.store import group_of
from tests.support.head_nodes import HeadNode, Tracked, chain_of
from tests.support.shared_streams import CLOCK, HEADER, QUICK, Listener, Valkey, spec_of
from tests.support.stream_nodes import until
from tests.unit.chain.follower.test_pending import MempoolNode, pending_of


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
