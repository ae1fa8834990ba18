"""One topic of a network that one process leads and the others are told of: its heads, its pending transactions.

Made by `network`. The lead is a lease in Redis with a token that grows whenever the lead changes hands. The leader adds
entries to a stream; Redis itself compares the token when it does, so a leader that was paused and wakes up late can
tell nobody anything. Entries with an older token than one that was seen are ignored as well.

Nothing here is needed for anything to be right. When Redis is away, or a leader is silent, `led` is false, and whoever
relies on this topic asks upstreams again.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from capstan.chain.shared.models import Entry, ShareOptions, read_entry, write_entry
from capstan.chain.shared.store import ShareAway, SharedStore
from capstan.core.clock import Clock

log = structlog.get_logger(__name__)

# A clock that was read over a slower round trip than this says too little.
_SLOWEST_CLOCK_SECONDS = 0.25
_ENTRIES_AT_ONCE = 256


class Topic:
    """One topic as one process sees it. Construct, `start`, and `close` at the end."""

    def __init__(
        self,
        store: SharedStore,
        name: str,
        clock: Clock,
        options: ShareOptions,
        *,
        able: Callable[[], bool],
        wanted: Callable[[], bool],
        on_entry: Callable[[Entry, bool], None],
        on_unled: Callable[[], None] = lambda: None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """`able`: may this process lead now; `wanted`: does it need the topic. `on_entry` is called with what others
        tell, and with whether that was told before this process listened."""
        self.leading = False
        # Whether another process leads and can be heard.
        self.led = False
        # Whether a process that does not lead needs the topic.
        self.others_want = False
        self._store = store
        self._name = name
        self._log = log.bind(network=store.network, topic=name)
        self._clock = clock
        self._options = options
        self._able = able
        self._wanted = wanted
        self._on_entry = on_entry
        self._on_unled = on_unled
        self._on_tick = on_tick
        self._token = 0
        self._newest_token = 0
        # What must be added to our clock to get that of the Redis server.
        self._offset: float | None = None
        self._clock_known = asyncio.Event()
        self._queue: deque[bytes] = deque(maxlen=options.queued)
        self._queued = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_up(self) -> bool:
        """Whether Redis answered last time."""
        return self.leading or self.led

    @property
    def token(self) -> int:
        """The token of the last lead of this process."""
        return self._token

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        if not self._tasks:
            work = (self._keep(), self._listen(), self._write())
            self._tasks = [asyncio.create_task(one, name=f"shared {self._name}") for one in work]

    async def close(self) -> None:
        """Stop, and let another process lead at once."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.leading:
            try:
                await self._store.tick(self._name, lead=False, wanted=False)
            except ShareAway as error:
                self._log.info("shared.lead_not_released", reason=str(error))
        self._stands(leading=False, led=False)

    def tell(self, entry: Entry) -> None:
        """Tell the others, if this process leads. Nothing waits; when Redis is slow, the oldest are dropped."""
        if self.leading:
            self._queue.append(write_entry(entry))
            self._queued.set()

    def to_shared(self, moment: float) -> float:
        """A moment of our clock on that of the Redis server."""
        return moment + (self._offset or 0.0)

    def from_shared(self, moment: float) -> float:
        """A moment of the Redis server's clock on ours."""
        return moment - (self._offset or 0.0)

    # --- the lead

    async def _keep(self) -> None:
        """Renew the lead, or take it when nobody has it."""
        while True:
            try:
                await self._tick()
            except Exception:
                # A mistake of ours must not end the task: the lead would be lost for good.
                self._log.exception("shared.mistake")
                self._stands(leading=False, led=False)
            await asyncio.sleep(self._options.tick_seconds)

    async def _tick(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            # Who leads knows his own wishes. Told to himself they would never end, for he heeds those of others.
            wanted = self._wanted() and not self.leading
            standing = await self._store.tick(self._name, lead=self._able(), wanted=wanted)
        except ShareAway as error:
            if self.is_up:
                self._log.warning("shared.redis_away", reason=str(error))
            self._stands(leading=False, led=False)
            return
        answered_at = self._clock.monotonic()
        if answered_at - asked_at <= _SLOWEST_CLOCK_SECONDS or self._offset is None:
            self._offset = standing.now - (asked_at + answered_at) / 2
            self._clock_known.set()
        self.others_want = standing.wanted
        if standing.holder:
            self._newest_token = max(self._newest_token, standing.token)
        leads = standing.holder == self._store.holder
        if leads:
            self._token = standing.token
        self._stands(leading=leads, led=bool(standing.holder) and not leads)
        self._on_tick()

    def _stands(self, *, leading: bool, led: bool) -> None:
        was_led = self.led
        if leading != self.leading:
            self._log.info("shared.leads" if leading else "shared.no_longer_leads")
            self._queue.clear()
        self.leading, self.led = leading, led
        if was_led and not led:
            self._on_unled()

    # --- telling

    async def _write(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                entries = [self._queue.popleft() for _ in range(min(len(self._queue), _ENTRIES_AT_ONCE))]
                try:
                    if not await self._store.publish(self._name, self._token, entries):
                        self._stands(leading=False, led=False)
                except ShareAway as error:
                    self._log.debug("shared.not_told", reason=str(error))

    # --- being told

    async def _listen(self) -> None:
        after = ""
        # Until the clock of Redis is known, nobody can say how old an entry is.
        await self._clock_known.wait()
        while True:
            try:
                after = await self._join(after)
                while True:
                    entries = await self._store.read(self._name, after)
                    for identity, data in entries:
                        after = identity
                        self._take(data, earlier=False)
            except ShareAway as error:
                self._log.debug("shared.not_heard", reason=str(error))
            except Exception:
                # A mistake of ours must not end the task: this process would ask upstreams for good.
                self._log.exception("shared.mistake")
            await asyncio.sleep(self._options.rest_seconds)

    async def _join(self, after: str) -> str:
        """Read what is kept and was not heard yet. Returns the last id."""
        kept = await self._store.backlog(self._name)
        if not kept:
            return "0-0"
        newest = kept[-1][0]
        # A Redis that lost its memory and whose clock went back may give lower ids than before.
        heard = _place(after) if after and _place(after) <= _place(newest) else (0, 0)
        for identity, data in kept:
            if _place(identity) > heard:
                self._take(data, earlier=True)
        return newest

    def _take(self, data: bytes, *, earlier: bool) -> None:
        entry = read_entry(data)
        if entry is None:
            return
        token = getattr(entry, "token", None)
        if token is not None:
            if token < self._newest_token or (self.leading and token == self._token):
                # Of a leader that is none any more, or our own.
                return
            self._newest_token = token
        self._on_entry(entry, earlier)


def _place(identity: str) -> tuple[int, int]:
    """The id of an entry, as something that can be compared."""
    milliseconds, _, count = identity.partition("-")
    return int(milliseconds), int(count or 0)
