"""eth_getLogs over a range of blocks: parts that are final are kept and reused, what a node refuses is split.

Called by the RPC service in place of the plain upstream call. A range is asked in one call whenever the node takes it;
nothing is split to fill the cache. What comes back is cut into aligned chunks of final blocks, and a later query with
the same filter asks only for the blocks between the chunks it finds. A range or size error halves the part it concerns,
and the range the node does take is remembered for a while. Answers are joined as bytes. Every other error of the node
goes to the caller as it is.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeError, is_log_count_error, is_log_range_error
from capstan.core.clock import Clock
from capstan.core.jsonrpc import INVALID_PARAMS, ErrorObject
from capstan.rpc.blocks import LogRange, range_advice_from_node
from capstan.rpc.cache.logquery import LogQuery, by_chunk, inner, read_query, within
from capstan.rpc.cache.models import HeadView
from capstan.rpc.cache.policy import LOG_CHUNK_BLOCKS

# Asks a node; the argument is the params of eth_getLogs.
AskNode: TypeAlias = Callable[[bytes], Awaitable[Raw]]

_TIER_READS_AT_ONCE = 32


class ChunkStore(Protocol):
    """Where final chunks are kept; `RpcCache` is one."""

    def reverts(self, network: str) -> int: ...

    def peek_final(self, key: bytes) -> bytes | None: ...

    async def load_final(self, network: str, key: bytes, last_block: int | None) -> bytes | None: ...

    def keep_final(self, network: str, key: bytes, result: bytes, last_block: int | None, since: int) -> None: ...


class LogSettings(msgspec.Struct, frozen=True):
    """How wide ranges are handled."""

    chunk_blocks: int = LOG_CHUNK_BLOCKS
    # The most blocks in one call while the node has not named a limit of its own.
    span_blocks: int = 10_000
    concurrency: int = 4
    # Upstream calls for one request; a range that needs more is refused in the node's words.
    max_calls: int = 128
    # How often a part is asked for when every upstream failed.
    attempts: int = 2
    # Chunks looked up for one request.
    max_chunks: int = 2_000
    # For how long a range that a node refused is not tried again.
    memory_seconds: float = 600.0
    # All parts together. Beyond it the caller is told to ask for fewer blocks.
    max_answer_bytes: int = 64 * 1024 * 1024
    # A longer answer is not cut into chunks: that would hold up everybody else.
    max_cut_bytes: int = 4 * 1024 * 1024


class LogAnswer(msgspec.Struct, frozen=True):
    """The logs as a JSON array, and how many upstream calls they took: none means that all came from the cache."""

    result: Raw
    calls: int


class LogReader:
    """Answers eth_getLogs for any network."""

    def __init__(self, store: ChunkStore, clock: Clock, settings: LogSettings | None = None) -> None:
        self.store = store
        self.settings = settings or LogSettings()
        self._clock = clock
        # The widest range a network's node takes, and until when we believe it.
        self._limits: dict[str, tuple[int, float]] = {}

    async def get_logs(self, network: str, params: bytes, heads: HeadView, ask: AskNode) -> LogAnswer:
        """The logs that `params` ask for. Failures of `ask` are raised, of several the first."""
        query = read_query(params, heads)
        if query is None:
            return LogAnswer(await ask(params), 1)
        run = _Run(self, network, query, params, ask)
        await run.collect(-1 if heads.finalized_number is None else heads.finalized_number)
        return run.answer()

    def limit(self, network: str) -> int:
        """The most blocks to ask for in one call."""
        learned, until = self._limits.get(network, (0, 0.0))
        return learned if learned and self._clock.monotonic() < until else self.settings.span_blocks

    def learn(self, network: str, blocks: int) -> None:
        """Remember that a network's node takes no more than this many blocks."""
        blocks = max(1, min(blocks, self.limit(network)))
        self._limits[network] = (blocks, self._clock.monotonic() + self.settings.memory_seconds)


class _Part(msgspec.Struct):
    """The logs of some consecutive blocks, as a JSON array."""

    last: int
    logs: bytes | Raw


class _Growing(msgspec.Struct):
    """A chunk of which some blocks have arrived: how many, and their logs by first block, without brackets."""

    blocks: int
    pieces: dict[int, bytes]


class _Run:
    """One request: the parts that are there, and those being asked for."""

    def __init__(self, reader: LogReader, network: str, query: LogQuery, params: bytes, ask: AskNode) -> None:
        self._reader = reader
        self._store = reader.store
        self._settings = reader.settings
        self._size = reader.settings.chunk_blocks
        self._network = network
        self._query = query
        self._params = params
        self._ask = ask
        self._since = reader.store.reverts(network)
        self._places = asyncio.Semaphore(reader.settings.concurrency)
        self._parts: dict[int, _Part] = {}
        self._growing: dict[int, _Growing] = {}
        # Chunks of final blocks that the range touches.
        self._chunks = range(0)
        self._planned = 0
        self._calls = 0
        self._bytes = 0

    async def collect(self, finalized: int) -> None:
        """Find what is kept and ask for the rest."""
        first, last = self._query.first, self._query.last
        chunks = range(first // self._size, min(last // self._size + 1, (finalized + 1) // self._size))
        if len(chunks) <= self._settings.max_chunks:
            self._chunks = chunks
            await self._find_kept()
        spans = list(self._missing())
        if len(spans) > self._settings.max_calls:
            # Too much for us. If the node does not take it either, its words are the answer.
            self._parts.clear()
            spans = [(first, last)]
        self._planned = len(spans)
        try:
            async with asyncio.TaskGroup() as group:
                for span in spans:
                    group.create_task(self._fetch(group, *span))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def answer(self) -> LogAnswer:
        """All parts, joined."""
        parts = [self._parts[first].logs for first in sorted(self._parts)]
        if len(parts) == 1:
            return LogAnswer(Raw(parts[0]), self._calls)
        try:
            pieces = [inner(logs) for logs in parts]
        except ValueError:
            message = f"An upstream of {self._network} answered eth_getLogs with something else."
            raise EveryUpstreamFailed(message) from None
        return LogAnswer(Raw(b"[" + b",".join(piece for piece in pieces if piece) + b"]"), self._calls)

    async def _find_kept(self) -> None:
        absent: list[int] = []
        for chunk in self._chunks:
            logs = self._store.peek_final(self._key(chunk))
            if logs is None:
                absent.append(chunk)
            else:
                self._use(chunk, logs)
        for begin in range(0, len(absent), _TIER_READS_AT_ONCE):
            some = absent[begin : begin + _TIER_READS_AT_ONCE]
            found = await asyncio.gather(*(self._load(chunk) for chunk in some))
            for chunk, logs in zip(some, found, strict=True):
                if logs is not None:
                    self._use(chunk, logs)

    async def _load(self, chunk: int) -> bytes | None:
        return await self._store.load_final(self._network, self._key(chunk), self._last_of(chunk))

    def _last_of(self, chunk: int) -> int:
        return chunk * self._size + self._size - 1

    def _use(self, chunk: int, logs: bytes) -> None:
        """Take a kept chunk, or the part of it that is in the range."""
        begin, end = chunk * self._size, self._last_of(chunk)
        first, last = max(begin, self._query.first), min(end, self._query.last)
        if (first, last) != (begin, end):
            logs = within(logs, first, last)
        self._parts[first] = _Part(last, logs)

    def _missing(self) -> Iterator[tuple[int, int]]:
        """The ranges between the parts that are there, cut to what a node takes."""
        limit = self._reader.limit(self._network)
        begin = self._query.first
        for first in sorted(self._parts):
            yield from self._cut(begin, first - 1, limit)
            begin = self._parts[first].last + 1
        yield from self._cut(begin, self._query.last, limit)

    def _cut(self, first: int, last: int, limit: int) -> Iterator[tuple[int, int]]:
        while first <= last:
            end = min(last, first + limit - 1)
            aligned = (end + 1) // self._size * self._size - 1
            if first <= aligned and end < last:
                end = aligned
            yield first, end
            first = end + 1

    async def _fetch(self, group: asyncio.TaskGroup, first: int, last: int) -> None:
        async with self._places:
            try:
                logs = await self._ask_repeatedly(first, last)
            except NodeError as error:
                if not is_log_range_error(error) or first == last:
                    raise
                spans = self._split(error, first, last)
            else:
                spans = []
                self._parts[first] = _Part(last, logs)
                self._keep(first, last, logs)
                self._bytes += len(memoryview(logs))
        if self._bytes > self._settings.max_answer_bytes:
            raise _too_large(self._settings.max_answer_bytes)
        for span in spans:
            group.create_task(self._fetch(group, *span))

    async def _ask_repeatedly(self, first: int, last: int) -> Raw:
        """One part. Where it is one of several, a failure is not worth losing the others for."""
        whole = (first, last) == (self._query.first, self._query.last)
        params = self._params if whole else self._query.params(first, last)
        attempts = 1 if whole else self._settings.attempts
        for _ in range(attempts - 1):
            self._calls += 1
            try:
                return await self._ask(params)
            except EveryUpstreamFailed:
                continue
        self._calls += 1
        return await self._ask(params)

    def _split(self, error: NodeError, first: int, last: int) -> list[tuple[int, int]]:
        """Narrower spans in place of one that the node refused. Raises `error` where that would be too many."""
        blocks = last - first + 1
        limit = (blocks + 1) // 2
        if not is_log_count_error(error):
            advised = range_advice_from_node(error, LogRange(first, last))["maxRange"]
            limit = advised if isinstance(advised, int) else limit
            self._reader.learn(self._network, limit)
        spans = list(self._cut(first, last, limit))
        self._planned += len(spans)
        if self._planned > self._settings.max_calls:
            raise error
        return spans

    def _keep(self, first: int, last: int, logs: Raw) -> None:
        """Give the logs to the chunks they belong to, and keep the chunks that are complete by that."""
        touched = range(max(self._chunks.start, first // self._size), min(self._chunks.stop, last // self._size + 1))
        if not touched or len(memoryview(logs)) > self._settings.max_cut_bytes:
            return
        try:
            # At the end of the range the node may be ahead of us, and `latest` a later block than we know.
            pieces = by_chunk(logs, first, sys.maxsize if last == self._query.last else last, self._size)
        except ValueError:
            # Not what logs look like. The caller gets it as it is; nobody else shall.
            return
        for chunk in touched:
            begin = max(first, chunk * self._size)
            end = min(last, self._last_of(chunk))
            growing = self._growing.setdefault(chunk, _Growing(0, {}))
            growing.blocks += end - begin + 1
            growing.pieces[begin] = pieces.get(chunk, b"")
            if growing.blocks == self._size:
                text = b",".join(growing.pieces[place] for place in sorted(growing.pieces) if growing.pieces[place])
                logs_of_chunk = b"[" + text + b"]"
                self._store.keep_final(
                    self._network, self._key(chunk), logs_of_chunk, self._last_of(chunk), self._since
                )

    def _key(self, chunk: int) -> bytes:
        place = b"%d/%d" % (chunk, self._size)
        return b"\x00".join((self._network.encode(), b"logs", place, self._query.filter_key))


def _too_large(limit: int) -> NodeError:
    """An error in the form of those that nodes give for too many logs, so that it is treated like them."""
    error = ErrorObject(INVALID_PARAMS, f"response size exceeds {limit} bytes; ask for fewer blocks")
    return NodeError(error, Raw(msgspec.json.encode({"code": error.code, "message": error.message})))
