"""Follows the head of one network: a background task per upstream, one announced head, one ordered stream of changes.

Made and stopped by `latest.LatestHeads`; asked by the gateway for the head and its finality, subscribed to by whatever
must know when blocks are applied or taken back. It decides when upstreams are asked; what their answers mean is decided
by `evm` and `solana`. Every question has its own task and time limit, so an upstream that stalls delays
nobody. The announced number goes back only by the rule written in `choice`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog

from capstan.chain.errors import ChainError, UpstreamRefused
from capstan.chain.heads.colleague import Colleague
from capstan.chain.heads.evm import EvmHeads, OnReport
from capstan.chain.heads.headers import ChainChange, Header, HeaderChain
from capstan.chain.heads.listening import HeadListener, Subscribable
from capstan.chain.heads.metrics import HeadMetrics
from capstan.chain.heads.reading import Member
from capstan.chain.heads.solana import SolanaHeads
from capstan.chain.heads.source import HeadOptions, HeadSource
from capstan.chain.models import NetworkSpec
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

Subscriber: TypeAlias = Callable[[ChainChange], None]

# Around the moment a block is due, upstreams are asked so many times per block time.
_QUICK_SHARE = 12
_STARTUP_INTERVAL = 0.25
_FAILURES_BEFORE_SLOWING = 3
_LONGEST_PAUSE = 5.0
# A provider that turns us away has counted enough of our questions.
_LONGEST_REFUSED_PAUSE = 30.0


class HeadTracker:
    """The head of one network. Construct, `start`, and `stop` at the end."""

    def __init__(
        self,
        spec: NetworkSpec,
        members: Sequence[Member],
        clock: Clock,
        *,
        options: HeadOptions | None = None,
        metrics: HeadMetrics | None = None,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._options = options or HeadOptions()
        self._metrics = metrics or HeadMetrics()
        self._members: tuple[Member, ...] = ()
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._listeners: dict[Member, asyncio.Task[None]] = {}
        self._wakes: dict[Member, asyncio.Event] = {}
        self._subscribers: dict[object, tuple[Subscriber, bool]] = {}
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._running = False
        # Whether it has settled into the slow rhythm of an idle network; `touch` ends that.
        self.asleep = False
        # Set, in place of a `touch`, by those who ask so often that even a look at the clock counts.
        self.wanted = False
        # Nobody has asked yet.
        self._asked_at = float("-inf")
        # Whether our own last question to each upstream was answered.
        self._answered: dict[Member, bool] = {}
        self._evm: EvmHeads | None = None
        self._colleague: Colleague | None = None
        # Where the head is known first. To be read only.
        self.source: HeadSource
        if spec.family == "evm":
            self.source = self._evm = EvmHeads(spec, clock, self._metrics, self._changed, self._options)
            self._colleague = Colleague(self._evm, spec.name, clock)
        else:
            self.source = SolanaHeads(spec, clock, self._metrics, self._announced, self._options)
        self._metrics.watch_age(spec.name, lambda: self.age_seconds or 0.0)
        self.update(spec, members)

    # --- what is known

    @property
    def latest(self) -> Header | None:
        """The announced head; None before the first, and on Solana, which has no headers."""
        return self.source.latest

    @property
    def number(self) -> int | None:
        """The announced block number, on Solana the slot at commitment `processed`."""
        return self.source.number

    @property
    def finalized_number(self) -> int | None:
        """The highest block or slot that can never be taken back. Never decreases."""
        return self.source.finalized_number

    @property
    def safe_number(self) -> int | None:
        """The highest block tagged safe, on Solana the slot at commitment `confirmed`."""
        return self.source.safe_number

    @property
    def age_seconds(self) -> float | None:
        """How long the announced head has been the head; None before the first."""
        return None if self.number is None else max(self._clock.monotonic() - self.source.adopted_at, 0.0)

    @property
    def chain(self) -> HeaderChain | None:
        """The recent headers, to be read only; None on Solana."""
        return None if self._evm is None else self._evm.chain

    @property
    def fault(self) -> str | None:
        """What a person must look into: an upstream's branch would take back a final block. None when all is well."""
        return None if self._evm is None else self._evm.fault

    @property
    def idle(self) -> bool:
        """Whether nobody has asked for a while, nobody waits, and nobody needs every block."""
        if self.wanted:
            self.wanted = False
            self._asked_at = self._clock.monotonic()
        needed = self._waiters or any(keep_awake for _, keep_awake in self._subscribers.values())
        return not needed and self._clock.monotonic() - self._asked_at > self._options.idle_after

    # --- what others do with it

    def touch(self) -> None:
        """Somebody is interested in this network. Wakes the tracker when it is idle; cheap otherwise."""
        self._asked_at = self._clock.monotonic()
        if self.asleep:
            self.asleep = False
            self.source.thorough = True
            for wake in self._wakes.values():
                wake.set()

    def subscribe(self, callback: Subscriber, *, keep_awake: bool = True) -> Callable[[], None]:
        """Call back for every change of the chain, in order, from the moment it happens. Returns the way to end that.

        The callback must not wait and must not raise. With `keep_awake`, no block is ever skipped for want of
        interest; a cache, which can live with `ChainChange.restarted`, says False and lets an idle network sleep.
        """
        key = object()
        self._subscribers[key] = (callback, keep_awake)
        if keep_awake:
            self.touch()

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    async def wait_for(self, number: int, timeout: float) -> int:
        """Wait until the announced head is this block or a higher one, and return it. Raises `TimeoutError`."""
        self.touch()
        async with asyncio.timeout(timeout):
            while (reached := self.number) is None or reached < number:
                if not self._running:
                    raise TimeoutError(f"{self.spec.name} is not followed")
                waiter = asyncio.get_running_loop().create_future()
                self._waiters[waiter] = number
                try:
                    await waiter
                finally:
                    self._waiters.pop(waiter, None)
        return reached

    async def poll(self) -> None:
        """Ask every upstream now, besides the usual rhythm, and wait until each has answered or failed."""
        await asyncio.gather(*(self._look(member) for member in self._members))

    async def poll_one(self, member: Member) -> None:
        """Ask this upstream now."""
        await self._look(member)

    async def poll_finality(self) -> None:
        """The same for what is final."""
        await asyncio.gather(*(self._look_at_finality(member) for member in self._members))

    async def observe(self, member: Member, header: Header) -> None:
        """A subscription at this upstream has told its new head. EVM only."""
        if self._evm is not None:
            await self._evm.observe(member, header)

    # --- what a colleague, another process that asks the same upstreams, tells

    @property
    def able(self) -> bool:
        """Whether it may speak for colleagues: there is a head, and upstreams answered when they were asked last."""
        return self.number is not None and (not self._answered or any(self._answered.values()))

    def share(self, on_report: OnReport | None) -> None:
        """Call back with everything that upstreams tell from now on; None ends that. EVM only."""
        if self._evm is not None:
            self._evm.on_report = on_report

    def told(self, upstream: str, header: Header, way: Sequence[Header], asked_at: float) -> None:
        """A colleague asked this upstream at that time (on our clock) and this was the answer. EVM only."""
        member = next((member for member in self._members if member.name == upstream), None)
        if self._colleague is not None and member is not None and self._running:
            self._colleague.tell(member, header, way, asked_at)

    def told_finality(self, finalized: int, block_hash: str | None, safe: int | None) -> None:
        """A colleague knows what is final. EVM only."""
        if self._colleague is not None:
            self._colleague.tell_finality(finalized, block_hash, safe)

    def untold(self) -> None:
        """Nobody asks for us any more: ask again, at once."""
        if self._colleague is not None and self._colleague.forget():
            for wake in self._wakes.values():
                wake.set()

    def _is_told(self, member: Member) -> bool:
        """Whether a colleague asks this upstream as often as we would."""
        usual = _within(self.spec.block_time_ms / 2000, self._options.fastest_interval, self._options.slowest_interval)
        return self._colleague is not None and self._colleague.tells(member, max(self.interval(), usual))

    # --- its life

    def start(self) -> None:
        """Begin to ask. Must be called with the event loop running."""
        self._running = True
        self.update(self.spec, self._members)

    def update(self, spec: NetworkSpec, members: Sequence[Member]) -> None:
        """The network has these upstreams from now on. Those that stay are not disturbed."""
        self.spec = spec
        for member in self._members:
            if member not in members:
                self._end(member)
        self._members = tuple(members)
        self.source.use(spec, members)
        if self._running:
            for member in members:
                if member not in self._tasks:
                    self._begin(member)

    def stop_soon(self) -> list[asyncio.Task[None]]:
        """Stop asking; returns the tasks that are ending."""
        self._running = False
        tasks = [*self._tasks.values(), *self._listeners.values()]
        if self._colleague is not None:
            tasks += self._colleague.tasks
        for member in self._members:
            self._end(member)
        self._metrics.drop_network(self.spec.name)
        for waiter in list(self._waiters):
            _resolve(waiter)
        return tasks

    async def stop(self) -> None:
        """Stop asking and wait until that is done."""
        await asyncio.gather(*self.stop_soon(), return_exceptions=True)

    def _begin(self, member: Member) -> None:
        self._wakes[member] = asyncio.Event()
        self._tasks[member] = asyncio.create_task(
            self._follow(member, self._wakes[member]), name=f"head of {self.spec.name} at {member.name}"
        )
        upstream = member.upstream
        if self._evm is not None and isinstance(upstream, Subscribable):
            listener = HeadListener(
                member.name,
                upstream,
                lambda head: self.observe(member, head),
                lambda: self.idle or self._is_told(member),
            )
            self._listeners[member] = asyncio.create_task(
                listener.run(), name=f"new heads of {self.spec.name} at {member.name}"
            )

    def _end(self, member: Member) -> None:
        self._wakes.pop(member, None)
        self._answered.pop(member, None)
        if self._colleague is not None:
            self._colleague.drop(member)
        for task in (self._tasks.pop(member, None), self._listeners.pop(member, None)):
            if task is not None:
                task.cancel()
        self._metrics.drop_upstream(self.spec.name, member.name)

    # --- asking

    async def _follow(self, member: Member, wake: asyncio.Event) -> None:
        failures = 0
        finality_asked_at = float("-inf")
        while True:
            wake.clear()
            told = self._is_told(member)
            error = None if told else await self._look(member)
            failures = 0 if error is None else failures + 1
            told = told and self._colleague is not None and self._colleague.tells_finality(self._finality_interval())
            due = self._clock.monotonic() - finality_asked_at >= self._finality_interval()
            if error is None and due and not told:
                finality_asked_at = self._clock.monotonic()
                await self._look_at_finality(member)
            delay = max(self.interval(), _slowed(failures, error))
            try:
                async with asyncio.timeout(delay):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _look(self, member: Member) -> Exception | None:
        try:
            await self.source.look(member)
            self._answered[member] = True
        except ChainError as error:
            self._answered[member] = False
            self._metrics.poll_failed(self.spec.name, member.name)
            log.debug("head.not_read", network=self.spec.name, upstream=member.name, reason=str(error))
            return error
        except Exception as error:
            # A mistake of ours must not end the task: the head would stand still for good.
            log.exception("head.mistake", network=self.spec.name, upstream=member.name)
            return error
        return None

    async def _look_at_finality(self, member: Member) -> None:
        try:
            await self.source.look_at_finality(member)
        except ChainError as error:
            log.debug("head.finality_not_read", network=self.spec.name, upstream=member.name, reason=str(error))
        except Exception:
            log.exception("head.mistake", network=self.spec.name, upstream=member.name)

    def interval(self) -> float:
        """Seconds until an upstream is asked again: often when the next block is due, seldom when nobody cares."""
        options = self._options
        if self.number is None:
            return max(_STARTUP_INTERVAL, options.fastest_interval)
        self.asleep = self.idle
        self.source.thorough = not self.asleep
        block_time = self.spec.block_time_ms / 1000
        usual = _within(block_time / 2, options.fastest_interval, options.slowest_interval)
        if self.asleep:
            return max(options.idle_interval, usual)
        quick = _within(block_time / _QUICK_SHARE, options.fastest_interval, usual)
        due_in = block_time - (self._clock.monotonic() - self.source.adopted_at)
        if due_in > 0:
            return _within(due_in, quick, usual)
        # One block time of impatience: a chain that has stopped is not worth more than the usual rhythm.
        return quick if due_in > -block_time else usual

    def _finality_interval(self) -> float:
        if self.number is None:
            return 0.0
        if self.asleep:
            return self._options.idle_finality_interval
        return max(self._options.finality_interval, self.spec.block_time_ms / 1000)

    # --- telling

    def _changed(self, change: ChainChange) -> None:
        self._announced()
        for callback, _ in tuple(self._subscribers.values()):
            try:
                callback(change)
            except Exception:
                log.exception("head.subscriber_failed", network=self.spec.name)

    def _announced(self) -> None:
        number = self.number
        if number is None:
            return
        self._metrics.head(self.spec.name, number)
        for waiter, wanted in list(self._waiters.items()):
            if number >= wanted:
                _resolve(waiter)


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _slowed(failures: int, error: Exception | None) -> float:
    """The pause after failures in a row: an upstream that is down is not asked at full speed."""
    if isinstance(error, UpstreamRefused):
        return min(2.0 ** min(failures, 10), _LONGEST_REFUSED_PAUSE)
    if failures < _FAILURES_BEFORE_SLOWING:
        return 0.0
    return min(2.0 ** min(failures - _FAILURES_BEFORE_SLOWING, 10), _LONGEST_PAUSE)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
