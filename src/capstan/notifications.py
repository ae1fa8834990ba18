"""Builds webhooks from their parts: the subscriptions, the streams in which events are matched, and their delivery.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about requests.
"""

from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry

from capstan.access.models import Caller, Overrides
from capstan.access.plans import PlanBook
from capstan.access.reach import NetworkReach
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError, InvalidRequest, NotFound
from capstan.data import DataServices
from capstan.gateway import Gateway
from capstan.outbound.client import GuardedClient
from capstan.settings import LiveSettings, Settings
from capstan.storage.database import Database
from capstan.watching import NetworkWatchers, trace_block
from capstan.webhooks.delivery.hosts import Hosts
from capstan.webhooks.delivery.lookups import KnownTokens, Lookups
from capstan.webhooks.delivery.metrics import DeliveryMetrics
from capstan.webhooks.delivery.quota import Quota
from capstan.webhooks.delivery.sender import Sender
from capstan.webhooks.delivery.store import DeliveryStore
from capstan.webhooks.delivery.worker import Deliverer, DeliveryOptions
from capstan.webhooks.lookbacks import ROLE
from capstan.webhooks.mailer import Mailer, to_files, to_smtp
from capstan.webhooks.operations import WebhookOperations
from capstan.webhooks.payloads import TokenFacts
from capstan.webhooks.routes import webhook_routes
from capstan.webhooks.sealing import Seal
from capstan.webhooks.service import Reach, WebhookService
from capstan.webhooks.store import WebhookStore
from capstan.webhooks.traces import TraceUnavailable


class _Token(msgspec.Struct):
    symbol: str | None = None
    decimals: int | None = None


class _Trait(msgspec.Struct):
    trait_type: str
    value: str


class _Nft(msgspec.Struct):
    name: str | None = None
    image_url: str | None = None
    traits: list[_Trait] = []


class Metadata:
    """What the data services know of tokens and NFTs, for the bodies of events."""

    def __init__(self, gateway: Gateway, data: DataServices) -> None:
        self._gateway = gateway
        self._data = data

    async def token(self, network: str, contract: str) -> TokenFacts:
        """Symbol and decimals of a token; the symbol alone of a collection of NFTs."""
        connected = self._network(network)
        for ask in (self._data.tokens.metadata, self._data.nfts.collection):
            try:
                found = msgspec.json.decode((await ask(connected, contract)).body, type=_Token)
            except NotFound:
                continue
            return TokenFacts(found.symbol, found.decimals)
        return TokenFacts(None, None)

    async def nft(self, network: str, contract: str, token_id: str) -> dict[str, Any] | None:
        """Name, image and traits of an NFT."""
        try:
            answer = await self._data.nfts.metadata(self._network(network), contract, token_id)
        except (NotFound, InvalidRequest):
            return None
        found = msgspec.json.decode(answer.body, type=_Nft)
        return {"name": found.name, "imageUrl": found.image_url, "traits": msgspec.to_builtins(found.traits)}

    def _network(self, name: str) -> Network:
        return self._gateway.registry.get(*name.split("/", 1))


class Webhooks(NamedTuple):
    """Webhooks, started: the handlers of their paths, and what the dashboard uses."""

    routes: list[HTTPRouteHandler]
    service: WebhookService
    operations: WebhookOperations
    seal: Seal


def outgoing_client(settings: Settings) -> GuardedClient:
    """The client of deliveries, with connections of its own."""
    chosen = settings.webhooks
    return GuardedClient(
        allow_http=settings.development,
        allow_loopback=settings.development,
        connections=chosen.concurrency,
        per_host=chosen.per_host,
    )


async def open_webhooks(
    live: LiveSettings,
    database: Database,
    gateway: Gateway,
    clock: Clock,
    reach: NetworkReach,
    plans: PlanBook,
    data: DataServices,
    metrics: CollectorRegistry,
    stack: AsyncExitStack,
) -> Webhooks:
    """Start webhooks, which the stack stops.

    Events are matched in a process with the role `follower` and delivered in one with the role `deliverer`. To be
    called when the gateway hears of reloads already.
    """
    settings = live.current
    follows, delivers = (role in settings.process.roles for role in ("follower", "deliverer"))

    def limit(caller: Caller) -> int:
        return plans.effective(caller.plan, caller.overrides).webhooks or 0

    async def why_no_traces(network: str) -> str | None:
        connected = gateway.registry.get(*network.split("/", 1))
        if "debug" not in connected.spec.method_groups:
            return "the debug methods of its nodes are not enabled (extra_namespaces)"
        try:
            await trace_block(connected, "latest")
        except (TraceUnavailable, ApiError) as error:
            return f"its nodes do not tell the calls of a block ({error})"
        return None

    def reloaded(_old: Settings, _new: Settings) -> None:
        watchers.sync()

    client = outgoing_client(settings)
    stack.push_async_callback(client.close)
    seal = Seal.open(settings.webhooks.secret_key, settings.data_path)
    known = KnownTokens()
    deliverer = _deliverer(settings, database, client, seal, clock, plans, Metadata(gateway, data), known, metrics)
    watchers = NetworkWatchers(
        database, gateway, clock, facts=lambda name: live.current.catalogue().describe(*name.split("/", 1)), known=known
    )
    watchers.written = deliverer.wake
    store = WebhookStore(database)
    service = WebhookService(
        store,
        client,
        seal,
        clock,
        reach=Reach(
            resolve=reach.of_chain, names=lambda caller: reach.names(caller, None, None), why_no_traces=why_no_traces
        ),
        limit=limit,
        needed=watchers.follow_from_now if follows else watchers.next_block,
        changed=deliverer.changed,
    )
    if delivers:
        deliverer.start()
    stack.push_async_callback(deliverer.close)
    stack.push_async_callback(watchers.close)
    if follows:
        await store.forget_idle(ROLE)
        await watchers.start(store.networks)
    live.on_change(reloaded)
    mailer = Mailer(database, clock, _transport(settings), sender=settings.mail.from_ or "capstan@localhost")
    if delivers:
        mailer.start()
    stack.push_async_callback(mailer.close)
    sender = Sender(client, seal, clock, seconds=settings.webhooks.timeout_seconds)
    return Webhooks(webhook_routes(service), service, WebhookOperations(database, seal, sender, clock), seal)


def _deliverer(
    settings: Settings,
    database: Database,
    client: GuardedClient,
    seal: Seal,
    clock: Clock,
    plans: PlanBook,
    metadata: Metadata,
    known: KnownTokens,
    metrics: CollectorRegistry,
) -> Deliverer:
    chosen = settings.webhooks

    def deliveries_per_day(plan: str, overrides: Overrides) -> int:
        return plans.effective(plan, overrides).deliveries_per_day or 0

    return Deliverer(
        DeliveryStore(database, Quota(deliveries_per_day, clock, is_sqlite=database.is_sqlite)),
        Sender(client, seal, clock, seconds=chosen.timeout_seconds),
        Hosts(clock, width=chosen.per_host),
        Lookups(metadata.token, metadata.nft, known, seconds=chosen.lookup_seconds),
        clock,
        DeliveryOptions(
            delays={"A": chosen.format_a_delays, "B": chosen.format_b_delays},
            concurrency=chosen.concurrency,
            poll_seconds=chosen.poll_seconds,
            keep_days=chosen.keep_days,
        ),
        DeliveryMetrics(metrics),
    )


def _transport(settings: Settings) -> Any:
    if settings.mail.smtp_url:
        return to_smtp(settings.mail.smtp_url, seconds=settings.mail.timeout_seconds)
    return to_files(settings.data_path / "mail") if settings.development else None
