"""What subscriptions are told when the chain changes, and what is asked of the stream for them."""

import asyncio
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from capstan.chain.follower.models import Demand, PendingTransaction
from capstan.feed.notifications import new_id, notification
from tests.support.feed import ADDRESS, TOPIC, Feed, block_at, read_server_frames, refusal, subscribe


async def test_heads_are_told_of_new_blocks_and_of_the_new_branch_after_a_reorganisation() -> None:
    feed = Feed()
    socket, session = feed.connect()
    heads = subscribe(session, "newHeads")
    feed.stream.apply(block_at(1), block_at(2))
    feed.stream.revert()
    feed.stream.apply(block_at(2, "b"), block_at(3, "b", "b"))
    assert [head["hash"] for head in socket.results(heads)] == ["0xa1", "0xa2", "0xb2", "0xb3"]


async def test_logs_of_a_reverted_block_are_told_again_as_removed_in_the_opposite_order() -> None:
    feed = Feed()
    socket, session = feed.connect()
    logs = subscribe(session, "logs", {"address": ADDRESS})
    feed.stream.apply(block_at(1), block_at(2, logs=2))
    feed.stream.revert()
    told = [(log["blockHash"], log["logIndex"], log["removed"]) for log in socket.results(logs)]
    assert told == [
        ("0xa1", "0x0", False),
        ("0xa2", "0x0", False),
        ("0xa2", "0x1", False),
        ("0xa2", "0x1", True),
        ("0xa2", "0x0", True),
    ]


async def test_a_log_that_was_never_told_is_not_told_as_removed() -> None:
    feed = Feed()
    early, early_session = feed.connect()
    first = subscribe(early_session, "logs", {})
    feed.stream.apply(block_at(1))
    late, late_session = feed.connect()
    second = subscribe(late_session, "logs", {})
    feed.stream.revert()
    feed.stream.apply(block_at(1, "b"))
    feed.stream.revert()
    assert [log["removed"] for log in early.results(first)] == [False, True, False, True]
    assert [(log["blockHash"], log["removed"]) for log in late.results(second)] == [("0xb1", False), ("0xb1", True)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=12), st.integers(0, 11))
def test_every_client_ends_with_the_canonical_logs(steps: list[tuple[int, int]], joins_at: int) -> None:
    async def run() -> None:
        feed = Feed()
        clients = [feed.connect()]
        subscriptions = [subscribe(clients[0][1], "logs", {})]
        joined = 0
        for step, (depth, logs) in enumerate(steps):
            if step == joins_at:
                clients.append(feed.connect())
                subscriptions.append(subscribe(clients[1][1], "logs", {}))
                joined = len(feed.stream.blocks)
            depth = min(depth, len(feed.stream.blocks))
            feed.stream.revert(depth)
            joined = min(joined, len(feed.stream.blocks))
            for _ in range(depth + 1):
                feed.stream.apply(block_at(len(feed.stream.blocks), f"{step}x", logs=logs))
        for (socket, _), subscription, begins in zip(clients, subscriptions, (0, joined), strict=False):
            held: list[tuple[str, str]] = []
            for log in socket.results(subscription):
                place = (log["blockHash"], log["logIndex"])
                if log["removed"]:
                    assert held.pop() == place
                else:
                    held.append(place)
            canonical = feed.stream.blocks[begins:]
            assert held == [(block.hash, hex(log.index)) for block in canonical for log in block.logs or ()]

    asyncio.run(run())


async def test_nothing_is_asked_of_the_stream_that_nobody_subscribed_to() -> None:
    feed = Feed()
    _, session = feed.connect()
    stream = feed.stream
    assert stream.demands == []
    heads = subscribe(session, "newHeads")
    assert stream.demands == [Demand.HEADERS]
    logs = subscribe(session, "logs", {})
    assert stream.demands == [Demand.HEADERS, Demand.LOGS]
    _, other = feed.connect()
    subscribe(other, "logs", {"address": ADDRESS})
    subscribe(other, "newHeads")
    assert stream.demands == [Demand.HEADERS, Demand.LOGS]
    subscribe(other, "newPendingTransactions")
    assert [full for _, full in stream.pending.consumers.values()] == [False]
    subscribe(other, "newPendingTransactions", True)
    assert sorted(full for _, full in stream.pending.consumers.values()) == [False, True]
    for subscription in (heads, logs):
        session.subscriptions.answer("eth_unsubscribe", f'["{subscription}"]'.encode(), b"1")
    assert stream.demands == [Demand.HEADERS, Demand.LOGS]
    other.end()
    assert stream.demands == []
    assert stream.pending.consumers == {}


async def test_pending_transactions_are_told_as_hashes_or_whole() -> None:
    feed = Feed()
    socket, session = feed.connect()
    hashes, whole = subscribe(session, "newPendingTransactions"), subscribe(session, "newPendingTransactions", True)
    feed.stream.pending.tell(PendingTransaction("0x12", None), full=False)
    feed.stream.pending.tell(PendingTransaction("0x12", Raw(b'{"hash":"0x12"}')), full=True)
    feed.stream.pending.tell(PendingTransaction("0x13", None), full=True)
    assert socket.results(hashes) == ["0x12"]
    assert socket.results(whole) == [{"hash": "0x12"}]


async def test_syncing_tells_the_state_at_once_and_every_change() -> None:
    feed = Feed()
    socket, session = feed.connect()
    syncing = subscribe(session, "syncing")
    assert socket.results(syncing) == []
    await asyncio.sleep(0)
    assert socket.results(syncing)[0]["syncing"] is True
    feed.stream.apply(block_at(7))
    feed.stream.apply(block_at(8))
    assert socket.results(syncing)[1:] == [False]
    feed.stream.halted = "a final block was taken back"
    feed.hub.tell_syncing()
    assert socket.results(syncing)[2]["status"]["highestBlock"] == "0x8"


async def test_a_replay_is_followed_by_live_blocks_without_gap_or_repetition() -> None:
    feed = Feed()
    feed.stream.apply(*(block_at(number) for number in range(1, 11)))
    socket, session = feed.connect()
    heads, logs = subscribe(session, "newHeads", {"fromBlock": "0x3"}), subscribe(session, "logs", {"fromBlock": "0x9"})
    assert socket.results(heads) == []
    feed.stream.apply(block_at(11))
    while len(feed.stream.consumers) < 2:
        feed.stream.apply(block_at(feed.stream.blocks[-1].number + 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    feed.stream.apply(block_at(feed.stream.blocks[-1].number + 1))
    last = feed.stream.blocks[-1].number
    assert [int(head["number"], 16) for head in socket.results(heads)] == list(range(3, last + 1))
    assert [log["blockHash"] for log in socket.results(logs)] == [f"0xa{number}" for number in range(9, last + 1)]


async def test_replayed_logs_are_taken_back_even_if_the_stream_had_applied_their_block_without_logs() -> None:
    feed = Feed()
    whole = [block_at(number) for number in range(1, 4)]
    feed.stream.apply(*whole)
    socket, session = feed.connect()
    logs = subscribe(session, "logs", {"fromBlock": "0x2"})
    while not feed.stream.consumers:
        await asyncio.sleep(0)
    # The stream itself had applied the block when nobody wanted logs.
    feed.stream.blocks[-1] = block_at(3, logs=None)
    feed.stream.revert(3)
    told = [(log["blockHash"], log["removed"]) for log in socket.results(logs)]
    assert told == [("0xa2", False), ("0xa3", False), ("0xa3", True), ("0xa2", True)]


async def test_a_replay_waits_while_the_client_does_not_read() -> None:
    feed = Feed()
    feed.stream.apply(*(block_at(number) for number in range(1, 101)))
    socket, session = feed.connect()
    socket.room = False
    heads = subscribe(session, "newHeads", {"fromBlock": "0x1"})
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(socket.results(heads)) == 1
    socket.room = True
    for _ in range(500):
        await asyncio.sleep(0)
    assert len(socket.results(heads)) == 100


async def test_a_replay_ends_with_its_socket_or_its_subscription() -> None:
    feed = Feed()
    feed.stream.apply(*(block_at(number) for number in range(1, 101)))
    socket, session = feed.connect()
    socket.room = False
    heads = subscribe(session, "newHeads", {"fromBlock": "0x1"})
    await asyncio.sleep(0)
    session.subscriptions.answer("eth_unsubscribe", f'["{heads}"]'.encode(), b"1")
    other = subscribe(session, "newHeads", {"fromBlock": "0x1"})
    await asyncio.sleep(0)
    socket.close(1000, "")
    socket.room = True
    for _ in range(300):
        await asyncio.sleep(0)
    assert len(socket.results(heads)) <= 1
    assert len(socket.results(other)) <= 1
    assert feed.stream.consumers == {}
    assert len(feed.hub) == 0


async def test_a_replay_begins_within_the_bound_and_the_message_tells_it() -> None:
    feed = Feed(replay_blocks=10)
    _, session = feed.connect()
    code, message = refusal(session, "newHeads", {"fromBlock": "0x1"})
    assert code == -32000
    feed.stream.apply(*(block_at(number) for number in range(1, 21)))
    code, message = refusal(session, "newHeads", {"fromBlock": "0xa"})
    assert code == -32602
    assert "10 blocks" in message
    assert "0xb" in message
    assert subscribe(session, "newHeads", {"fromBlock": "0xb"})
    assert refusal(session, "newHeads", {"fromBlock": "0xffff"})[0] == -32602


async def test_subscriptions_of_a_socket_are_bounded() -> None:
    feed = Feed(subscriptions_per_socket=3)
    _, session = feed.connect()
    ids = [subscribe(session, "newHeads") for _ in range(3)]
    code, message = refusal(session, "newHeads")
    assert code == -32005
    assert "3 subscriptions" in message
    session.subscriptions.answer("eth_unsubscribe", f'["{ids[0]}"]'.encode(), b"1")
    assert subscribe(session, "newHeads")


async def test_a_stream_that_has_stopped_is_not_subscribed_to() -> None:
    feed = Feed()
    feed.stream.halted = "a final block was taken back"
    _, session = feed.connect()
    assert "a final block was taken back" in refusal(session, "newHeads")[1]


@pytest.mark.parametrize("size", [0, 3, 10, 60, 500, 65_400, 65_500, 70_000])
def test_a_notification_is_one_frame_whatever_its_length(size: int) -> None:
    subscription = new_id()
    message = notification(b'"' + b"x" * size + b'"')
    [frame] = read_server_frames(message.before + subscription.encode() + message.after)
    assert json.loads(frame.data) == {
        "jsonrpc": "2.0",
        "method": "eth_subscription",
        "params": {"subscription": subscription, "result": "x" * size},
    }


def test_ids_are_random_hex_of_one_length() -> None:
    ids = {new_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(r"0x[1-9a-f][0-9a-f]{31}", one) for one in ids)


async def test_a_socket_that_closes_while_it_is_written_to_does_not_disturb_the_others() -> None:
    feed = Feed()
    first, first_session = feed.connect()
    second, second_session = feed.connect()
    subscribe(first_session, "newHeads")
    heads = subscribe(second_session, "newHeads")
    logs = subscribe(second_session, "logs", {"topics": [TOPIC]})
    first_session._send_frame = lambda frame: first.close(1013, "slow")
    feed.stream.apply(block_at(1), block_at(2))
    assert first.closed == (1013, "slow")
    assert len(second.results(heads)) == len(second.results(logs)) == 2
