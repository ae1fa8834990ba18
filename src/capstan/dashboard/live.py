"""Server-sent events: a part of a page that is sent again whenever it has changed.

Used by page modules. A stream looks every few seconds, sends the part if it differs from what was sent last, and a
comment now and then, so that proxies keep the connection. There is a limit to streams that are open at once; whoever
comes later is told to come back. A stream ends when its session does, when the service stops, and after a while in any
case: browsers connect again by themselves. A reader that is too slow holds up nobody else.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from capstan.core.clock import Clock

EVENT_STREAM = "text/event-stream; charset=utf-8"
_RECONNECT = b"retry: 1000\n\n"
_FULL = b"retry: 15000\nevent: full\ndata: too many streams are open\n\n"
_ENDED = b"event: ended\ndata: the session has ended\n\n"
_HEARTBEAT = b": still here\n\n"


class LiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How streams are."""

    # How often a part is looked at.
    seconds: float = 2.0
    # The longest silence.
    heartbeat_seconds: float = 15.0
    # The longest a stream lasts.
    life_seconds: float = 45.0
    # The most that are open at once.
    most: int = 32


class LiveParts:
    """All streams of this process."""

    def __init__(self, clock: Clock, options: LiveOptions) -> None:
        self._clock = clock
        self._options = options
        self._stopping = asyncio.Event()
        self.open = 0

    def stop(self) -> None:
        """End all of them; the service is about to stop."""
        self._stopping.set()

    async def stream(
        self, allowed: Callable[[], Awaitable[bool]], part: Callable[[], Awaitable[str]]
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of one stream. `allowed` says whether the session lasts; `part` is the HTML as it is now."""
        if self.open >= self._options.most or self._stopping.is_set():
            yield _FULL
            return
        self.open += 1
        try:
            async for event in self._events(allowed, part):
                yield event
        finally:
            self.open -= 1

    async def _events(
        self, allowed: Callable[[], Awaitable[bool]], part: Callable[[], Awaitable[str]]
    ) -> AsyncGenerator[bytes, None]:
        yield _RECONNECT
        begun = told_at = self._clock.monotonic()
        sent: str | None = None
        while self._clock.monotonic() - begun < self._options.life_seconds:
            if not await allowed():
                yield _ENDED
                return
            text = await part()
            if text != sent:
                sent, told_at = text, self._clock.monotonic()
                yield _event(text)
            elif self._clock.monotonic() - told_at >= self._options.heartbeat_seconds:
                told_at = self._clock.monotonic()
                yield _HEARTBEAT
            if await self._stopped_within(self._options.seconds):
                return

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


def _event(text: str) -> bytes:
    """The part as an event: one `data` line for each line of it."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines() if line.strip())
    return f"event: part\n{lines}\n".encode()
