"""The second tier in a file of its own: final answers survive a restart.

Used by `gateway`. All work on the file is done by one thread. Reads wait for it, within a limit; writes are queued,
bounded in number and in bytes, and go out together a moment later. What does not fit into the queue is left out. Any
failure is a miss; when the file cannot be used at all, the tier switches itself off and says so once.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from capstan.rpc.cache.bloom import BloomFilter
from capstan.rpc.cache.database import AnswerFile

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MEBIBYTE = 1024 * 1024


class PersistentLimits(msgspec.Struct, frozen=True):
    """The bounds of the file, the queue and the waits."""

    max_bytes: int = 1024 * _MEBIBYTE
    max_value_bytes: int = 8 * _MEBIBYTE
    max_queued_bytes: int = 16 * _MEBIBYTE
    max_queued: int = 4096
    write_every_seconds: float = 0.5
    # A file that is slower than a node is no use.
    read_seconds: float = 0.25
    filter_bits: int = 8 * _MEBIBYTE


def digest_of(key: bytes) -> bytes:
    """What stands for a key in the file: short, and different for different keys as far as anybody can tell."""
    return blake2b(key, digest_size=24).digest()


class PersistentTier:
    """Answers in a file. Must be opened before use and closed after it."""

    def __init__(self, path: Path, limits: PersistentLimits | None = None) -> None:
        self._limits = limits or PersistentLimits()
        self._file = AnswerFile(path, self._limits.max_bytes)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rpc-cache")
        self._filter = BloomFilter(self._limits.filter_bits)
        self._queue: dict[bytes, bytes] = {}
        self._queued_bytes = 0
        self._used: set[bytes] = set()
        self._writer: asyncio.Task[None] | None = None
        self._usable = False
        self._left_out = 0
        self._warned = False

    @property
    def left_out(self) -> int:
        """How many answers did not fit into the queue."""
        return self._left_out

    async def open(self) -> None:
        """Open the file, or begin a new one where it is damaged."""
        self._usable = await self._in_thread(self._fill_filter) is True

    def may_have(self, key: bytes) -> bool:
        """Whether asking is worth it."""
        return self._usable and digest_of(key) in self._filter

    async def get(self, key: bytes) -> bytes | None:
        """The answer, or None."""
        digest = digest_of(key)
        queued = self._queue.get(digest)
        if queued is not None or not self._usable:
            return queued
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                value = await self._in_thread(lambda: self._file.get(digest))
        except TimeoutError:
            return None
        if value is not None and len(self._used) < self._limits.max_queued:
            self._used.add(digest)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Keep an answer, soon."""
        limits = self._limits
        if not self._usable or len(value) > limits.max_value_bytes:
            return
        digest = digest_of(key)
        if digest in self._queue:
            return
        if len(self._queue) >= limits.max_queued or self._queued_bytes + len(value) > limits.max_queued_bytes:
            self._left_out += 1
            return
        self._queue[digest] = value
        self._queued_bytes += len(value)
        self._filter.add(digest)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_soon())

    async def flush(self) -> None:
        """Write what is queued now."""
        if not self._usable:
            return
        answers, used = list(self._queue.items()), self._used
        self._used = set()
        await self._in_thread(lambda: self._file.write(answers, used))
        # Only now: until it is in the file, an answer is read from the queue.
        for digest, value in answers:
            if self._queue.pop(digest, None) is not None:
                self._queued_bytes -= len(value)

    async def close(self) -> None:
        """Write what is queued and close the file."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self.flush()
        self._usable = False
        await self._in_thread(self._file.close)
        self._thread.shutdown(wait=False)

    async def _write_soon(self) -> None:
        while self._queue:
            await asyncio.sleep(self._limits.write_every_seconds)
            await self.flush()

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.OperationalError as error:
            if not self._warned:
                log.warning("rpc_cache.file_busy", error=str(error), consequence="some answers are not kept")
            self._warned = True
        except (sqlite3.Error, OSError) as error:
            log.warning("rpc_cache.file_unusable", error=str(error), consequence="nothing is kept on disk")
            self._usable = False
        return None

    def _fill_filter(self) -> bool:
        for digest in self._file.open():
            self._filter.add(digest)
        return True
