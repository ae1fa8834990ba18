"""The way from where a consumer stands to the head of the chain: one delta at a time, each linked to the one before.

Every consumer of the stream that has a position of its own has a `Walk`: the live one of a follower, a replay, a
durable consumer. `next` compares the position with the chain as it is at that moment and gives the one step that
brings it closer; the owner takes the step and says so with `advance`. So it does not matter in which order news arrive,
whether some were missed, or how often the chain changed its mind meanwhile: what is not the child of the position is
never applied, and only the position itself is ever reverted. It decides nothing about which chain is right.

A final block is never taken back: `next` then gives `Halt`, again and again, until the chain holds the position again.
On a chain that may be rewritten (a development chain) it gives `Reset` once nothing is left in common.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeAlias

import msgspec

from capstan.chain.follower.models import Applied, Block, Delta, Demand, Reverted
from capstan.chain.follower.reader import ContentUnavailable, Reader
from capstan.chain.heads.headers import Header

# Blocks whose content is fetched ahead of the one that is needed next.
_AHEAD = 8


class Position(msgspec.Struct, frozen=True):
    """A block, by what identifies it."""

    number: int
    hash: str


class Halt(msgspec.Struct, frozen=True):
    """The walk cannot go on without taking back a final block, or one that is no longer kept."""

    reason: str


class Reset(msgspec.Struct, frozen=True):
    """The chain is another one. Everything that was kept has been reverted; whatever is older must be forgotten."""

    reason: str


Step: TypeAlias = Delta | Halt | Reset


class ChainView(Protocol):
    """The canonical chain that a walk follows, as far as it is kept."""

    @property
    def latest(self) -> Header | None: ...
    @property
    def oldest(self) -> Header | None: ...
    @property
    def finalized_number(self) -> int | None: ...
    def at(self, number: int) -> Header | None: ...
    def get(self, block_hash: str) -> Header | None: ...
    def was_taken_back(self, block_hash: str) -> bool: ...
    def is_canonical(self, number: int, block_hash: str) -> bool: ...


class Walk:
    """A position on the chain, and the blocks below it that can still be taken back."""

    def __init__(
        self,
        view: ChainView,
        reader: Reader,
        *,
        rewritable: bool = False,
        window: int = 256,
        start: int | None = None,
        blocks: Iterable[Block] = (),
        floor: Position | None = None,
        final: int | None = None,
        older: Callable[[str], Block | None] = lambda _hash: None,
    ) -> None:
        """`blocks` were applied before, lowest first; `floor` is the block below them. Without either, the first block
        to be applied is `start`, or the head. `older` finds a block below the first one that somebody was told of."""
        self._view = view
        self._reader = reader
        self._rewritable = rewritable
        self._window = window
        self._start = start
        self._blocks: deque[Block] = deque(blocks)
        self._floor = floor
        # Whether the block below was applied once and is no longer kept.
        self._dropped = floor is not None
        self._final = final
        self._older = older
        self._queue: deque[Header] = deque()
        self._awaited: Header | None = None
        self._waiter: asyncio.Future[Block] | None = None
        self._abandoned = False
        if self._blocks and floor is None:
            self._floor = _below(self._blocks[0])

    @property
    def position(self) -> Position | None:
        """The last block that was applied and not reverted; None when the next block has no parent to match."""
        return Position(self._blocks[-1].number, self._blocks[-1].hash) if self._blocks else self._floor

    @property
    def tip(self) -> Block | None:
        """The block at the position, when it is kept."""
        return self._blocks[-1] if self._blocks else None

    @property
    def blocks(self) -> deque[Block]:
        """The blocks that can still be reverted, lowest first. To be read only."""
        return self._blocks

    @property
    def final(self) -> int | None:
        """The highest block known to be final. Nothing at or below it is ever reverted."""
        known = [number for number in (self._final, self._view.finalized_number) if number is not None]
        return max(known, default=None)

    def begin_after(self, block: Block) -> None:
        """Stand on this block as if it had been applied."""
        self._blocks = deque((block,))
        self._floor = _below(block)
        self._dropped = False

    def begin_at(self, floor: Position) -> None:
        """Stand on a block of which nothing but this is known."""
        self._blocks.clear()
        self._floor = floor
        self._dropped = False

    def restart(self, number: int) -> None:
        """Forget everything; the next block to be applied is this one."""
        self._blocks.clear()
        self._queue.clear()
        self._floor = self._final = None
        self._dropped = False
        self._start = number

    def poke(self) -> None:
        """The chain has changed: do not wait for the content of a block that is no longer on it."""
        awaited, waiter = self._awaited, self._waiter
        if awaited is not None and waiter is not None and not self._holds(awaited):
            self._abandoned = True
            waiter.cancel()

    def advance(self, step: Delta) -> None:
        """The owner has taken the step."""
        if isinstance(step, Reverted):
            if self._blocks:
                self._blocks.pop()
            else:
                self._floor = _below(step.block)
            return
        if self._floor is None:
            self._floor = _below(step.block)
        self._blocks.append(step.block)
        final = None if self._rewritable else self.final
        while len(self._blocks) > 1 and (
            len(self._blocks) > self._window or (final is not None and self._blocks[0].number <= final)
        ):
            lowest = self._blocks.popleft()
            self._floor = Position(lowest.number, lowest.hash)
            self._dropped = True

    async def next(self, demand: Callable[[], Demand]) -> Step | None:
        """The next step, or None when the position is the head, or ahead of what the chain is known to be.

        Valid only until the owner waits for something else. Raises `ContentUnavailable`.
        """
        while True:
            position = self.position
            if position is None:
                link = await self._first()
            else:
                verdict = await self._beyond(position)
                if verdict is False:
                    step = self._back()
                    if step is not None:
                        return step
                    continue
                link = verdict
            if link is None:
                return None
            block = await self._content(link, demand)
            if block is not None:
                return Applied(block)

    # --- where to go

    async def _first(self) -> Header | None:
        latest, oldest = self._view.latest, self._view.oldest
        if latest is None or oldest is None:
            return None
        number = latest.number if self._start is None else self._start
        if number > latest.number:
            return None
        return self._view.at(number) if number >= oldest.number else await self._reader.link_at(number)

    async def _beyond(self, position: Position) -> Header | Literal[False] | None:
        """The child of the position; None when there is none yet; False when the position is not on the chain."""
        view, latest, oldest = self._view, self._view.latest, self._view.oldest
        if latest is None or oldest is None:
            return None
        if position.number > latest.number:
            return self._ahead_of(latest, position)
        if position.number >= oldest.number:
            return view.at(position.number + 1) if view.is_canonical(position.number, position.hash) else False
        if position.number == oldest.number - 1:
            return oldest if oldest.parent_hash == position.hash else False
        return await self._by_number(position, oldest)

    def _ahead_of(self, latest: Header, position: Position) -> Header | Literal[False] | None:
        """The chain is shorter than where we stand: has it taken blocks back, or does it merely lag?"""
        if self._view.was_taken_back(position.hash):
            return False
        ours = next((block for block in self._blocks if block.number == latest.number), None)
        if ours is not None:
            return False if ours.hash != latest.hash else None
        return False if self._rewritable else None

    async def _by_number(self, position: Position, oldest: Header) -> Header | Literal[False] | None:
        """Far below the headers that are kept: ask for the next blocks by their numbers, and see whether they link."""
        while self._queue and self._queue[0].number <= position.number:
            self._queue.popleft()
        if self._queue and self._queue[0].parent_hash == position.hash:
            return self._queue[0]
        self._queue.clear()
        if oldest.number - position.number <= _AHEAD:
            return await self._down_from(oldest, position)
        numbers = range(position.number + 1, position.number + 1 + _AHEAD)
        answers = await asyncio.gather(*(self._reader.link_at(number) for number in numbers), return_exceptions=True)
        parent = position.hash
        for answer in answers:
            if not isinstance(answer, Header) or answer.parent_hash != parent:
                break
            self._queue.append(answer)
            parent = answer.hash
        if self._queue:
            return self._queue[0]
        if isinstance(answers[0], BaseException):
            raise answers[0]
        if (await self._reader.link_at(position.number)).hash == position.hash:
            raise ContentUnavailable(f"upstreams disagree about the blocks after {position.number}")
        return False

    async def _down_from(self, oldest: Header, position: Position) -> Header | Literal[False]:
        """Just below the headers that are kept: there the hashes are known, so no upstream can lead us astray."""
        path: list[Header] = []
        header = oldest
        while header.number > position.number + 1:
            block = await self._reader.block(header.number - 1, header.parent_hash, Demand.HEADERS)
            header = Header(block.number, block.hash, block.parent_hash, block.timestamp)
            path.append(header)
        if header.parent_hash != position.hash:
            return False
        self._queue.extend(reversed(path))
        return header

    def _back(self) -> Step | None:
        """One step back from a position that is not on the chain; None when that needs no delta."""
        self._queue.clear()
        return self._revert(self._blocks[-1]) if self._blocks else self._below_floor()

    def _revert(self, block: Block) -> Step:
        final = self.final
        if not self._rewritable and final is not None and block.number <= final:
            return Halt(
                f"block {block.number}, {block.hash}, is final (up to {final}) and was applied, "
                "but is not on the chain that the upstreams have now"
            )
        return Reverted(block)

    def _below_floor(self) -> Step | None:
        floor = self._floor
        assert floor is not None
        if self._dropped:
            reason = f"block {floor.number}, {floor.hash}, was applied, but is not on the chain that upstreams have now"
            return Reset(reason) if self._rewritable else Halt(f"{reason}; blocks below it are no longer kept")
        older = self._older(floor.hash)
        if older is not None:
            return self._revert(older)
        # Nobody was told of what is here: the walk began above. Find where the branches part, as far as that is known.
        header = self._view.get(floor.hash)
        if header is not None and floor.number > 0:
            self._floor = Position(floor.number - 1, header.parent_hash)
        elif self._rewritable:
            return Reset("the chain began anew")
        else:
            self._floor, self._start = None, floor.number
        return None

    # --- content

    def _holds(self, link: Header) -> bool:
        """Whether the block is on the chain, as far as can be told."""
        latest, oldest = self._view.latest, self._view.oldest
        if latest is None or oldest is None:
            return False
        return link.number < oldest.number or self._view.is_canonical(link.number, link.hash)

    async def _content(self, link: Header, demand: Callable[[], Demand]) -> Block | None:
        """The block of this link, unless it leaves the chain meanwhile."""
        wanted = demand()
        self._prefetch(link, wanted)
        self._awaited, self._abandoned = link, False
        self._waiter = asyncio.ensure_future(self._reader.block(link.number, link.hash, wanted))
        try:
            block = await self._waiter
        except asyncio.CancelledError:
            if self._abandoned and not _being_cancelled():
                return None
            raise
        except ContentUnavailable:
            # What was asked for by number may belong to a branch that is gone: ask anew.
            self._queue.clear()
            raise
        finally:
            self._awaited = self._waiter = None
        # Somebody may have demanded more meanwhile; then the block is asked for again.
        return block if self._holds(link) and demand() <= wanted else None

    def _prefetch(self, link: Header, demand: Demand) -> None:
        for queued in self._queue:
            self._reader.prefetch(queued.number, queued.hash, demand)
        for number in range(link.number + 1, link.number + 1 + _AHEAD):
            header = self._view.at(number)
            if header is not None:
                self._reader.prefetch(number, header.hash, demand)


def _below(block: Block) -> Position:
    return Position(block.number - 1, block.parent_hash)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
