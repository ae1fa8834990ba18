"""Matches the canonical stream of one network against its webhooks, and writes what it finds with the block.

The durable stream calls it inside the transaction of each block, so an event is written exactly when its block is, and
a webhook counts from the first block that is written after it was committed. It asks no node anything: the traces of
internal transfers are fetched later, by whoever takes the note that is left here.
"""

from collections.abc import Callable

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Applied, Delta, Demand
from capstan.storage.webhook_schema import webhook_revisions, webhook_traces
from capstan.webhooks.kinds import Family
from capstan.webhooks.matching import Matcher
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.subscriptions import Subscriptions


class WebhookConsumer:
    """The durable consumer of one network's stream."""

    def __init__(
        self,
        network: str,
        subscriptions: Subscriptions,
        matcher: Matcher,
        outbox: Outbox,
        *,
        written: Callable[[], None] = lambda: None,
        reset: Callable[[], None] = lambda: None,
    ) -> None:
        """`written` is called when there may be something to deliver, `reset` when the chain is another one."""
        self._network = network
        self._subscriptions = subscriptions
        self._matcher = matcher
        self._outbox = outbox
        self._written = written
        self._reset = reset

    @property
    def demand(self) -> Demand:
        """Everything: a webhook may be added between fetching a block and writing it."""
        return Demand.FULL

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        """Write the events of a block, or take them back."""
        await self._subscriptions.refresh(connection)
        block = delta.block
        if not isinstance(delta, Applied):
            await self._outbox.retract(connection, block, self._subscriptions)
            self._written()
            return
        await self._outbox.add(connection, block, self._matcher.match(block))
        await self._outbox.confirm(connection, block.number, self._subscriptions)
        if self._subscriptions.wants(Family.INTERNAL):
            await connection.execute(
                insert(webhook_traces).values(
                    network=self._network,
                    block_number=block.number,
                    block_hash=bytes.fromhex(block.hash[2:]),
                    timestamp=block.timestamp,
                )
            )
        self._written()

    async def reset(self, connection: AsyncConnection) -> None:
        """The chain is another one, and all of it counts: what was told stays in the log, the rest is forgotten."""
        await self._outbox.forget(connection)
        mine = webhook_revisions.c.network == self._network
        await connection.execute(update(webhook_revisions).where(mine).values(first_block=0))
        self._reset()
