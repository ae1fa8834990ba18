"""A memory with a bound on the weight of what it holds, where entries differ in size by orders of magnitude.

Used by the token and NFT services: most answers are small, but contracts and documents decide how large one is. What
was used longest ago leaves first. An entry that is too heavy to be worth its place is not kept at all.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# One entry takes at most this share of the whole.
_LARGEST_SHARE = 4


class WeightedMemory(Generic[K, V]):
    """Values by key, at most `weight` of them by the weights that they are put in with."""

    def __init__(self, weight: int) -> None:
        self._most = weight
        self._weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        """The weight of everything in it."""
        return self._weight

    def get(self, key: K) -> V | None:
        """The value, which counts as used now."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value in place of the one before, and make room for it."""
        self.discard(key)
        if weight > self._most // _LARGEST_SHARE:
            return
        self._entries[key] = (value, weight)
        self._weight += weight
        while self._weight > self._most:
            _, (_, left) = self._entries.popitem(last=False)
            self._weight -= left

    def discard(self, key: K) -> None:
        """Forget a key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weight -= entry[1]

    def keys(self) -> list[K]:
        """All keys, the one used longest ago first."""
        return list(self._entries)
