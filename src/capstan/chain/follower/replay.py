"""From an older block to the live stream, without a gap and without a repetition.

Called by the follower for a consumer that begins in the past. A replay must end exactly where the stream is, so it does
not walk along the newest headers but along the blocks that the stream stands on, until it stands there too. Only reads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from capstan.chain.follower.models import Applied, Block, Delta, Demand
from capstan.chain.follower.reader import ContentUnavailable
from capstan.chain.follower.walk import Halt, Position, Reset, Walk
from capstan.chain.heads.headers import Header
from capstan.chain.heads.tracker import HeadTracker

log = structlog.get_logger(__name__)

_WAIT_SECONDS = 1.0


class ReplayHalted(Exception):
    """The stream, or the replay, would have to take back a final block. Only a person can find out who is right."""


class ReplayTooLong(Exception):
    """The replay would begin further back than is allowed; `first` is the earliest block that can be asked for."""

    def __init__(self, first: int) -> None:
        super().__init__(f"the earliest block that can be replayed now is {first}")
        self.first = first


class Stream(Protocol):
    """What a replay needs of the follower."""

    network: str

    @property
    def position(self) -> Position | None: ...
    @property
    def halted(self) -> str | None: ...
    def subscribe(self, consumer: Callable[[Delta], None], demand: Demand) -> Callable[[], None]: ...
    def hand_out(self, block: Block) -> None: ...


class LiveView:
    """The blocks of the live walk as a `ChainView`."""

    def __init__(self, live: Walk, tracker: HeadTracker) -> None:
        self._live = live
        self._tracker = tracker

    @property
    def latest(self) -> Header | None:
        return _header(self._live.blocks[-1]) if self._live.blocks else None

    @property
    def oldest(self) -> Header | None:
        return _header(self._live.blocks[0]) if self._live.blocks else None

    @property
    def finalized_number(self) -> int | None:
        return self._tracker.finalized_number

    def at(self, number: int) -> Header | None:
        blocks = self._live.blocks
        if not blocks or not blocks[0].number <= number <= blocks[-1].number:
            return None
        return _header(blocks[number - blocks[0].number])

    def get(self, block_hash: str) -> Header | None:
        return self._tracker.chain.get(block_hash) if self._tracker.chain is not None else None

    def was_taken_back(self, block_hash: str) -> bool:
        # A replay stands on nothing but what the stream has told: whatever is above its tip now, it has reverted.
        return True

    def is_canonical(self, number: int, block_hash: str) -> bool:
        header = self.at(number)
        return header is not None and header.hash == block_hash


async def catch_up(
    stream: Stream,
    walk: Walk,
    number: int,
    oldest: int,
    consumer: Callable[[Delta], None],
    demand: Demand,
    pace: Callable[[], Awaitable[None]] | None,
) -> None:
    """Tell every block from `number` on until the walk stands where the stream does.

    Raises `ReplayHalted` rather than wait for a stream that only a person can set going again.
    """
    if number < oldest:
        raise ReplayTooLong(oldest)
    moved = asyncio.Event()

    def heard(_delta: Delta) -> None:
        walk.poke()
        moved.set()

    unsubscribe = stream.subscribe(heard, demand)
    try:
        while not _reached(stream, walk, number):
            moved.clear()
            if not await _step(stream, walk, consumer, demand):
                if stream.halted is not None:
                    raise ReplayHalted(stream.halted)
                await wait_for(moved, _WAIT_SECONDS)
            elif pace is not None:
                await pace()
    finally:
        unsubscribe()


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until it happens, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _reached(stream: Stream, walk: Walk, number: int) -> bool:
    """Whether the next delta of the stream is what the replay has to tell next."""
    position = stream.position
    if position is None:
        return False
    return position == walk.position if walk.position is not None else position.number == number - 1


async def _step(stream: Stream, walk: Walk, consumer: Callable[[Delta], None], demand: Demand) -> bool:
    """Tell one delta; false when there is none to tell now."""
    try:
        step = await walk.next(lambda: demand)
    except ContentUnavailable as error:
        log.warning("stream.replay_waits", network=stream.network, reason=str(error))
        return False
    if isinstance(step, Reset):
        walk.restart(0)
        return True
    if isinstance(step, Halt):
        raise ReplayHalted(f"{stream.network}: {step.reason}")
    if step is None:
        return False
    walk.advance(step)
    if isinstance(step, Applied):
        stream.hand_out(step.block)
    consumer(step)
    return True


def _header(block: Block) -> Header:
    return Header(block.number, block.hash, block.parent_hash, block.timestamp)
