"""A bounded memory of what was worked out lately, so that the same work is not done for every request.

Used for the heads of requests and of answers and for the questions of the cache. It is two dicts and no more: when the
younger is full it becomes the older, and the older is forgotten; what is still in use moves back to the younger. So a
look-up costs the same however much is remembered. A value must follow from its key alone: nothing is checked again.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Values by key. Holds at most twice `max_bytes`, as `size_of` counts them."""

    __slots__ = ("_bytes", "_max_bytes", "_older", "_size_of", "_younger", "get_young")

    def __init__(self, max_bytes: int, size_of: Callable[[K, V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._younger: dict[K, V] = {}
        self._older: dict[K, V] = {}
        self._bytes = 0
        # The value if it is among the younger ones, without a call of ours. If it is not, `get` must be asked.
        self.get_young = self._younger.get

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def get(self, key: K) -> V | None:
        """The value, if it was put or got lately."""
        value = self._younger.get(key)
        if value is None and self._older:
            value = self._older.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember a value."""
        self._bytes += self._size_of(key, value)
        self._younger[key] = value
        if self._bytes > self._max_bytes:
            self._older = self._younger.copy()
            self._younger.clear()
            self._bytes = 0

    def clear(self) -> None:
        """Forget everything."""
        self._younger.clear()
        self._older = {}
        self._bytes = 0
