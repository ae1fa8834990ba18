"""Transactions that are not in a block yet, from every upstream of a network that tells of them, each told once.

Part of a follower, and at work only while somebody has subscribed. Upstreams over WebSocket are subscribed to, with
whole transactions where they offer that. Without any, one upstream is polled: by a filter, or by its pending block
where it has no filters. What an upstream tells is its own mempool: nobody can promise that every transaction is seen.
Memory and questions are bounded; when more transactions come than can be asked for, some are told without content.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import ChainError, NodeError
from capstan.chain.follower.models import PendingTransaction
from capstan.chain.heads.listening import Subscribable
from capstan.chain.member import PooledUpstream
from capstan.chain.pool import UpstreamPool
from capstan.core.errors import UpstreamError, UpstreamTimeout

log = structlog.get_logger(__name__)

Consumer: TypeAlias = Callable[[PendingTransaction], None]
T = TypeVar("T")


class PendingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of watching mempools. The defaults suit every network."""

    # Hashes remembered, so that a transaction is told once.
    remembered: int = 65_536
    # Between two questions to an upstream that is polled.
    poll_seconds: float = 0.5
    call_timeout: float = 5.0
    # Transactions whose content is asked for at the same time, and those that wait for that.
    fetch_width: int = 8
    fetch_queue: int = 2_048
    # The upstreams are looked over so often: they may have been configured anew.
    look_seconds: float = 1.0
    first_pause: float = 0.5
    longest_pause: float = 30.0


class Sharing(Protocol):
    """Pending transactions that one process watches for several."""

    @property
    def led(self) -> bool:
        """Whether another process watches and tells of them."""
        ...

    @property
    def colleagues_want_full(self) -> bool:
        """Whether this process watches for others, some of whom want whole transactions."""
        ...

    def start(self) -> None:
        """Somebody in this process wants them."""
        ...

    async def close(self) -> None:
        """Nobody does any more."""
        ...

    def tell(self, transaction: PendingTransaction, *, full: bool) -> None:
        """This process has seen a transaction."""
        ...


class _Hashed(msgspec.Struct):
    hash: str


class _PendingBlock(msgspec.Struct):
    transactions: tuple[Raw, ...] = ()


_TOLD: msgspec.json.Decoder[str | _Hashed] = msgspec.json.Decoder(str | _Hashed)
_CHANGES = msgspec.json.Decoder(tuple[Raw, ...])
_BLOCK: msgspec.json.Decoder[_PendingBlock | None] = msgspec.json.Decoder(_PendingBlock | None)


class PendingTransactions:
    """The mempools of one network as one."""

    def __init__(self, network: str, pool: Callable[[], UpstreamPool], options: PendingOptions | None = None) -> None:
        # Set before anybody subscribes where several processes share one watch. Called whenever watching begins.
        self.sharing: Callable[[], Sharing | None] = lambda: None
        self._shared: Sharing | None = None
        self._network = network
        self._pool = pool
        self._options = options or PendingOptions()
        self._consumers: dict[object, tuple[Consumer, bool]] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._wanted: asyncio.Queue[str] = asyncio.Queue(self._options.fetch_queue)
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        # Upstreams that offer hashes alone.
        self._hashes_only: set[str] = set()

    @property
    def wants_full(self) -> bool:
        """Whether somebody in this process wants whole transactions."""
        return any(full for _, full in self._consumers.values())

    @property
    def full(self) -> bool:
        """Whether somebody wants whole transactions, here or in a process that this one watches for."""
        return self.wants_full or (self._shared is not None and self._shared.colleagues_want_full)

    def subscribe(self, consumer: Consumer, full: bool) -> Callable[[], None]:
        """Call back for every transaction from now on. Returns the way to end that. The consumer must not wait."""
        key = object()
        self._consumers[key] = (consumer, full)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"pending transactions of {self._network}")

        def unsubscribe() -> None:
            self._consumers.pop(key, None)
            if not self._consumers:
                self._stop()

        return unsubscribe

    def told(self, transaction: PendingTransaction, *, full: bool) -> None:
        """Another process has seen this transaction."""
        if self._consumers and self._is_new(transaction.hash, full=full):
            self._tell(transaction, full=full, told=True)

    async def close(self) -> None:
        """Stop."""
        self._consumers.clear()
        self._stop()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._seen.clear()

    async def _run(self) -> None:
        """Watch, or let another process watch."""
        shared = self._shared = self.sharing()
        if shared is not None:
            shared.start()
        try:
            await self._watch_all()
        finally:
            if shared is not None:
                await shared.close()

    async def _watch_all(self) -> None:
        """Keep one task for each source, and some that fetch contents."""
        sources: dict[tuple[str, bool], asyncio.Task[None]] = {}
        fetchers = [asyncio.create_task(self._fetch()) for _ in range(self._options.fetch_width)]
        try:
            while True:
                wanted = self._sources()
                for key in [key for key in sources if key not in wanted or sources[key].done()]:
                    sources.pop(key).cancel()
                for key, member in wanted.items():
                    if key not in sources:
                        sources[key] = asyncio.create_task(self._watch(member), name=f"pending at {key[0]}")
                await asyncio.sleep(self._options.look_seconds)
        finally:
            tasks = [*sources.values(), *fetchers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _sources(self) -> dict[tuple[str, bool], PooledUpstream | None]:
        """The upstreams to subscribe to, by name; without any, the one source that polls. None when others watch."""
        if self._shared is not None and self._shared.led:
            return {}
        full = self.full
        members = [member for member in self._pool().members if isinstance(member.upstream, Subscribable)]
        return {(member.name, full): member for member in members} if members else {("", full): None}

    async def _watch(self, member: PooledUpstream | None) -> None:
        failures = 0
        while True:
            try:
                if member is None:
                    await self._poll()
                else:
                    await self._listen(member)
                failures = 0
            except (ChainError, UpstreamError, UpstreamTimeout) as error:
                failures += 1
                name = "" if member is None else member.name
                log.info("pending.not_told", network=self._network, upstream=name, reason=str(error))
            pause = min(self._options.first_pause * 2 ** min(failures, 10), self._options.longest_pause)
            await asyncio.sleep(pause)

    # --- from an upstream that tells by itself

    async def _listen(self, member: PooledUpstream) -> None:
        """Until the connection ends."""
        upstream = member.upstream
        assert isinstance(upstream, Subscribable)
        whole = self.full and member.name not in self._hashes_only
        params = b'["newPendingTransactions",true]' if whole else b'["newPendingTransactions"]'
        try:
            subscription = await upstream.subscribe(
                "eth_subscribe",
                params,
                self._told,
                unsubscribe="eth_unsubscribe",
                timeout=self._options.call_timeout,
            )
        except NodeError:
            if not whole:
                raise
            self._hashes_only.add(member.name)
            return
        try:
            await subscription.wait_lost()
        finally:
            await subscription.close()

    # --- from one that must be asked

    async def _poll(self) -> None:
        """Ask the first upstream that answers, until it fails."""
        error: ChainError | None = None
        for member in self._pool().members:
            if not member.in_rotation:
                continue
            try:
                await self._poll_member(member)
            except ChainError as problem:
                error = problem
        if error is not None:
            raise error

    async def _poll_member(self, member: PooledUpstream) -> None:
        timeout = self._options.call_timeout
        try:
            filter_id = bytes(await member.call("eth_newPendingTransactionFilter", b"[]", timeout=timeout))
        except NodeError:
            await self._poll_block(member)
            return
        try:
            while True:
                raw = await member.call("eth_getFilterChanges", b"[" + filter_id + b"]", timeout=timeout)
                for item in _decoded(_CHANGES, raw) or ():
                    self._told(item)
                await asyncio.sleep(self._options.poll_seconds)
        finally:
            end = member.call("eth_uninstallFilter", b"[" + filter_id + b"]", timeout=1.0, repeatable=False)
            await asyncio.gather(end, return_exceptions=True)

    async def _poll_block(self, member: PooledUpstream) -> None:
        while True:
            raw = await member.call("eth_getBlockByNumber", b'["pending",true]', timeout=self._options.call_timeout)
            block = _decoded(_BLOCK, raw)
            for item in block.transactions if block is not None else ():
                self._told(item)
            await asyncio.sleep(self._options.poll_seconds)

    # --- telling

    def _told(self, raw: Raw) -> None:
        """An upstream tells of a transaction: its hash, or all of it."""
        told = _decoded(_TOLD, raw)
        if told is None:
            return
        transaction_hash = (told if isinstance(told, str) else told.hash).lower()
        if not self._is_new(transaction_hash, full=False):
            return
        transaction = None if isinstance(told, str) else raw
        self._tell(PendingTransaction(transaction_hash, transaction), full=False)
        if transaction is not None or not self.full:
            self._tell(PendingTransaction(transaction_hash, transaction), full=True)
            return
        try:
            self._wanted.put_nowait(transaction_hash)
        except asyncio.QueueFull:
            self._tell(PendingTransaction(transaction_hash, None), full=True)

    def _is_new(self, transaction_hash: str, *, full: bool) -> bool:
        """Whether this was not told yet, as a hash or as a whole; from now on it was."""
        key = transaction_hash + "+" if full else transaction_hash
        if key in self._seen:
            return False
        self._seen[key] = None
        while len(self._seen) > self._options.remembered:
            self._seen.popitem(last=False)
        return True

    async def _fetch(self) -> None:
        while True:
            transaction_hash = await self._wanted.get()
            raw: Raw | None = None
            try:
                raw = await self._pool().call(
                    "eth_getTransactionByHash",
                    msgspec.json.encode((transaction_hash,)),
                    timeout=self._options.call_timeout,
                )
            except (ChainError, UpstreamError, UpstreamTimeout) as error:
                log.debug("pending.no_content", network=self._network, reason=str(error))
            known = raw is not None and bytes(raw) != b"null"
            self._tell(PendingTransaction(transaction_hash, raw if known else None), full=True)

    def _tell(self, transaction: PendingTransaction, *, full: bool, told: bool = False) -> None:
        if self._shared is not None and not told:
            if full and not self._is_new(transaction.hash, full=True):
                return
            self._shared.tell(transaction, full=full)
        for consumer, wants_full in tuple(self._consumers.values()):
            if wants_full is not full:
                continue
            try:
                consumer(transaction)
            except Exception:
                log.exception("pending.consumer_failed", network=self._network)


def _decoded(decoder: msgspec.json.Decoder[T], raw: Raw) -> T | None:
    """What an upstream says, or None when it is something else."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
