"""Answers kept in the process: bounded by bytes and by number, the least recently used leave first.

Called by `gateway`, synchronously. One object for all networks, so that one budget holds for all; the network is part
of the key. Entries that depend on a block or on the head are also listed there, so that a change of the chain costs
time for what it drops and for nothing else. It knows nothing of methods and does not decide what is kept.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from capstan.core.clock import Clock
from capstan.rpc.cache.models import Binding, Life, Question

MEBIBYTE: Final = 1024 * 1024
# What an entry costs beside its key and its answer, when it is alone in its block: measured with tracemalloc.
ENTRY_OVERHEAD: Final = 760
# Bound once, for every call compares with them: in Python 3.11 to look up a member of an enum costs as much as a call.
_HEAD: Final = Life.HEAD
_MOMENT: Final = Life.MOMENT


class MemoryLimits(msgspec.Struct, frozen=True):
    """The bounds of the memory cache."""

    max_bytes: int = 128 * MEBIBYTE
    max_entries: int = 500_000
    # One answer may not take the place of all others.
    max_entry_bytes: int = 8 * MEBIBYTE


class MemoryStatistics(msgspec.Struct, frozen=True):
    """Where the cache stands, for metrics."""

    entries: int
    bytes: int
    evicted: int
    dropped: int


class _Groups:
    """The keys of one network's entries by what ends them."""

    __slots__ = ("blocks", "head", "lasting")

    def __init__(self) -> None:
        self.head: dict[bytes, None] = {}
        self.blocks: dict[int, dict[bytes, None]] = {}
        # Entries that no change of the chain ends.
        self.lasting: dict[bytes, None] = {}

    def add(self, key: bytes, binding: Binding) -> None:
        """List an entry."""
        if binding.life is _HEAD or binding.life is _MOMENT:
            self.head[key] = None
        elif binding.number is None:
            self.lasting[key] = None
        elif binding.number in self.blocks:
            self.blocks[binding.number][key] = None
        else:
            self.blocks[binding.number] = {key: None}

    def discard(self, key: bytes, binding: Binding) -> None:
        """Take an entry off its list."""
        if binding.life is _HEAD or binding.life is _MOMENT:
            del self.head[key]
        elif binding.number is None:
            del self.lasting[key]
        else:
            block = self.blocks[binding.number]
            del block[key]
            if not block:
                del self.blocks[binding.number]


class Entry(msgspec.Struct, gc=False, eq=False):
    """One answer. Nothing it refers to refers back to it, so the collector of cycles need not look at it."""

    result: bytes
    size: int
    until: float | None
    groups: _Groups
    binding: Binding
    # What was asked, so that whoever asks it again in the same words need not be understood again.
    question: Question | None


class MemoryCache:
    """Answers by key. Not for use from several threads."""

    def __init__(self, clock: Clock, limits: MemoryLimits | None = None) -> None:
        self._limits = limits or MemoryLimits()
        self._most_entry_bytes = min(self._limits.max_entry_bytes, self._limits.max_bytes)
        self._monotonic = clock.monotonic
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        # What is kept under a key, whether it still holds or not. For those who look before they ask.
        self.entry = self._entries.get
        # What is kept under this key was used.
        self.touch = self._entries.move_to_end
        self._groups: dict[str, _Groups] = {}
        self._bytes = 0
        self._evicted = 0
        self._dropped = 0

    def get(self, key: bytes) -> bytes | None:
        """The answer, if there is one that still holds."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until is not None and entry.until <= self._monotonic():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry.result

    def put(
        self,
        network: str,
        key: bytes,
        result: bytes,
        binding: Binding,
        seconds: float | None = None,
        question: Question | None = None,
    ) -> bool:
        """Keep an answer, at most for `seconds`. False when it is too large to be kept."""
        size = len(key) + len(result) + ENTRY_OVERHEAD
        entries, limits = self._entries, self._limits
        if key in entries:
            self._remove(key)
        if size > self._most_entry_bytes:
            return False
        groups = self._groups.get(network)
        if groups is None:
            groups = self._groups[network] = _Groups()
        if binding.life is _HEAD:
            groups.head[key] = None
        else:
            groups.add(key, binding)
        until = None if seconds is None else self._monotonic() + seconds
        entries[key] = Entry(result, size, until, groups, binding, question)
        self._bytes += size
        while self._bytes > limits.max_bytes or len(entries) > limits.max_entries:
            self._evict()
        return True

    def drop_head(self, network: str) -> None:
        """Drop what held until the next head."""
        groups = self._groups.get(network)
        if groups is not None:
            self._drop_all(groups.head)

    def drop_block(self, network: str, number: int) -> None:
        """Drop what depends on the block of that number."""
        groups = self._groups.get(network)
        group = None if groups is None else groups.blocks.pop(number, None)
        if group is not None:
            self._drop_all(group)

    def drop_network(self, network: str) -> None:
        """Drop everything about a network."""
        groups = self._groups.pop(network, None)
        if groups is not None:
            for group in (groups.head, groups.lasting, *groups.blocks.values()):
                self._drop_all(group)

    @property
    def statistics(self) -> MemoryStatistics:
        """Where the cache stands."""
        return MemoryStatistics(len(self._entries), self._bytes, self._evicted, self._dropped)

    def _drop_all(self, group: dict[bytes, None]) -> None:
        for key in group:
            self._bytes -= self._entries.pop(key).size
        self._dropped += len(group)
        group.clear()

    def _remove(self, key: bytes) -> None:
        self._forget(key, self._entries.pop(key))

    def _evict(self) -> None:
        key, entry = self._entries.popitem(last=False)
        self._forget(key, entry)
        self._evicted += 1

    def _forget(self, key: bytes, entry: Entry) -> None:
        self._bytes -= entry.size
        entry.groups.discard(key, entry.binding)
