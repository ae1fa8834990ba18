"""Builds gas policies and sponsorship from their parts: rules, ledger, signer, hooks, and the stream that settles.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about requests.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry

from capstan.access.models import Caller, Scope
from capstan.access.plans import PlanBook
from capstan.access.reach import NetworkReach
from capstan.bundler.calls import Methods, PersonalMethod
from capstan.bundler.datafee import data_fee_of
from capstan.bundler.estimation.models import Price
from capstan.bundler.estimation.service import GasEstimator
from capstan.bundler.network import NetworkBundler
from capstan.bundler.refusals import INVALID_FIELDS, REJECTED_BY_PAYMASTER, Refusal
from capstan.bundler.simulator import Simulator
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.reader import StateReader
from capstan.chain.registry import Network
from capstan.core.accounts import UnusableKey, read_key
from capstan.core.clock import Clock
from capstan.core.decimals import GWEI_DECIMALS, parse_units
from capstan.core.errors import Forbidden, InvalidRequest, NotFound, Unavailable
from capstan.core.hexes import parse_address
from capstan.core.ids import new_id
from capstan.gas.policies.routes import policy_routes
from capstan.gas.policies.service import PolicyService, Ports
from capstan.gas.policies.store import STREAM_ROLE, PolicyStore
from capstan.gas.service import GasPriceService
from capstan.gas.sponsor.chain import SponsorChain
from capstan.gas.sponsor.erc7677 import PaymasterWebService, SponsorName
from capstan.gas.sponsor.funds import FundWatch, Watched
from capstan.gas.sponsor.history import SponsorshipHistory
from capstan.gas.sponsor.hook import DecisionHooks
from capstan.gas.sponsor.ledger import Ledger
from capstan.gas.sponsor.metrics import SponsorMetrics
from capstan.gas.sponsor.pruning import Pruner
from capstan.gas.sponsor.routes import sponsor_routes
from capstan.gas.sponsor.service import Limits, Options, Parts, Prices, SponsorService
from capstan.gas.sponsor.settlement import SettlementConsumer
from capstan.gas.sponsor.signer import PaymasterSigner
from capstan.gas.sponsor.warnings import Fund, FundWarnings, Kind
from capstan.gateway import Gateway
from capstan.outbound.client import GuardedClient
from capstan.settings import LiveSettings, Settings
from capstan.settings.errors import Problem, SettingsError
from capstan.storage.database import Database
from capstan.stream.durable import DurableOptions
from capstan.stream.lease import LeaseStore
from capstan.stream.streams import DurableStreams
from capstan.stream.wanted import WantedStreams
from capstan.userops.models import UserOperation
from capstan.userops.versions import NEWEST_FIRST, Version

# ERC-7677.
PAYMASTER_METHODS = ("pm_getPaymasterStubData", "pm_getPaymasterData")


class SettlementStreams:
    """Follows the networks on which there are policies; of one without any, no block is fetched."""

    def __init__(self, live: LiveSettings, database: Database, gateway: Gateway, clock: Clock) -> None:
        self._live = live
        # The block from which a stream that never ran has to begin.
        self._first: dict[str, int | None] = {}
        self._streams = DurableStreams(
            gateway.followers,
            database,
            LeaseStore(database, new_id("proc"), clock),
            lambda network: [self._consumer(network)],
            clock,
            options_of=lambda network: DurableOptions(role=STREAM_ROLE, start=self._first.get(network)),
            metrics=gateway.stream_metrics,
        )

    def follow(self, network: str, first: int | None) -> None:
        """There is a policy on this network."""
        if network not in self._first:
            self._first[network] = first
            self.sync()

    def sync(self) -> None:
        """Take over the networks that are served now."""
        self._streams.sync(self._first)

    async def close(self) -> None:
        """Stop following."""
        await self._streams.close()

    def _consumer(self, network: str) -> SettlementConsumer:
        settings = self._live.current
        facts = settings.networks[network]
        return SettlementConsumer(network, decimals=facts.native_decimals, release_seconds=settings.gas.release_seconds)


class LimitEstimator:
    """The estimation of the bundler, for operations whose gas limits a sponsor request leaves out."""

    def __init__(self, facts: Callable[[Network], NetworkFacts], gateway: Gateway, prices: GasPriceService) -> None:
        self._facts = facts
        self._gateway = gateway
        self._prices = prices
        self._estimators: dict[tuple[str, str], GasEstimator] = {}

    async def estimate(self, network: Network, version: Version, operation: UserOperation) -> Limits:
        """See `service.Estimator`."""
        entry_point = self._facts(network).entry_points[version]
        estimator = self._estimators.get((network.name, entry_point))
        if estimator is None:
            estimator = self._estimators[network.name, entry_point] = self._build(network, version)
        try:
            found = await estimator.estimate(operation)
        except Refusal as refusal:
            raise InvalidRequest(f"user_operation: its gas cannot be estimated: {refusal}") from None
        return Limits(found.call_gas_limit, found.verification_gas_limit, found.pre_verification_gas)

    def _build(self, network: Network, version: Version) -> GasEstimator:
        facts, spec = self._facts(network), network.spec

        def current() -> Network:
            return self._gateway.registry.get(spec.chain, spec.network)

        async def price() -> Price:
            found = await self._prices.prices(current())
            standard = found.estimates.standard
            texts = (found.base_fee_gwei, standard.max_fee_gwei, standard.max_priority_fee_gwei)
            return Price(*(parse_units(text, GWEI_DECIMALS) for text in texts))

        simulator = Simulator(current, version, parse_address(facts.entry_points[version]), facts.chain_id)
        return GasEstimator(simulator, price, data_fee=data_fee_of(facts.data_fee, current))


class PaymasterMethods:
    """The methods of ERC-7677 on the endpoint of the bundler, in whose errors it answers."""

    def __init__(self, service: PaymasterWebService) -> None:
        self._service = service

    @property
    def table(self) -> Methods:
        """The methods by their names."""
        scopes = (Scope.GAS_MANAGE,)
        handlers = (self._stub, self._data)
        return {
            name: PersonalMethod(handler, scopes) for name, handler in zip(PAYMASTER_METHODS, handlers, strict=True)
        }

    async def _stub(self, caller: Caller, bundler: NetworkBundler, params: Sequence[Any]) -> Any:
        with _refusals():
            return await self._service.stub(caller, bundler.name, params)

    async def _data(self, caller: Caller, bundler: NetworkBundler, params: Sequence[Any]) -> Any:
        with _refusals():
            return await self._service.data(caller, bundler.name, params)


@contextmanager
def _refusals() -> Iterator[None]:
    """What is wrong with one call is an error of that call; what is wrong with us goes through."""
    try:
        yield
    except (InvalidRequest, NotFound) as error:
        raise Refusal(INVALID_FIELDS, error.message) from None
    except Forbidden as error:
        raise Refusal(REJECTED_BY_PAYMASTER, error.message) from None


class Sponsoring:
    """Policies and sponsorship, connected."""

    def __init__(
        self,
        policies: PolicyService,
        sponsor: SponsorService,
        history: SponsorshipHistory,
        shown: SponsorName,
        warnings: FundWarnings,
        funds: FundWatch,
    ) -> None:
        self.policies = policies
        # Which paymasters and senders of bundles have little left, and what each of them has.
        self.warnings = warnings
        self.funds = funds
        self.sponsor = sponsor
        self.history = history
        self.methods = PaymasterMethods(PaymasterWebService(sponsor, shown)).table

    @classmethod
    async def open(
        cls,
        live: LiveSettings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        reach: NetworkReach,
        plans: PlanBook,
        wanted: WantedStreams,
        stack: AsyncExitStack,
        *,
        gas_prices: GasPriceService,
        prices: Prices,
        metrics: CollectorRegistry,
        signers: Sequence[bytes],
    ) -> "Sponsoring":
        """Build and start; the stack ends it. To be called when the gateway hears of reloads already.

        `signers` are the accounts that send bundles.
        """
        settings = live.current
        signer = await open_signer(settings)

        def facts_of(network: Network) -> NetworkFacts:
            return live.current.networks[network.name]

        def resolve(caller: Caller, chain: str, network: str) -> tuple[Network, NetworkFacts]:
            found = reach.exact(caller, chain, network)
            return gateway.registry.get(found.chain, found.network), found

        def secret(policy_id: str) -> str:
            if signer is None:
                raise Unavailable("gas sponsorship is not set up on this server: the operator must set gas.signer")
            return signer.hook_secret(policy_id)

        client = GuardedClient(allow_http=settings.development, allow_loopback=settings.development)
        stack.push_async_callback(client.close)
        hooks = DecisionHooks(client, clock, secret)
        ledger = Ledger(database)
        stack.push_async_callback(ledger.close)
        reader = StateReader(lambda network: facts_of(network).multicall3)
        chain = SponsorChain(HeadBlocks(gateway.heads, clock), reader)
        streams = SettlementStreams(live, database, gateway, clock)
        stack.push_async_callback(streams.close)

        async def needed(network: str, first: int) -> None:
            await wanted.want(network, STREAM_ROLE, first)

        async def head(facts: NetworkFacts) -> int:
            return (await chain.head(gateway.registry.get(facts.chain, facts.network))).number

        def limit(caller: Caller) -> int:
            return plans.effective(caller.plan, caller.overrides).policies or 0

        store, shown = PolicyStore(database), SponsorMetrics(metrics)
        ports = Ports(
            resolve=reach.of_chain,
            head=head,
            limit=limit,
            hook_secret=secret,
            check_hook=hooks.check,
            needed=needed,
        )
        policies = PolicyService(store, clock, ports)
        parts = Parts(
            policies=policies,
            ledger=ledger,
            chain=chain,
            prices=prices,
            estimator=LimitEstimator(facts_of, gateway, gas_prices),
            hooks=hooks,
            metrics=shown,
            resolve=resolve,
        )
        sponsor = SponsorService(parts, signer, clock, Options(settings.gas.validity_seconds))
        wanted.register(STREAM_ROLE, streams.follow)
        for network, first_block in (await store.networks()).items():
            # Known since before needs were written down.
            await wanted.want(network, STREAM_ROLE, first_block)
        live.on_change(lambda _old, _new: streams.sync())
        pruner = Pruner(database, clock, keep_days=settings.gas.keep_days)
        warnings = FundWarnings(database, clock, lambda: live.current.mail.operators)
        watch = FundWatch(
            chain, warnings, shown, lambda: [*_paymasters(live, gateway), *_senders(live, gateway, signers)], clock
        )
        for task in (pruner, watch):
            if wanted.follows:
                task.start()
            stack.push_async_callback(task.close)
        name = SponsorName(settings.gas.sponsor_name, settings.gas.sponsor_icon)
        return cls(policies, sponsor, SponsorshipHistory(database, policies), name, warnings, watch)

    def routes(self) -> list[HTTPRouteHandler]:
        """The handlers of the paths of policies and sponsorship."""
        return [*policy_routes(self.policies), *sponsor_routes(self.sponsor, self.history)]


async def open_signer(settings: Settings) -> PaymasterSigner | None:
    """The signer of the settings, if there is one. Raises `SettingsError`."""
    if not settings.gas.signer:
        return None
    try:
        # A keystore takes a second of arithmetic by design.
        key = await asyncio.to_thread(read_key, settings.gas.signer, settings.gas.keystore_password, "gas.signer")
    except UnusableKey as error:
        raise SettingsError([Problem("settings", error.setting, error.reason)]) from None
    return PaymasterSigner(key)


def _paymasters(live: LiveSettings, gateway: Gateway) -> list[Watched]:
    if not live.current.gas.signer:
        return []
    found, least = [], live.current.gas.least_deposit_gwei * 10**GWEI_DECIMALS
    for facts in live.current.served.values():
        network = gateway.registry.get(facts.chain, facts.network)
        for version in NEWEST_FIRST:
            paymaster, entry_point = facts.paymasters.get(version), facts.entry_points.get(version)
            if paymaster and entry_point:
                fund = _fund(facts, "paymaster_deposit", parse_address(paymaster), version)
                found.append(Watched(network, fund, parse_address(entry_point), least))
    return found


def _senders(live: LiveSettings, gateway: Gateway, signers: Sequence[bytes]) -> list[Watched]:
    least = live.current.bundler.low_balance_gwei * 10**GWEI_DECIMALS
    return [
        Watched(gateway.registry.get(facts.chain, facts.network), _fund(facts, "signer_balance", signer), None, least)
        for facts in live.current.served.values()
        if facts.family == "evm" and facts.entry_points
        for signer in signers
    ]


def _fund(facts: NetworkFacts, kind: Kind, address: bytes, version: Version | None = None) -> Fund:
    return Fund(facts.name, kind, address, version, facts.native_symbol, facts.native_decimals)
