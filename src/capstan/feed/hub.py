"""Spreads what happens on one network over all subscriptions to it.

There is one hub for each network. It consumes the canonical stream once, however many clients there are, and only as
much of it as is subscribed to. Each head and each log is written once; for each subscription only the id is put in.
Nothing here waits: a client that does not read is the socket's business.
"""

from collections.abc import Callable, Iterable

import msgspec
import structlog

from capstan.chain.follower.kept import REVERTIBLE_BLOCKS, KeptByHeight
from capstan.chain.follower.models import Applied, Block, Delta, Demand, Log, PendingTransaction, Reverted
from capstan.core.hexes import to_quantity
from capstan.feed.filters import Kind, Wanted
from capstan.feed.matching import LogIndex
from capstan.feed.models import Unsubscribe
from capstan.feed.notifications import notification, removed
from capstan.feed.stream import Stream

log = structlog.get_logger(__name__)

_NOT_SYNCING = b"false"
# Blocks below the tip of which is known who was told. More than any stream reverts.
_COUNTED_BLOCKS = 1_024


class Subscription:
    """One subscription of one socket. `send` takes a whole frame."""

    __slots__ = ("id", "id_bytes", "send", "since", "wanted")

    def __init__(self, subscription_id: str, wanted: Wanted, send: Callable[[bytes], None]) -> None:
        self.id = subscription_id
        self.id_bytes = subscription_id.encode()
        self.wanted = wanted
        self.send = send
        # The number of the first block, as the hub counts them, that this subscription is told.
        self.since = 0

    def tell(self, result: bytes) -> None:
        """Send one result to this subscription alone."""
        message = notification(result)
        self.send(message.before + self.id_bytes + message.after)

    def tell_block(self, delta: Delta) -> None:
        """Send what is wanted of one block to this subscription alone."""
        applied = isinstance(delta, Applied)
        if self.wanted.kind is Kind.HEADS:
            if applied:
                self.tell(delta.block.header)
            return
        logs = delta.block.logs or ()
        for entry in logs if applied else reversed(logs):
            if self.wanted.filter.matches(entry.address, entry.topics):
                self.tell(entry.raw if applied else removed(entry.raw))


class Hub:
    """The subscriptions to one network."""

    def __init__(self, stream: Stream, head_number: Callable[[], int | None]) -> None:
        self.stream = stream
        self.head_number = head_number
        self._heads: dict[Subscription, None] = {}
        self._logs: LogIndex[Subscription] = LogIndex()
        self._pending: dict[bool, dict[Subscription, None]] = {False: {}, True: {}}
        self._syncing: dict[Subscription, None] = {}
        self._told_syncing = False
        self._following: dict[str, Unsubscribe] = {}
        # Logs of blocks that were replayed although the stream had not asked for them; needed when they are reverted.
        self._replayed = KeptByHeight[tuple[Log, ...]](REVERTIBLE_BLOCKS)
        # Blocks with logs that were applied, counted through.
        self._count = 0
        self._counted = KeptByHeight[int](_COUNTED_BLOCKS)

    def __len__(self) -> int:
        pending = len(self._pending[False]) + len(self._pending[True])
        return len(self._heads) + len(self._logs) + pending + len(self._syncing)

    def counts(self) -> dict[str, int]:
        """How many subscriptions there are of each kind."""
        return {
            Kind.HEADS: len(self._heads),
            Kind.LOGS: len(self._logs),
            Kind.PENDING: len(self._pending[False]) + len(self._pending[True]),
            Kind.SYNCING: len(self._syncing),
        }

    def add(self, subscription: Subscription) -> None:
        """Send to this subscription from the next change on."""
        wanted = subscription.wanted
        if wanted.kind is Kind.LOGS:
            subscription.since = self._count
            self._logs.add(subscription, wanted.filter)
        elif wanted.kind is Kind.HEADS:
            self._heads[subscription] = None
        elif wanted.kind is Kind.PENDING:
            self._pending[wanted.full][subscription] = None
        else:
            if not self._syncing:
                self._told_syncing = self._is_syncing
            self._syncing[subscription] = None
        self._follow()

    def remove(self, subscription: Subscription) -> None:
        """Send nothing more to this subscription."""
        wanted = subscription.wanted
        if wanted.kind is Kind.LOGS:
            self._logs.remove(subscription)
        elif wanted.kind is Kind.HEADS:
            self._heads.pop(subscription, None)
        elif wanted.kind is Kind.PENDING:
            self._pending[wanted.full].pop(subscription, None)
        else:
            self._syncing.pop(subscription, None)
        self._follow()

    def close(self) -> None:
        """Stop consuming the stream."""
        for unsubscribe in self._following.values():
            unsubscribe()
        self._following.clear()

    def tell_syncing(self, subscriptions: Iterable[Subscription] | None = None) -> None:
        """Tell those given whether the stream has its head, or, when that has changed, all who subscribed to it."""
        if subscriptions is None:
            if self._told_syncing == self._is_syncing:
                return
            self._told_syncing = self._is_syncing
            subscriptions = list(self._syncing)
        result = self._sync_status() if self._is_syncing else _NOT_SYNCING
        for subscription in subscriptions:
            subscription.tell(result)

    def keep_replayed(self, block: Block) -> None:
        """Remember the logs of a block that a replay was told: the stream may have applied it without them."""
        if block.logs:
            head = self.stream.head
            self._replayed.put(block, block.logs, head.number if head is not None else None)

    def _follow(self) -> None:
        """Consume as much of the stream as is subscribed to, and no more."""
        stream = self.stream
        self._set("heads", bool(self._heads or self._syncing), lambda: stream.subscribe(self._on_head, Demand.HEADERS))
        self._set("logs", len(self._logs) > 0, lambda: stream.subscribe(self._on_logs, Demand.LOGS))
        for full, name in ((False, "hashes"), (True, "transactions")):
            consumer = self._on_whole if full else self._on_hash
            self._set(name, bool(self._pending[full]), self._pending_consumer(consumer, full))

    def _pending_consumer(
        self, consumer: Callable[[PendingTransaction], None], full: bool
    ) -> Callable[[], Unsubscribe]:
        return lambda: self.stream.pending.subscribe(consumer, full)

    def _set(self, name: str, wanted: bool, subscribe: Callable[[], Unsubscribe]) -> None:
        if wanted and name not in self._following:
            self._following[name] = subscribe()
        elif not wanted and name in self._following:
            self._following.pop(name)()

    def _on_head(self, delta: Delta) -> None:
        if self._syncing:
            self.tell_syncing()
        # What is taken back is not told: the heads of the new branch say it, as in geth.
        if isinstance(delta, Applied) and self._heads:
            _send_all(list(self._heads), delta.block.header)

    def _on_logs(self, delta: Delta) -> None:
        block = delta.block
        if isinstance(delta, Reverted):
            self._take_back(block)
            return
        if block.logs is None:
            log.error("feed_block_without_logs", number=block.number, hash=block.hash)
            return
        self._counted.put(block, self._count, block.number)
        self._count += 1
        match = self._logs.match
        for entry in block.logs:
            matched = match(entry.address, entry.topics)
            if matched:
                _send_all(matched, entry.raw)

    def _take_back(self, block: Block) -> None:
        """Tell the logs of a block as removed, in the opposite order, to those who were told them."""
        logs = block.logs if block.logs is not None else self._replayed.get(block.hash) or ()
        number = self._counted.get(block.hash)
        for entry in reversed(logs):
            matched = self._logs.match(entry.address, entry.topics)
            told = [one for one in matched if _was_told(one, number) or _was_replayed(one, block)]
            if told:
                _send_all(told, removed(entry.raw))

    def _on_hash(self, pending: PendingTransaction) -> None:
        _send_all(list(self._pending[False]), b'"%b"' % pending.hash.encode())

    def _on_whole(self, pending: PendingTransaction) -> None:
        # A transaction that no upstream could tell is in a block by now, or gone.
        if pending.transaction is not None:
            _send_all(list(self._pending[True]), bytes(pending.transaction))

    @property
    def _is_syncing(self) -> bool:
        return self.head_number() is None or self.stream.halted is not None

    def _sync_status(self) -> bytes:
        head = to_quantity(self.head_number() or 0)
        status = {"startingBlock": head, "currentBlock": head, "highestBlock": head}
        return msgspec.json.encode({"syncing": True, "status": status})


def _was_told(subscription: Subscription, number: int | None) -> bool:
    return number is not None and number >= subscription.since


def _was_replayed(subscription: Subscription, block: Block) -> bool:
    first = subscription.wanted.from_block
    return first is not None and block.number >= first


def _send_all(subscriptions: list[Subscription], result: bytes) -> None:
    """Send one result to many. The list is a copy: a socket may close, and leave, while it is written to."""
    message = notification(result)
    before, after = message.before, message.after
    for subscription in subscriptions:
        subscription.send(before + subscription.id_bytes + after)
