"""Builds what watches the chains for webhooks: one durable stream, one tracer and one mempool watcher per network.

Part of the composition root, used by `notifications`. It names concrete classes and connects them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import structlog

from capstan.catalogue.networks import Network as Facts
from capstan.chain.errors import ChainError
from capstan.chain.follower.models import PendingTransaction
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import UpstreamError, UpstreamTimeout
from capstan.core.hexes import parse_address
from capstan.core.ids import new_id
from capstan.gateway import Gateway
from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.stream.durable import DurableOptions
from capstan.stream.lease import LeaseStore
from capstan.stream.models import DurableConsumer
from capstan.stream.streams import DurableStreams
from capstan.webhooks.consumer import WebhookConsumer
from capstan.webhooks.delivery.lookups import KnownTokens
from capstan.webhooks.lookbacks import ROLE, Lookbacks, LookUnavailable, Mined
from capstan.webhooks.matching import ChainTransaction, Matcher, MinedReceipt
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.payloads import Place
from capstan.webhooks.pending import PendingWatcher
from capstan.webhooks.steps import StepTrace, call_of
from capstan.webhooks.subscriptions import Subscriptions
from capstan.webhooks.traces import InternalTransfers, TracedTransaction, TraceUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Created(msgspec.Struct, rename="camel"):
    contract_address: str | None = None


class _FullBlock(msgspec.Struct):
    transactions: tuple[ChainTransaction, ...]


class _Placed(MinedReceipt, frozen=True, rename="camel", kw_only=True):
    block_number: str
    block_hash: str
    transaction_index: str


_TRACED = msgspec.json.Decoder(tuple[TracedTransaction, ...])
_BLOCK = msgspec.json.Decoder(_FullBlock)
_RECEIPT = msgspec.json.Decoder(_Created)
_PLACE = msgspec.json.Decoder(_Placed | None)
_TRANSACTION = msgspec.json.Decoder(ChainTransaction | None)
_STEPS = msgspec.json.Decoder(StepTrace)
_HASH_CHARACTERS = 66
_TRACE_SECONDS = 60.0
_LOOK_SECONDS = 1.0


class NetworkWatchers:
    """Watches the networks on which there are webhooks; of one without any, no block is fetched."""

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        *,
        facts: Callable[[str], Facts],
        known: KnownTokens,
    ) -> None:
        self.written: Callable[[], None] = lambda: None
        self._database = database
        self._gateway = gateway
        self._clock = clock
        self._facts = facts
        self._known = known
        self._starts: dict[str, int | None] = {}
        self._others: dict[str, tuple[InternalTransfers, PendingWatcher, Lookbacks]] = {}
        self._task: asyncio.Task[None] | None = None
        self._streams = DurableStreams(
            gateway.followers,
            database,
            LeaseStore(database, new_id("proc"), clock),
            self._consumers,
            clock,
            options_of=lambda network: DurableOptions(role=ROLE, start=self._starts.get(network), start_anew=0),
            metrics=gateway.stream_metrics,
        )

    async def start(self, networks: Callable[[], Awaitable[Mapping[str, int | None]]]) -> None:
        """Watch the networks on which there are webhooks, also of those that other processes create."""
        self._follow(await networks())
        self._task = asyncio.create_task(self._look(networks), name="networks of webhooks")

    def follow_from_now(self, network: str) -> int | None:
        """There will be a webhook on this network: no block after this moment is missed. The first one, if known."""
        first = self.next_block(network)
        self._follow({network: first})
        return first

    def next_block(self, network: str) -> int | None:
        """The first block that a webhook made now must not miss, where another process follows the network."""
        try:
            head = self._gateway.heads.tracker(network).number
        except KeyError:
            return None
        return None if head is None else head + 1

    def _follow(self, networks: Mapping[str, int | None]) -> None:
        if not networks.keys() <= self._starts.keys():
            self._starts = {**networks, **self._starts}
            self.sync()

    async def _look(self, networks: Callable[[], Awaitable[Mapping[str, int | None]]]) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._follow(await networks())
            except StorageError as error:
                log.warning("webhooks.storage_unavailable", reason=str(error))

    def sync(self) -> None:
        """Take over the networks that are served now."""
        self._streams.sync(self._starts)
        for network in self._starts:
            if network not in self._others and self._gateway.followers.find(network) is not None:
                self._begin_others(network)

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._streams.close()
        for others in self._others.values():
            await asyncio.gather(*(each.close() for each in others))

    def _consumers(self, network: str) -> list[DurableConsumer]:
        place, facts = self._place(network), self._facts(network)
        subscriptions = Subscriptions(network)
        wrapped = frozenset({parse_address(facts.wrapped_native)} if facts.wrapped_native else ())
        matcher = Matcher(
            place,
            subscriptions,
            wrapped=wrapped,
            known_token=lambda contract: self._known.get(network, contract),
        )
        outbox = self._outbox(place)

        def forgotten() -> None:
            self._known.forget(network)

        return [
            WebhookConsumer(network, subscriptions, matcher, outbox, written=lambda: self.written(), reset=forgotten)
        ]

    def _begin_others(self, network: str) -> None:
        place = self._place(network)
        outbox, database = self._outbox(place), self._database

        async def trace(block_hash: str) -> tuple[TracedTransaction, ...]:
            return await trace_block(self._gateway.registry.get(*network.split("/", 1)), block_hash)

        async def find(tx_hash: str) -> Mined | None:
            return await find_mined(self._gateway.registry.get(*network.split("/", 1)), tx_hash)

        def subscribe(consumer: Callable[[PendingTransaction], None]) -> Callable[[], None]:
            return self._gateway.followers.get(network).subscribe_pending(consumer, True)

        internal = InternalTransfers(
            place, database, Subscriptions(network), outbox, trace, written=lambda: self.written()
        )
        pending = PendingWatcher(
            database,
            Subscriptions(network),
            outbox,
            self._clock,
            subscribe=subscribe,
            written=lambda: self.written(),
        )
        lookbacks = Lookbacks(network, database, Subscriptions(network), outbox, find, written=lambda: self.written())
        self._others[network] = (internal, pending, lookbacks)
        for each in self._others[network]:
            each.start()

    def _outbox(self, place: Place) -> Outbox:
        return Outbox(place, self._clock, is_sqlite=self._database.is_sqlite)

    def _place(self, network: str) -> Place:
        facts = self._facts(network)
        return Place(network, facts.chain, facts.chain_id, facts.native_symbol, facts.native_decimals)


async def find_mined(network: Network, tx_hash: str) -> Mined | None:
    """Where a transaction is, if it is in a block. Raises `LookUnavailable`."""
    try:
        place = await _asked(network, "eth_getTransactionReceipt", (tx_hash,), _PLACE)
        transaction = await _asked(network, "eth_getTransactionByHash", (tx_hash,), _TRANSACTION) if place else None
    except TraceUnavailable as error:
        raise LookUnavailable(str(error)) from None
    if place is None or transaction is None:
        return None
    number, index = int(place.block_number, 16), int(place.transaction_index, 16)
    return Mined(number, place.block_hash, index, transaction, place)


async def trace_block(network: Network, block: str) -> tuple[TracedTransaction, ...]:
    """The calls of a block, named by its hash or by a tag. Raises `TraceUnavailable`."""
    if network.spec.dev_methods:
        return await _trace_steps(network, block)
    return await _asked(network, _by("debug_traceBlock", block), (block, {"tracer": "callTracer"}), _TRACED)


async def _trace_steps(network: Network, block: str) -> tuple[TracedTransaction, ...]:
    """The same for development chains, which know no callTracer: from the steps of each transaction."""
    found = await _asked(network, _by("eth_getBlock", block), (block, True), _BLOCK)
    traced = []
    for each in found.transactions:
        created = None
        if each.to is None:
            created = (await _asked(network, "eth_getTransactionReceipt", (each.hash,), _RECEIPT)).contract_address
        options = {"disableMemory": True, "disableStorage": True}
        steps = await _asked(network, "debug_traceTransaction", (each.hash, options), _STEPS)
        traced.append(TracedTransaction(each.hash, call_of(each.sender, each.to, created, each.value, steps)))
    return tuple(traced)


def _by(method: str, block: str) -> str:
    return f"{method}ByHash" if len(block) == _HASH_CHARACTERS else f"{method}ByNumber"


async def _asked(network: Network, method: str, params: Any, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(await network.pool.call(method, msgspec.json.encode(params), timeout=_TRACE_SECONDS))
    except (ChainError, UpstreamError, UpstreamTimeout) as error:
        raise TraceUnavailable(str(error)[:200]) from None
    except msgspec.MsgspecError:
        raise TraceUnavailable(f"the answer to {method} is not what it should be") from None
