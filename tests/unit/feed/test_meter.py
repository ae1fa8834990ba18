"""Pushed messages are recorded and paid for; who cannot pay is closed, not silently left out."""

from capstan.limits.models import Limits
from tests.support.feed import Feed, block_at, refusal, subscribe


async def test_every_push_costs_a_unit_and_stands_in_the_ledger() -> None:
    feed = Feed()
    socket, session = feed.connect()
    subscribe(session, "newHeads")
    subscribe(session, "logs", {})
    feed.stream.apply(block_at(1, logs=3), block_at(2, logs=0))
    await feed.meter.settle()
    assert feed.usage.pushes == [("eth_subscription", 5, 5)]
    assert feed.limiter.taken == [(0, 5)]
    await feed.meter.settle()
    assert len(feed.usage.pushes) == 1
    assert feed.meter.total == 5
    assert socket.close_code() is None


async def test_a_burst_beyond_the_limit_is_sent_and_paid_for_later() -> None:
    feed = Feed(grace_seconds=10)
    socket, session = feed.connect()
    logs = subscribe(session, "logs", {})
    feed.stream.apply(block_at(1, logs=500))
    assert len(socket.results(logs)) == 500
    seconds = 0
    while seconds < 10:
        # Each second frees up the limit of 200 units.
        feed.limiter.units = 200
        for _ in range(10):
            await feed.meter.settle()
        seconds += 1
        if sum(units for _, units in feed.limiter.taken) == 500:
            break
    assert seconds == 3
    assert socket.close_code() is None


async def test_pushes_that_stay_over_the_limit_close_the_socket_with_4429() -> None:
    feed = Feed(grace_seconds=2)
    socket, session = feed.connect()
    subscribe(session, "logs", {})
    feed.limiter.units = 0
    feed.stream.apply(block_at(1, logs=400))
    await feed.meter.settle()
    assert socket.close_code() is None
    feed.stream.apply(block_at(2, logs=1))
    await feed.meter.settle()
    assert socket.close_code() == 4429
    assert "200 compute units" in str(socket.closed)
    assert len(feed.hub) == 0


async def test_who_owes_more_than_a_second_cannot_subscribe_to_more() -> None:
    feed = Feed(grace_seconds=10)
    _, session = feed.connect()
    subscribe(session, "logs", {})
    feed.limiter.units = 0
    feed.stream.apply(block_at(1, logs=300))
    await feed.meter.settle()
    _, other = feed.connect()
    assert refusal(other, "newHeads")[0] == -32005
    feed.limiter.units = 1_000
    for _ in range(20):
        await feed.meter.settle()
    assert subscribe(other, "newHeads")


async def test_a_debt_is_paid_in_the_portions_that_fit() -> None:
    feed = Feed()
    _, session = feed.connect()
    subscribe(session, "logs", {})
    feed.limiter.units = 70
    feed.stream.apply(block_at(1, logs=100))
    await feed.meter.settle()
    assert feed.limiter.taken == [(0, 50)]
    await feed.meter.settle()
    assert sum(units for _, units in feed.limiter.taken) > 60


async def test_an_account_without_a_limit_is_only_recorded() -> None:
    feed = Feed()
    feed.limits = Limits(0, 0, 0)
    feed.limiter.units = 0
    socket, session = feed.connect()
    subscribe(session, "logs", {})
    feed.stream.apply(block_at(1, logs=5_000))
    await feed.meter.settle()
    assert feed.usage.pushes == [("eth_subscription", 5_000, 5_000)]
    assert socket.close_code() is None
