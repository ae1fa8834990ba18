"""The canonical stream of one EVM network: every block applied and reverted, in order, with its content, exactly once.

Made by `followers.Followers`. The head tracker decides which chain is right; the follower walks along it and calls its
consumers. It works only while somebody has subscribed, and fetches only what the most demanding of them needs. It never
takes back a final block: then it stops, says so (`halted`), and goes on only if the chain holds that block again.

What consumers may rely on: each `Applied` is the child of the block that was the tip, each `Reverted` is the tip, and
nothing comes twice. A consumer is told of what happens after it subscribed, so the first deltas may be reverts of
blocks applied before; it ignores those. On a development chain that was begun anew, all kept blocks are reverted and
the next `Applied` has no parent among those told before.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import structlog

from capstan.chain.follower.condition import LIVE, StreamCondition
from capstan.chain.follower.kept import REVERTIBLE_BLOCKS, KeptByHeight
from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.follower.models import Block, Delta, Demand, PendingTransaction
from capstan.chain.follower.pending import PendingTransactions
from capstan.chain.follower.reader import BlockReader, ContentUnavailable
from capstan.chain.follower.replay import LiveView, catch_up, wait_for
from capstan.chain.follower.walk import Halt, Position, Reset, Walk
from capstan.chain.heads.headers import ChainChange, Header
from capstan.chain.heads.tracker import HeadTracker
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

Consumer: TypeAlias = Callable[[Delta], None]
Unsubscribe: TypeAlias = Callable[[], None]

# How long the stream waits for news before it looks by itself: news are never lost, so this is for safety alone.
_LOOK_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 5.0


class FollowerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the stream is kept. The defaults suit every network."""

    # Blocks that can be reverted; final ones are let go sooner.
    window: int = REVERTIBLE_BLOCKS
    # How far back a replay may begin.
    replay_blocks: int = 10_000
    # The first pause after a block could not be had; it doubles up to some seconds.
    retry_seconds: float = 0.1
    # How long the stream goes on when nobody needs it any more.
    linger_seconds: float = 30.0
    # Blocks below the head from which a development chain that was begun anew is told.
    restart_blocks: int = 64


class Follower:
    """The stream of one network. All methods must be called with the event loop running."""

    def __init__(
        self,
        tracker: HeadTracker,
        reader: BlockReader,
        pending: PendingTransactions,
        clock: Clock,
        metrics: StreamMetrics,
        options: FollowerOptions | None = None,
    ) -> None:
        self.network = tracker.spec.name
        self.reader = reader
        self.pending = pending
        self._tracker = tracker
        self._clock = clock
        self._metrics = metrics
        self.condition = StreamCondition(tracker, clock, metrics, lambda: self.position)
        self._options = options or FollowerOptions()
        self._consumers: dict[object, tuple[Consumer, Demand]] = {}
        # Those who need the stream to run without being told of it.
        self._held: dict[object, Demand] = {}
        # Blocks below the one the stream began at that were told to somebody: told again if they are taken back.
        self._handed_out = KeptByHeight[Block](self._options.window)
        self._walk = self._live_walk()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unfollow: Unsubscribe | None = None
        self._origin: Header | None = None
        self._asked_at = float("-inf")
        self._lingering: asyncio.TimerHandle | None = None
        self._closed = False
        self._begun = asyncio.Event()

    @property
    def head(self) -> Block | None:
        """The tip of the stream, set before consumers are called; None while it is not known. Asking keeps it known."""
        self._asked_at = self._clock.monotonic()
        self._start()
        return self._walk.tip

    @property
    def position(self) -> Position | None:
        """The number and hash of the tip of the stream."""
        return self._walk.position if self._begun.is_set() else None

    @property
    def halted(self) -> str | None:
        """Why the stream is stopped; None while it goes on, or nobody has subscribed."""
        return self.condition.live

    @property
    def rewritable(self) -> bool:
        """Whether the chain may be rewritten or begun anew: a development chain, where nothing is ever final."""
        return self._tracker.spec.dev_methods

    @property
    def demand(self) -> Demand:
        """The most that anybody needs of a block."""
        demands = [demand for _, demand in self._consumers.values()]
        return max((*demands, *self._held.values()), default=Demand.HEADERS)

    @property
    def fault(self) -> str | None:
        """Why the chain of headers stands still: it would have to take back a final block."""
        return self._tracker.fault

    def subscribe(self, consumer: Consumer, demand: Demand) -> Unsubscribe:
        """Call back for every delta from now on, in order, on the event loop. Returns the way to end that.

        The consumer must not wait and must not raise.
        """
        key = object()
        self._consumers[key] = (consumer, demand)
        self._start()

        def unsubscribe() -> None:
            self._consumers.pop(key, None)
            self._released()

        return unsubscribe

    def subscribe_pending(self, consumer: Callable[[PendingTransaction], None], full: bool) -> Unsubscribe:
        """Call back for every transaction that upstreams tell of before it is in a block; whole if `full`."""
        return self.pending.subscribe(consumer, full)

    async def block(self, number: int, demand: Demand) -> Block | None:
        """The block of that number on the chain of the stream; None when there is none, or it cannot be had now.

        If it is taken back while the stream runs, there is a `Reverted` for it, however old it is.
        """
        release = self.hold(demand)
        try:
            view = LiveView(self._walk, self._tracker)
            link = view.at(number)
            if link is None:
                oldest = view.oldest
                if oldest is None or number >= oldest.number:
                    return None
                link = await self.reader.link_at(number)
            block = await self.reader.block(link.number, link.hash, demand)
            self.hand_out(block)
            return block
        except ContentUnavailable as error:
            log.info("stream.block_unavailable", network=self.network, number=number, reason=str(error))
            return None
        finally:
            release()

    def hold(self, demand: Demand) -> Unsubscribe:
        """Keep the stream running with at least this content. Returns the way to end that."""
        key = object()
        self._held[key] = demand
        self._start()

        def release() -> None:
            self._held.pop(key, None)
            self._released()

        return release

    async def replay(
        self,
        number: int,
        consumer: Consumer,
        demand: Demand,
        *,
        pace: Callable[[], Awaitable[None]] | None = None,
    ) -> Unsubscribe:
        """Call back with every block from this number to the tip of the stream, then with every delta, exactly once.

        Returns when the consumer is live, with the way to end that. A reorganisation meanwhile is told as deltas.
        `pace` is awaited between blocks; until this returns, a consumer that wants no more cancels the call. A number
        beyond the tip waits for that block. Raises `ReplayTooLong` and `ReplayHalted`.
        """
        release = self.hold(demand)
        try:
            await wait_for(self._begun, _LOOK_SECONDS)
            view = LiveView(self._walk, self._tracker)
            oldest = max(0, (self._tracker.number or 0) - self._options.replay_blocks)
            walk = Walk(
                view, self.reader, rewritable=self.rewritable, window=self._options.window, start=number, final=None
            )
            await catch_up(self, walk, number, oldest, consumer, demand, pace)
            # No wait between the end of that and this: nothing is missed, nothing told twice.
            return self.subscribe(consumer, demand)
        finally:
            release()

    def hand_out(self, block: Block) -> None:
        """Somebody was told of this block by other means than a delta of the stream."""
        self._handed_out.put(block, block, self._walk.position.number if self._walk.position else None)

    def open_walk(
        self,
        *,
        window: int | None = None,
        start: int | None = None,
        blocks: tuple[Block, ...] = (),
        floor: Position | None = None,
        final: int | None = None,
        older: Callable[[str], Block | None] = lambda _hash: None,
    ) -> Walk:
        """A walk along the same chain with a position of its own, for a consumer that goes at its own speed."""
        chain = self._tracker.chain
        if chain is None:
            raise ValueError(f"{self.network} has no chain of headers")
        return Walk(
            chain,
            self.reader,
            rewritable=self.rewritable,
            window=window or self._options.window,
            start=start,
            blocks=blocks,
            floor=floor,
            final=final,
            older=older,
        )

    def listen(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever the chain of headers has changed, and keep the network followed closely."""
        return self._tracker.subscribe(lambda _change: callback())

    async def close(self) -> None:
        """Stop. Consumers are not told anything any more."""
        self._closed = True
        self._consumers.clear()
        self._held.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        task = self._task
        self._stop_if_idle()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        await self.pending.close()
        await self.reader.close()
        self._metrics.drop_network(self.network)

    # --- its life

    def _released(self) -> None:
        self._asked_at = self._clock.monotonic()
        self._stop_if_idle()

    def _start(self) -> None:
        if self._task is not None or self._closed:
            return
        self._handed_out.clear()
        self._walk = self._live_walk()
        self._begun.clear()
        # Whatever comes after this block is told.
        self._origin = self._tracker.latest
        self._unfollow = self._tracker.subscribe(self._changed)
        self._task = asyncio.create_task(self._run(), name=f"stream of {self.network}")
        # Somebody may only have asked for the head.
        self._stop_if_idle()

    def _live_walk(self) -> Walk:
        return self.open_walk(older=self._handed_out.get)

    def _stop_if_idle(self) -> None:
        """Stop once nobody has needed the stream for a while: a client that comes back at once finds it running."""
        if self._consumers or self._held or self._task is None:
            return
        left = self._options.linger_seconds - (self._clock.monotonic() - self._asked_at)
        if left > 0 and not self._closed:
            if self._lingering is None:
                self._lingering = asyncio.get_running_loop().call_later(left, self._linger_over)
            return
        self._task.cancel()
        self._task = None
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        self._handed_out.clear()
        self._walk = self._live_walk()
        self._begun.clear()
        self.condition.caught_up()
        self._set_halted(None)

    def _linger_over(self) -> None:
        self._lingering = None
        self._stop_if_idle()

    def _changed(self, _change: ChainChange) -> None:
        self._walk.poke()
        self._wake.set()
        self.condition.behind()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            delay = _LOOK_SECONDS
            try:
                if await self._step():
                    failures = 0
                    continue
            except ContentUnavailable as error:
                failures += 1
                delay = min(self._options.retry_seconds * 2 ** min(failures - 1, 10), _LONGEST_RETRY_SECONDS)
                log.warning("stream.content_unavailable", network=self.network, reason=str(error), again_in=delay)
            except Exception:
                # A mistake of ours must not end the task: the stream would stand still for good.
                log.exception("stream.mistake", network=self.network)
                delay = _LONGEST_RETRY_SECONDS
            await wait_for(self._wake, delay)

    async def _step(self) -> bool:
        """Take one step; false when there is none to take."""
        if self._tracker.fault is not None:
            self._set_halted(self._tracker.fault)
            return False
        if not self._begun.is_set():
            return await self._begin()
        step = await self._walk.next(lambda: self.demand)
        if isinstance(step, Halt):
            self._set_halted(f"{self.network}: {step.reason}")
            return False
        self._set_halted(None)
        if step is None:
            self.condition.caught_up()
            return False
        if isinstance(step, Reset):
            latest = self._tracker.latest
            log.warning("stream.reset", network=self.network, reason=step.reason)
            self._walk.restart(max(0, (latest.number if latest else 0) - self._options.restart_blocks))
            return True
        self._walk.advance(step)
        self.condition.count(step)
        self._tell(step)
        return True

    async def _begin(self) -> bool:
        origin = self._origin = self._origin or self._tracker.latest
        if origin is None:
            return False
        try:
            block = await self.reader.block(origin.number, origin.hash, self.demand)
        except ContentUnavailable as error:
            log.info("stream.begins_without_block", network=self.network, number=origin.number, reason=str(error))
            self._walk.begin_at(Position(origin.number, origin.hash))
        else:
            self._walk.begin_after(block)
        self._begun.set()
        return True

    def _tell(self, delta: Delta) -> None:
        for key, (consumer, _) in tuple(self._consumers.items()):
            if key not in self._consumers:
                continue
            try:
                consumer(delta)
            except Exception:
                log.exception("stream.consumer_failed", network=self.network)

    def _set_halted(self, reason: str | None) -> None:
        self.condition.note_halt(LIVE, reason)
