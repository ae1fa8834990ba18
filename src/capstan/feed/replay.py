"""Brings a subscription from an older block up to the live stream, without a gap and without a repetition.

Started for `eth_subscribe` with `fromBlock`. The stream tells the blocks from there one by one; once it has told the
last one, the hub takes over, and nothing can happen between the two. It sends no faster than the client reads.
"""

import asyncio

from capstan.chain.follower.models import Applied, Delta, Demand
from capstan.feed.filters import Kind
from capstan.feed.hub import Hub, Subscription
from capstan.feed.models import Socket


class SocketGone(Exception):
    """The client has left during the replay."""


async def replay(hub: Hub, subscription: Subscription, socket: Socket, *, buffer_bytes: int) -> None:
    """Send everything from `fromBlock` to the present, then let the hub go on. Raises what the stream raises."""
    first = subscription.wanted.from_block
    assert first is not None, "only a subscription with fromBlock is replayed"

    def consume(delta: Delta) -> None:
        if isinstance(delta, Applied):
            hub.keep_replayed(delta.block)
        subscription.tell_block(delta)

    async def pace() -> None:
        # Blocks that are at hand come without a wait; others must have their turn all the same.
        await asyncio.sleep(0)
        if not await socket.drain(buffer_bytes):
            raise SocketGone

    demand = Demand.LOGS if subscription.wanted.kind is Kind.LOGS else Demand.HEADERS
    unsubscribe = await hub.stream.replay(first, consume, demand, pace=pace)
    # Nothing waits between these: the hub goes on exactly where the replay has ended.
    hub.add(subscription)
    unsubscribe()
