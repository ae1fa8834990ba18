"""One reading for all who want the same at the same moment.

Used by the services of tokens and NFTs: when a block arrives, everybody asks anew. Whoever goes away does not take the
reading from the others. A failure is everybody's, and is not kept.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shared(Generic[K, V]):
    """Readings under way, by what they read. `close` at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._readings: dict[K, asyncio.Task[V]] = {}

    async def read(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of the reading of this key that is under way, or of a new one."""
        reading = self._readings.get(key)
        if reading is None:
            reading = asyncio.create_task(read(), name=self._name)
            self._readings[key] = reading
            reading.add_done_callback(lambda done: self._finish(key, done))
        return await asyncio.shield(reading)

    async def close(self) -> None:
        """Stop the readings under way."""
        readings = tuple(self._readings.values())
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    def _finish(self, key: K, reading: asyncio.Task[V]) -> None:
        self._readings.pop(key, None)
        if not reading.cancelled():
            # Looked at here, because all who asked may be gone by now.
            reading.exception()
