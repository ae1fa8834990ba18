"""Builds what watches the chains for webhooks: one durable stream, one tracer and one mempool watcher per network.

Part of the composition root, used by `notifications`. It names concrete classes and connects them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
from capstan.stream.durable import DurableOptions
from capstan.stream.lease import LeaseStore
from capstan.stream.models import DurableConsumer
from capstan.stream.streams import DurableStreams
from capstan.webhooks.consumer import WebhookConsumer
from capstan.webhooks.delivery.lookups import KnownTokens
from capstan.webhooks.matching import ChainTransaction, Matcher
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.payloads import Place
from capstan.webhooks.pending import PendingWatcher
from capstan.webhooks.steps import StepTrace, call_of
from capstan.webhooks.subscriptions import Subscriptions
from capstan.webhooks.traces import InternalTransfers, TracedTransaction, TraceUnavailable

T = TypeVar("T")


class _Created(msgspec.Struct, rename="camel"):
    contract_address: str | None = None


class _FullBlock(msgspec.Struct):
    transactions: tuple[ChainTransaction, ...]


_TRACED = msgspec.json.Decoder(tuple[TracedTransaction, ...])
_BLOCK = msgspec.json.Decoder(_FullBlock)
_RECEIPT = msgspec.json.Decoder(_Created)
_STEPS = msgspec.json.Decoder(StepTrace)
_HASH_CHARACTERS = 66
_TRACE_SECONDS = 60.0


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
        self._others: dict[str, tuple[InternalTransfers, PendingWatcher]] = {}
        self._streams = DurableStreams(
            gateway.followers,
            database,
            LeaseStore(database, new_id("proc"), clock),
            self._consumers,
            clock,
            options_of=lambda network: DurableOptions(role="webhooks", start=self._starts.get(network)),
        )

    def follow(self, network: str) -> None:
        """There are webhooks on this network."""
        if network not in self._starts:
            self._starts[network] = None
            self.sync()

    def follow_from_now(self, network: str) -> None:
        """There will be a webhook on this network: no block after this moment is missed."""
        if network not in self._starts:
            try:
                head = self._gateway.heads.tracker(network).number
            except KeyError:
                head = None
            self._starts[network] = None if head is None else head + 1
            self.sync()

    def sync(self) -> None:
        """Take over the networks that are served now."""
        self._streams.sync(self._starts)
        for network in self._starts:
            if network not in self._others and self._gateway.followers.find(network) is not None:
                self._begin_others(network)

    async def close(self) -> None:
        """Stop watching."""
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
        self._others[network] = (internal, pending)
        internal.start()
        pending.start()

    def _outbox(self, place: Place) -> Outbox:
        return Outbox(place, self._clock, is_sqlite=self._database.is_sqlite)

    def _place(self, network: str) -> Place:
        facts = self._facts(network)
        return Place(network, facts.chain, facts.chain_id, facts.native_symbol, facts.native_decimals)


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
