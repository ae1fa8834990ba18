"""One network as the processes of a cluster share it: its heads, its recent blocks, its pending transactions.

Made by `networks`. It connects the head tracker, the block reader and the pending transactions of this process with
what others tell; each of them works by itself when nothing is told. It decides nothing about the chain.
"""

from typing import Protocol

from msgspec import Raw

from capstan.chain.follower.models import PendingTransaction
from capstan.chain.heads.headers import Header
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.shared.blocks import SharedBlocks
from capstan.chain.shared.metrics import ShareMetrics
from capstan.chain.shared.models import Entry, Finality, Pending, Report, ShareOptions, Stored
from capstan.chain.shared.store import SharedStore
from capstan.chain.shared.topic import Topic
from capstan.core.clock import Clock

# Finality is told at least so often.
_FINALITY_SECONDS = 2.0


class Mempool(Protocol):
    """The pending transactions of this process."""

    @property
    def wants_full(self) -> bool:
        """Whether somebody in this process wants whole transactions."""
        ...

    def told(self, transaction: PendingTransaction, *, full: bool) -> None:
        """A colleague has seen this transaction."""
        ...


class SharedNetwork:
    """What is shared of one network. Construct, `start`, and `close` at the end."""

    def __init__(
        self, tracker: HeadTracker, store: SharedStore, clock: Clock, options: ShareOptions, metrics: ShareMetrics
    ) -> None:
        self.tracker = tracker
        self._name = tracker.spec.name
        self._clock = clock
        self._options = options
        self._metrics = metrics
        self._store = store
        self._told_finality: tuple[float, int, int | None] = (0.0, -1, None)
        self._heads = Topic(
            store,
            "heads",
            clock,
            options,
            able=lambda: tracker.able,
            wanted=lambda: not tracker.idle,
            on_entry=self._on_entry,
            on_unled=tracker.untold,
            on_tick=self._ticked,
        )
        self.blocks = SharedBlocks(
            self._name,
            store,
            clock,
            options,
            metrics,
            head=lambda: tracker.number,
            is_up=lambda: self._heads.is_up,
        )
        tracker.share(self._report)

    @property
    def leading(self) -> bool:
        """Whether this process asks upstreams for their heads for all."""
        return self._heads.leading

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        self._heads.start()

    async def close(self) -> None:
        """Stop, and let another process lead."""
        self.tracker.share(None)
        self.tracker.untold()
        await self.blocks.close()
        await self._heads.close()
        self._metrics.drop_network(self._name)

    def pending(self, mempool: Mempool) -> "SharedPending":
        """The pending transactions of the network, shared."""
        return SharedPending(self._store, self._clock, self._options, mempool)

    # --- heads

    def _report(self, upstream: str, header: Header, way: tuple[Header, ...], asked_at: float) -> None:
        """An upstream has answered us."""
        topic = self._heads
        if topic.leading:
            topic.tell(Report(topic.token, upstream, header, way, topic.to_shared(asked_at)))

    def _on_entry(self, entry: Entry, earlier: bool) -> None:
        if isinstance(entry, Report):
            # What was told earlier is not news, but the headers link what is.
            way = (*entry.way, entry.header) if earlier else entry.way
            self.tracker.told(entry.upstream, entry.header, way, self._heads.from_shared(entry.asked_at))
        elif isinstance(entry, Finality):
            if not earlier:
                self.tracker.told_finality(entry.finalized, entry.hash, entry.safe)
        elif isinstance(entry, Stored):
            self.blocks.stored(entry.hash)

    def _ticked(self) -> None:
        topic, tracker = self._heads, self.tracker
        self._metrics.stands(self._name, leading=topic.leading, led=topic.led)
        if not topic.leading:
            return
        if topic.others_want:
            tracker.touch()
        finalized, safe, now = tracker.finalized_number, tracker.safe_number, self._clock.monotonic()
        told_at, *told = self._told_finality
        if finalized is None or (told == [finalized, safe] and now - told_at < _FINALITY_SECONDS):
            return
        self._told_finality = (now, finalized, safe)
        block_hash = tracker.chain.hash_at(finalized) if tracker.chain is not None else None
        topic.tell(Finality(topic.token, finalized, block_hash, safe))


class SharedPending:
    """The pending transactions of one network, while somebody in this process wants them."""

    def __init__(self, store: SharedStore, clock: Clock, options: ShareOptions, mempool: Mempool) -> None:
        self._mempool = mempool
        self._topic = Topic(
            store,
            "pending",
            clock,
            options,
            able=lambda: True,
            wanted=lambda: mempool.wants_full,
            on_entry=self._on_entry,
        )

    @property
    def led(self) -> bool:
        """Whether a colleague tells of them."""
        return self._topic.led

    @property
    def colleagues_want_full(self) -> bool:
        """Whether this process leads and somebody wants whole transactions."""
        return self._topic.leading and self._topic.others_want

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        self._topic.start()

    async def close(self) -> None:
        """Stop, and let another process lead."""
        await self._topic.close()

    def tell(self, transaction: PendingTransaction, *, full: bool) -> None:
        """This process has seen a transaction."""
        topic = self._topic
        if topic.leading:
            raw = None if transaction.transaction is None else bytes(transaction.transaction)
            topic.tell(Pending(topic.token, transaction.hash, raw, full))

    def _on_entry(self, entry: Entry, earlier: bool) -> None:
        if isinstance(entry, Pending) and not earlier:
            raw = None if entry.transaction is None else Raw(entry.transaction)
            self._mempool.told(PendingTransaction(entry.hash, raw), full=entry.full)
