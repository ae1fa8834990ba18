"""Recent block headers of one network as a chain: every header names its parent, and one branch is canonical.

Fed by the head tracker with the headers of the branch it has decided for; asked by everything that must know whether a
block is still part of the chain. It does no input or output and reads no clock. It never decides which branch is the
right one: `extend` makes the given branch canonical, walks back to the common ancestor, and says what that changed.

    HeaderChainError
     ├─ MissingParent        the branch does not reach the chain; the header named in the error would help
     ├─ OutsideWindow        the branch leaves the chain below the oldest header that is kept
     ├─ BrokenLink           the headers contradict each other
     └─ ReorgBelowFinality   a block that was said to be final would be taken back

A failed call changes nothing in the chain.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

DEFAULT_WINDOW = 256
# Headers beside the chain that are remembered, so that a branch is not asked for again: so many times the window.
_SIDE_WINDOWS = 2


class Header(msgspec.Struct, frozen=True, gc=False):
    """What links a block to its parent. Hashes are 0x and 64 lower-case digits."""

    number: int
    hash: str
    parent_hash: str
    timestamp: int


class ChainChange(msgspec.Struct, frozen=True):
    """One step of the chain: first `reverted` (highest first) is taken back, then `applied` (lowest first) is added.

    `reverted` may hold blocks from before the first change a subscriber was told; those it has not seen it ignores.
    With `restarted`, the blocks in `applied` are not linked to anything said before: nothing older is vouched for.
    """

    applied: tuple[Header, ...] = ()
    reverted: tuple[Header, ...] = ()
    restarted: bool = False

    def __bool__(self) -> bool:
        return bool(self.applied or self.reverted or self.restarted)


class HeaderChainError(Exception):
    """Base of what can be wrong with a branch."""


class MissingParent(HeaderChainError):
    """A header between the branch and the chain is not known."""

    def __init__(self, number: int, block_hash: str) -> None:
        super().__init__(f"the header of block {number}, {block_hash}, is not known")
        self.number = number
        self.hash = block_hash


class OutsideWindow(HeaderChainError):
    """The branch leaves the chain below the oldest header that is kept."""


class BrokenLink(HeaderChainError):
    """A header and its parent do not have numbers that follow each other, or two given headers are not linked."""


class ReorgBelowFinality(HeaderChainError):
    """A final block would be taken back. Someone is wrong, and only a person can find out who."""

    def __init__(self, ancestor: int, finalized: int) -> None:
        super().__init__(f"a branch leaves the chain at block {ancestor}, but block {finalized} is final")
        self.ancestor = ancestor
        self.finalized = finalized


class Branch(msgspec.Struct, frozen=True):
    """A branch that reaches the chain: the number of the last common block, and the headers above it, lowest first."""

    ancestor: int
    headers: tuple[Header, ...]


class HeaderChain:
    """The canonical branch, at most `window` headers long, and the finality that is known."""

    def __init__(self, window: int = DEFAULT_WINDOW) -> None:
        if window < 1:
            raise ValueError("a chain of headers has room for one at least")
        self._window = window
        self._by_number: dict[int, Header] = {}
        self._by_hash: dict[str, Header] = {}
        self._side: dict[str, Header] = {}
        # Blocks that were canonical and are not any more, the one taken back longest ago first.
        self._taken_back: dict[str, None] = {}
        # The tip, or None before the first header. To be read only.
        self.latest: Header | None = None
        self._finalized: int | None = None
        self._safe: int | None = None

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def oldest(self) -> Header | None:
        """The lowest header that is kept."""
        return None if self.latest is None else self._by_number[self.latest.number - len(self._by_number) + 1]

    @property
    def headers(self) -> tuple[Header, ...]:
        """All headers of the canonical branch that are kept, lowest first."""
        return tuple(self._by_number[number] for number in sorted(self._by_number))

    @property
    def finalized_number(self) -> int | None:
        """The highest block that can never be taken back, as far as is known. Never decreases."""
        return self._finalized

    @property
    def safe_number(self) -> int | None:
        """The highest block that is unlikely to be taken back; never below the finalized one."""
        known = [number for number in (self._safe, self._finalized) if number is not None]
        return max(known, default=None)

    def at(self, number: int) -> Header | None:
        """The canonical header with this number, if it is kept."""
        return self._by_number.get(number)

    def hash_at(self, number: int) -> str | None:
        """The hash of the canonical block with this number, if it is kept."""
        header = self._by_number.get(number)
        return None if header is None else header.hash

    def is_canonical(self, number: int, block_hash: str) -> bool:
        """Whether this very block is on the canonical branch and still kept."""
        return self.hash_at(number) == block_hash

    def get(self, block_hash: str) -> Header | None:
        """A header that is known, canonical or not."""
        return self._by_hash.get(block_hash) or self._side.get(block_hash)

    def was_taken_back(self, block_hash: str) -> bool:
        """Whether the block was canonical and is not any more, as far as is remembered."""
        return block_hash in self._taken_back

    def remember(self, header: Header) -> None:
        """Keep a header beside the chain, for a branch that may come to need it."""
        if self.is_canonical(header.number, header.hash):
            return
        self._side.pop(header.hash, None)
        self._side[header.hash] = header
        while len(self._side) > self._window * _SIDE_WINDOWS:
            del self._side[next(iter(self._side))]

    def forget(self, tip: Header) -> None:
        """Drop what is remembered of a branch that led nowhere: one of its headers may have been invented."""
        header: Header | None = tip
        while header is not None:
            self._side.pop(header.hash, None)
            header = self._side.get(header.parent_hash)

    def branch_of(self, tip: Header) -> Branch:
        """The way from the chain to `tip` over the headers that are known.

        Raises `MissingParent`, `OutsideWindow` or `BrokenLink` when there is none.
        """
        return self._branch(tip, {})

    def extend(self, headers: Sequence[Header]) -> ChainChange:
        """Make the last of these linked headers the tip, unless it is on the canonical branch already.

        The first need not be the child of a canonical block when the headers between were given before.
        """
        if not headers:
            return ChainChange()
        _check_links(headers)
        if self.latest is None:
            return self._replace((), tuple(headers[-self._window :]))
        try:
            branch = self._branch(headers[-1], {header.hash: header for header in headers})
        except HeaderChainError:
            for header in headers:
                self.remember(header)
            raise
        if not branch.headers:
            return ChainChange()
        return self._replace(self._above(branch.ancestor), branch.headers)

    def prepend(self, header: Header) -> bool:
        """Add the parent of the oldest header, for deeper forks to end at. False when it is not that, or no room."""
        oldest = self.oldest
        if oldest is None or len(self._by_number) >= self._window:
            return False
        if header.hash != oldest.parent_hash or header.number != oldest.number - 1:
            return False
        self._side.pop(header.hash, None)
        self._by_number[header.number] = header
        self._by_hash[header.hash] = header
        return True

    def prepend_known(self) -> None:
        """Add the ancestors of the oldest header that are remembered beside the chain."""
        oldest = self.oldest
        while oldest is not None:
            parent = self._side.get(oldest.parent_hash)
            oldest = parent if parent is not None and self.prepend(parent) else None

    def rewind(self, number: int) -> ChainChange:
        """Take back every block above `number`, which then is the tip."""
        if number not in self._by_number:
            raise OutsideWindow(f"block {number} is not kept")
        return self._replace(self._above(number), ())

    def restart(self, headers: Sequence[Header], *, forget_finality: bool = False) -> ChainChange:
        """Begin anew with these linked headers, which are linked to nothing that was known."""
        if not headers:
            raise ValueError("a chain begins with a header")
        _check_links(headers)
        tip = headers[-1]
        if forget_finality:
            self._finalized = self._safe = None
        elif self._finalized is not None and tip.number < self._finalized:
            raise ReorgBelowFinality(tip.number, self._finalized)
        self._by_number.clear()
        self._by_hash.clear()
        self._side.clear()
        self._taken_back.clear()
        self.latest = None
        change = self._replace((), tuple(headers[-self._window :]))
        self._lower_safe(headers[0].number - 1)
        return ChainChange(applied=change.applied, restarted=True)

    def finalize(self, number: int) -> None:
        """This block, and so all before it, is final. A lower number than before is ignored."""
        if self.latest is not None and number <= self.latest.number:
            self._finalized = number if self._finalized is None else max(self._finalized, number)

    def mark_safe(self, number: int) -> None:
        """This block is safe now. May go down, unlike finality."""
        if self.latest is not None and number <= self.latest.number:
            self._safe = number

    def _branch(self, tip: Header, given: Mapping[str, Header]) -> Branch:
        oldest, latest = self.oldest, self.latest
        if oldest is None or latest is None:
            raise OutsideWindow("the chain has no header yet")
        path: list[Header] = []
        header = tip
        while not self.is_canonical(header.number, header.hash):
            path.append(header)
            number = header.number - 1
            if self.is_canonical(number, header.parent_hash):
                break
            if header.number == oldest.number and header.parent_hash == oldest.parent_hash:
                # The last common block is the parent of the oldest header: known by its hash alone.
                break
            if header.number <= oldest.number:
                raise OutsideWindow(f"block {tip.number} leaves the chain below block {oldest.number}")
            parent = given.get(header.parent_hash) or self._side.get(header.parent_hash)
            if parent is None:
                raise MissingParent(number, header.parent_hash)
            if parent.number != number:
                raise BrokenLink(f"block {header.number} names block {parent.number} as its parent")
            header = parent
        path.reverse()
        ancestor = path[0].number - 1 if path else tip.number
        return Branch(ancestor, tuple(path))

    def _above(self, number: int) -> tuple[Header, ...]:
        latest = self.latest
        if latest is None or number >= latest.number:
            return ()
        if self._finalized is not None and number < self._finalized:
            raise ReorgBelowFinality(number, self._finalized)
        return tuple(self._by_number[height] for height in range(latest.number, number, -1))

    def _replace(self, reverted: tuple[Header, ...], applied: tuple[Header, ...]) -> ChainChange:
        for header in reverted:
            del self._by_number[header.number]
            self._by_hash.pop(header.hash, None)
            self._taken_back[header.hash] = None
        while len(self._taken_back) > self._window * _SIDE_WINDOWS:
            del self._taken_back[next(iter(self._taken_back))]
        for header in applied:
            self._taken_back.pop(header.hash, None)
            self._side.pop(header.hash, None)
            self._by_number[header.number] = header
            self._by_hash[header.hash] = header
        if applied:
            self.latest = applied[-1]
        elif reverted:
            self.latest = self._by_number[reverted[-1].number - 1]
        if reverted:
            self._lower_safe(reverted[-1].number - 1)
        for header in reverted:
            self.remember(header)
        self._trim()
        return ChainChange(applied=applied, reverted=reverted)

    def _trim(self) -> None:
        assert self.latest is not None
        lowest = self.latest.number - len(self._by_number) + 1
        while len(self._by_number) > self._window:
            header = self._by_number.pop(lowest)
            if self._by_hash.get(header.hash) is header:
                del self._by_hash[header.hash]
            lowest += 1

    def _lower_safe(self, number: int) -> None:
        if self._safe is not None and self._safe > number:
            self._safe = max(number, 0)


def _check_links(headers: Sequence[Header]) -> None:
    for parent, child in pairwise(headers):
        if child.parent_hash != parent.hash or child.number != parent.number + 1:
            raise BrokenLink(f"block {child.number} is not the child of block {parent.number}")
