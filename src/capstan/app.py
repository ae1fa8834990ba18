"""The composition root: the one place that names concrete classes and wires them together.

`Application.open` builds everything from the settings, starts the background work and gives back an object that can
`run`. Nothing in here decides anything about requests; it only connects the parts that do.
"""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from litestar import Router
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry

from capstan import __version__
from capstan.access.directory import KeyDirectory
from capstan.access.models import Caller
from capstan.access.plans import PlanBook
from capstan.access.reach import NetworkReach
from capstan.access.routes import access_routes
from capstan.access.store import AccessStore
from capstan.bundler.debug import DEBUG
from capstan.bundler.methods import STANDARD
from capstan.bundler.routes import bundler_routes
from capstan.bundler.service import BundlerService
from capstan.bundling import Bundlers
from capstan.catalogue.networks import Networks
from capstan.catalogue.units import UnitTable
from capstan.chain.registry import Network
from capstan.core.clock import SystemClock
from capstan.core.errors import NotFound
from capstan.core.ids import RequestIds
from capstan.dashboard.opening import Dashboard
from capstan.data import DataServices
from capstan.erc4337 import open_wallets
from capstan.feed.service import FeedService
from capstan.gas.routes import gas_routes
from capstan.gas.service import GasPriceService
from capstan.gateway import Gateway
from capstan.limiting import build_limiter
from capstan.limits.models import Decision, Limits, RateLimiter
from capstan.notifications import Webhooks, open_webhooks
from capstan.recording import open_metrics_port, open_usage
from capstan.rpc.routes import rpc_routes
from capstan.rpc.service import RpcService
from capstan.server.accesslog import AccessLog
from capstan.server.admission import Admission, anonymous_subject
from capstan.server.asgi import build_application
from capstan.server.fastpath import FastPath
from capstan.server.gate import Gate
from capstan.server.handshake import Handshakes, socket_routes
from capstan.server.health import ReadinessChecks, health_routes
from capstan.server.identity import ClientAddress
from capstan.server.listener import serve_until_stopped
from capstan.server.pages import Pages, page_routes
from capstan.server.protocol import ConnectionLimits, Surroundings, protocol_class
from capstan.server.responses import ResponseEncoder
from capstan.server.sockets import bind
from capstan.server.telemetry import Telemetry
from capstan.server.websocket import WebSocketConnection
from capstan.settings import LiveSettings, ReloadFailed, Settings, SettingsError
from capstan.sockets import build_feed, build_sockets
from capstan.sponsoring import Sponsoring
from capstan.stream.wanted import WantedStreams
from capstan.usage.recorder import UsageRecorder
from capstan.usage.routes import usage_routes
from capstan.usage.store import UsageStore
from capstan.wallets.routes import wallet_routes
from capstan.wallets.service import WalletService
from capstan.wiring import open_database, ping, public_origin

log = structlog.get_logger(__name__)

_MAX_HEADER_BYTES = 65_536
_RECURSION_LIMIT = 1000


class Application:
    """The service, built and started."""

    def __init__(self, live: LiveSettings, *, shared_port: bool = False) -> None:
        self._live = live
        self._roles = live.current.process.roles
        self._clock = SystemClock()
        self.metrics = CollectorRegistry()
        self._units: UnitTable = live.current.units.table()
        self._networks: Networks = live.current.catalogue()
        self._reach = NetworkReach(lambda: self._networks)
        self._plans = PlanBook(lambda name: live.current.plans.get(name))
        self._limiter: RateLimiter
        self._gateway: Gateway
        self._usage: UsageRecorder
        self._usage_store: UsageStore
        self._gas_prices: GasPriceService
        self._wallets: WalletService
        self._sponsoring: Sponsoring
        self._webhooks: Webhooks
        self._dashboard: Dashboard
        self._data: DataServices
        self._bundlers: Bundlers
        self._readiness: ReadinessChecks
        self._gate: Gate
        self._fast_path: FastPath
        self._feed: FeedService
        self._sockets: type[WebSocketConnection]
        self._encoder = ResponseEncoder()
        self._request_ids = RequestIds()
        chosen = live.current.log
        self._access_log = AccessLog(self._clock, enabled=chosen.access, style=chosen.format)
        self.listener = bind(live.current.server.host, live.current.server.port, shared=shared_port)

    @property
    def port(self) -> int:
        """The port in use, which the settings leave open when they say 0."""
        return int(self.listener.getsockname()[1])

    @property
    def base_url(self) -> str:
        """The address that callers use, with the version."""
        return public_origin(self._live.current, self.port) + "/v1"

    @classmethod
    @asynccontextmanager
    async def open(cls, live: LiveSettings, *, shared_port: bool = False) -> AsyncIterator["Application"]:
        """Build and start everything; stop it in the reverse order at the end."""
        application = cls(live, shared_port=shared_port)
        async with AsyncExitStack() as stack:
            stack.callback(application.listener.close)
            await application._start(stack)
            yield application

    async def run(
        self, *, on_started: Callable[[], Awaitable[None]] | None = None, stop: asyncio.Event | None = None
    ) -> None:
        """Serve until a signal or until `stop` is set."""
        server = self._live.current.server
        surroundings = Surroundings(
            limits=ConnectionLimits(
                header_timeout_seconds=server.header_timeout_seconds,
                body_timeout_seconds=server.body_timeout_seconds,
                keep_alive_seconds=server.keep_alive_seconds,
                max_header_bytes=_MAX_HEADER_BYTES,
                max_body_bytes=server.body_limit_bytes,
                max_connections=server.max_connections,
            ),
            fast_path=self._fast_path,
            encoder=self._encoder,
            request_ids=self._request_ids,
            sockets=self._sockets,
            decide=self._decide_by_address,
            cors=bool(server.cors_origins),
        )

        async def started() -> None:
            known = {"networks": len(self._networks.served), "roles": list(self._roles)}
            log.info("started", base_url=self.base_url, version=__version__, **known)
            if on_started is not None:
                await on_started()

        await serve_until_stopped(
            self._gate,
            self.listener,
            protocol_class(surroundings),
            keep_alive_seconds=math.ceil(server.keep_alive_seconds),
            grace_seconds=math.ceil(server.shutdown_grace_seconds),
            on_started=started,
            on_reload=self.reload,
            on_stopping=self._begin_stop,
            stop=stop,
        )
        log.info("stopped")

    async def reload(self) -> None:
        """Read the settings again. A bad file is refused and the old settings stay."""
        try:
            report = self._live.reload()
            await self._data.apply(self._live.current)
        except (SettingsError, ReloadFailed) as error:
            log.error("reload_refused", reason=str(error))
            return
        log.info("reloaded", networks=len(self._networks.served), needs_restart=list(report.needs_restart))

    async def _start(self, stack: AsyncExitStack) -> None:
        # A library behind eth-account raises this to 100,000 when it is imported. Deeply nested JSON would then
        # overflow the C stack and kill the process, instead of being refused.
        sys.setrecursionlimit(_RECURSION_LIMIT)
        settings = self._live.current
        database = await open_database(settings)
        stack.push_async_callback(database.close)
        directory = KeyDirectory(
            AccessStore(database),
            self._clock,
            poll_seconds=settings.access.poll_seconds,
            max_staleness_seconds=settings.access.max_staleness_seconds,
            cache_entries=settings.access.cache_entries,
            last_used_flush_seconds=settings.access.last_used_flush_seconds,
        )
        await directory.start()
        stack.push_async_callback(directory.close)
        self._limiter = await build_limiter(settings, database, self._clock, self.metrics, stack)
        await self._limiter.start()
        stack.push_async_callback(self._limiter.close)
        self._usage = await open_usage(settings, database, self._clock, self.metrics, stack)
        self._usage_store = UsageStore(database, self._clock)
        self._gateway = await Gateway.open(settings, self._clock, self.metrics, stack)
        following = (self._gateway.followers, self._gateway.heads, self._clock)
        self._gas_prices = GasPriceService(*following, lambda name: self._live.current.networks[name].data_fee)
        stack.push_async_callback(self._gas_prices.close)
        wanted = WantedStreams(database, follows="follower" in self._roles)
        self._data = await DataServices.open(
            *(settings, database, self._gateway, self._clock, self.metrics, stack),
            networks=lambda: self._networks,
            wanted=wanted,
        )
        self._live.on_change(self._apply)
        known = (self._live, database, self._gateway, self._clock, self._reach, self._plans)
        self._wallets = await open_wallets(*known, wanted, stack)
        self._webhooks = await open_webhooks(*known, self._data, self.metrics, stack)
        bundling = (*known[:4], self.metrics, stack)
        self._bundlers = await Bundlers.open(*bundling, prices=self._gas_prices, reach=self._reach)
        self._readiness = ReadinessChecks(
            {"database": lambda: ping(database), "bundler": self._bundlers.readiness},
            halted=lambda: self._gateway.followers.halted,
        )
        self._sponsoring = await Sponsoring.open(
            *(*known, wanted, stack),
            gas_prices=self._gas_prices,
            prices=self._data.prices,
            metrics=self.metrics,
            signers=self._bundlers.signers,
        )
        shown = (self._webhooks, self._usage_store, self._sponsoring, self._bundlers, self._wallets)
        self._dashboard = await Dashboard.open(*known, *shown, base_url=self.base_url)
        await wanted.start()
        stack.push_async_callback(wanted.close)
        self._build_gate(directory)
        self._feed.start()
        stack.push_async_callback(self._feed.close)
        stack.callback(self._access_log.flush)
        open_metrics_port(settings, self.metrics, stack)

    def _build_gate(self, directory: KeyDirectory) -> None:
        """Connect admission, services and routes: the ordinary way (gate) and the short way (fast path)."""
        settings = self._live.current
        admission = Admission(
            directory,
            self._limiter,
            limits_of=self._plans.limits_of,
            anonymous_limits=self._anonymous_limits,
            price=lambda name: self._units.cost(name),
        )
        rpc, telemetry = self._build_rpc(), Telemetry(self.metrics)
        addresses = ClientAddress(settings.server.trusted_proxies)
        application = build_application(
            self._routes(rpc),
            admission,
            version=__version__,
            body_limit_bytes=settings.server.body_limit_bytes,
            cors_origins=settings.server.cors_origins,
        )
        self._gate = Gate(
            application,
            admission,
            telemetry,
            self._clock,
            addresses=addresses,
            request_timeout_seconds=settings.server.request_timeout_seconds,
            access_log=self._access_log,
            request_ids=self._request_ids,
            usage=self._usage,
            origins=settings.server.cors_origins,
        )
        self._fast_path = FastPath(
            directory,
            self._limiter,
            admission,
            rpc,
            self._encoder,
            self._clock,
            find_network=self._exact_network,
            limits_of=self._plans.limits_of,
            addresses=addresses,
            telemetry=telemetry,
            access_log=self._access_log,
            request_ids=self._request_ids,
        )
        self._build_feed(directory, admission, rpc, addresses, telemetry)

    def _build_feed(
        self,
        directory: KeyDirectory,
        admission: Admission,
        rpc: RpcService,
        addresses: ClientAddress,
        telemetry: Telemetry,
    ) -> None:
        settings = self._live.current
        self._feed = build_feed(
            settings,
            self._gateway,
            rpc,
            self._limiter,
            self._usage,
            directory,
            self._clock,
            self.metrics,
            limits_of=self._plans.limits_of,
            price=lambda name: self._units.cost(name),
            request_ids=self._request_ids,
        )
        handshakes = Handshakes(
            admission,
            self._encoder,
            self._clock,
            find_network=self._exact_network,
            addresses=addresses,
            telemetry=telemetry,
            access_log=self._access_log,
            request_ids=self._request_ids,
            origins=settings.server.cors_origins,
        )
        self._sockets = build_sockets(settings, self._feed, handshakes)

    def _routes(self, rpc: RpcService) -> list[HTTPRouteHandler | Router]:
        token = self._live.current.server.operator_token
        health = health_routes(self._readiness, self.metrics, version=__version__, operator_token=token)
        if "api" not in self._roles:
            return [*health]
        return [
            *health,
            *page_routes(Pages(base_url=self.base_url)),
            *access_routes(self._plans, lambda: self._networks),
            *rpc_routes(rpc, self._exact_network),
            *socket_routes(),
            *gas_routes(self._gas_prices, self._network_of_chain),
            *self._data.routes(self._network_of_chain),
            *wallet_routes(self._wallets),
            *self._webhooks.routes,
            *bundler_routes(self._build_bundler(), self._bundlers.find),
            *self._sponsoring.routes(),
            *usage_routes(self._usage_store),
            *self._dashboard.routes(rpc, self._limiter, self._exact_network),
        ]

    def _exact_network(self, caller: Caller, chain: str, network: str) -> Network:
        if "api" not in self._roles:
            raise NotFound(f"this process does not serve the API; its roles are {', '.join(self._roles)}")
        found = self._reach.exact(caller, chain, network)
        return self._gateway.registry.get(found.chain, found.network)

    def _network_of_chain(self, caller: Caller, chain: str, network: str | None) -> Network:
        found = self._reach.of_chain(caller, chain, network)
        return self._gateway.registry.get(found.chain, found.network)

    def _build_rpc(self) -> RpcService:
        return self._gateway.service(
            self._live.current,
            units=lambda: self._units,
            archive_depth=lambda: self._live.current.units.archive_depth,
            usage=self._usage,
        )

    def _build_bundler(self) -> BundlerService:
        server = self._live.current.server
        return BundlerService(
            {**STANDARD, **DEBUG, **self._sponsoring.methods},
            cost=lambda name: self._units.cost(name),
            usage=self._usage,
            clock=self._clock,
            max_body_bytes=server.body_limit_bytes,
            max_batch_items=server.batch_limit,
        )

    def _apply(self, _old: Settings, settings: Settings) -> None:
        """Take over reloaded settings. Builds first and swaps last, so a failure changes nothing."""
        units, networks = settings.units.table(), settings.catalogue()
        self._gateway.apply(settings)
        self._units, self._networks = units, networks
        self._fast_path.forget_networks()
        self._plans.forget()
        self._feed.networks_changed(lambda name: self._gateway.registry.find(*name.split("/", 1)))

    def _begin_stop(self) -> None:
        self._readiness.stopping = True
        self._dashboard.begin_stop()

    def _anonymous_limits(self) -> Limits:
        limits = self._live.current.limits
        return Limits(limits.anonymous_requests_per_second, limits.anonymous_requests_per_day, 0)

    def _decide_by_address(self, client: str) -> Decision:
        """The state of the limits of an address, for answers given before a request could be read."""
        limits = self._anonymous_limits()
        # Where the shared counters would have to be asked, the figures of a full window are the cautious answer.
        return self._limiter.take_now(anonymous_subject(client), limits, requests=1, units=0) or Decision(
            True, limits.requests_per_second, 0, int(self._clock.now()) + 1, 0, ""
        )
