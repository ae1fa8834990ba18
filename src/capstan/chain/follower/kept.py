"""Values by block, kept for as long as the block can be reverted.

Used wherever something about a block that was told must be known when it is taken back: the blocks that a replay was
told, the logs that clients were sent. What decides is the height of a block below the tip, never how many others were
kept since, so nobody who reads much makes another lose anything. Bounded; nothing here waits.
"""

from typing import Generic, TypeVar

from capstan.chain.follower.models import Block

Value = TypeVar("Value")

# Blocks that a stream can revert, unless it is told otherwise.
REVERTIBLE_BLOCKS = 256
# Blocks of one height that are kept, the ones kept last: a chain changes its mind at one place only so often.
_MOST_BRANCHES = 32


class KeptByHeight(Generic[Value]):
    """Values of the blocks that are less than `window` below the tip."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._values: dict[str, Value] = {}
        self._heights: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, block: Block, value: Value, tip: int | None) -> None:
        """Keep a value, unless the block is too far below the tip. While the tip is not known, it is the block."""
        tip = block.number if tip is None else tip
        if block.number <= tip - self._window:
            return
        branches = self._heights.setdefault(block.number, {})
        # Renewed: a block that was told again counts as told last.
        branches.pop(block.hash, None)
        branches[block.hash] = None
        self._values[block.hash] = value
        if len(branches) > _MOST_BRANCHES:
            oldest = next(iter(branches))
            del branches[oldest], self._values[oldest]
        # Not at every block: looking through all of them is worth it only when some can go.
        if len(self._heights) > self._window + self._window // 4:
            self._trim(tip)

    def get(self, block_hash: str) -> Value | None:
        """The value of the block with this hash."""
        return self._values.get(block_hash)

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
        self._heights.clear()

    def _trim(self, tip: int) -> None:
        """Forget what cannot be reverted; also what is far above the tip, of a chain that was begun anew."""
        for height in [height for height in self._heights if abs(height - tip) >= self._window]:
            for block_hash in self._heights.pop(height):
                del self._values[block_hash]
