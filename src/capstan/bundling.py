"""Builds the bundlers of all networks from their parts: pools, validators, signers, workers, and the streams in which
they see what is included.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about requests. A network has a bundler when it is an EVM network with entry points.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry
from sqlalchemy import select

from capstan.access.models import Caller
from capstan.access.reach import NetworkReach
from capstan.bundler.chain import BundlerChain
from capstan.bundler.choosing import BundleLimits
from capstan.bundler.consumer import InclusionConsumer
from capstan.bundler.datafee import data_fee_of
from capstan.bundler.entries import EntryPoint
from capstan.bundler.estimation.models import Price
from capstan.bundler.estimation.service import GasEstimator
from capstan.bundler.fees import Fees
from capstan.bundler.lanes import LaneOptions, Lanes
from capstan.bundler.making import BundleMaker
from capstan.bundler.mempool import PoolLimits
from capstan.bundler.metrics import BundlerMetrics
from capstan.bundler.network import NetworkBundler, NetworkOptions
from capstan.bundler.pool import OperationPool, PoolRules
from capstan.bundler.reputation import ReputationRules
from capstan.bundler.signers import load_signers
from capstan.bundler.simulated import SimulationValidator, StakeRule
from capstan.bundler.simulator import Simulator
from capstan.bundler.slots import SlotStore
from capstan.bundler.validating import Validator
from capstan.bundler.validation.making import NetworkValidation
from capstan.bundler.validation.workers import WorkerLimits, Workers
from capstan.bundler.worker import BundlingWorker, WorkerOptions
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.reader import StateReader
from capstan.chain.errors import ChainError
from capstan.core.accounts import UnusableKey
from capstan.core.clock import Clock
from capstan.core.decimals import GWEI_DECIMALS, parse_units
from capstan.core.errors import ApiError, NotFound
from capstan.core.hexes import parse_address, to_quantity
from capstan.core.ids import new_id
from capstan.gas.service import GasPriceService
from capstan.gateway import Gateway
from capstan.settings import Bundler as BundlerSettings
from capstan.settings import LiveSettings, NetworkSettings, Settings
from capstan.settings.errors import Problem, SettingsError
from capstan.storage.database import Database
from capstan.storage.schema import cursors
from capstan.stream.durable import DurableOptions
from capstan.stream.lease import LeaseStore
from capstan.stream.streams import DurableStreams
from capstan.userops.versions import NEWEST_FIRST

_ROLE = "bundler"
_GWEI = 10**9
_DAY_SECONDS = 86_400
_NO_SIGNER = "this server has no account to send bundles from: the operator must set bundler.signers"


class Bundlers:
    """The bundlers of all networks. `apply` takes over reloaded settings; a network that stays is not disturbed."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        metrics: CollectorRegistry,
        *,
        prices: GasPriceService,
        reach: NetworkReach,
    ) -> None:
        self._settings = settings
        self._database = database
        self._gateway = gateway
        self._clock = clock
        self._metrics = BundlerMetrics(metrics)
        self._prices = prices
        self._reach = reach
        # Whether this process sends bundles; otherwise it only takes operations into the pool.
        self._bundles = "bundler" in settings.process.roles
        self._leases = LeaseStore(database, new_id("proc"), clock)
        try:
            self._signers = load_signers(settings.bundler.signers, settings.bundler.keystore_password)
        except UnusableKey as error:
            raise SettingsError([Problem("settings", error.setting, error.reason)]) from None
        self._blocks = HeadBlocks(gateway.heads, clock)
        self._reader = StateReader(lambda _network: "")
        self._workers = Workers(
            WorkerLimits(
                processes=settings.bundler.validation_processes, job_seconds=settings.bundler.validation_seconds
            )
        )
        self._bundlers: dict[str, tuple[NetworkSettings, NetworkBundler]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._warming: set[asyncio.Task[None]] = set()
        self._streams = DurableStreams(
            gateway.followers,
            database,
            self._leases,
            lambda name: [self._consumer(name)],
            clock,
            options_of=lambda _network: DurableOptions(role=_ROLE),
            metrics=gateway.stream_metrics,
        )

    @classmethod
    async def open(
        cls,
        live: LiveSettings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        metrics: CollectorRegistry,
        stack: AsyncExitStack,
        *,
        prices: GasPriceService,
        reach: NetworkReach,
    ) -> "Bundlers":
        """Build and start; the stack stops it. To be called when the gateway hears of reloads already."""
        bundlers = cls(live.current, database, gateway, clock, metrics, prices=prices, reach=reach)
        stack.push_async_callback(bundlers.close)
        bundlers.apply(live.current)
        live.on_change(lambda _old, new: bundlers.apply(new))
        return bundlers

    def find(self, caller: Caller, chain: str, network: str) -> NetworkBundler:
        """The bundler of a path. Raises the errors of unknown, unserved and forbidden networks."""
        found = self._reach.exact(caller, chain, network)
        known = self._bundlers.get(found.name)
        if known is None:
            raise NotFound(f"there is no bundler on {found.name}: the network has no entry points configured")
        return known[1]

    @property
    def unsafe(self) -> list[str]:
        """The networks on which operations are only simulated."""
        return sorted(name for name, (settings, _) in self._bundlers.items() if settings.bundler_unsafe)

    async def readiness(self) -> str | None:
        """What /readyz says of the bundler."""
        unsafe = self.unsafe
        return f"ok; unsafe, operations are not checked by ERC-7562: {', '.join(unsafe)}" if unsafe else None

    def apply(self, settings: Settings) -> None:
        """Serve the networks of these settings from now on. To be called after the gateway has taken them over."""
        self._settings = settings
        wanted = {
            name: network
            for name, network in settings.served.items()
            if network.family == "evm" and network.entry_points
        }
        for name, (before, bundler) in list(self._bundlers.items()):
            if wanted.get(name) != before:
                del self._bundlers[name]
                task = asyncio.create_task(bundler.worker.close(), name=f"end of the bundler of {name}")
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        # A network that is built anew has another consumer, too.
        self._sync_streams()
        for name, network in wanted.items():
            if name not in self._bundlers:
                bundler = self._build(name, network)
                self._bundlers[name] = (network, bundler)
                if self._bundles:
                    bundler.worker.start()
        self._sync_streams()

    def _sync_streams(self) -> None:
        self._streams.sync(name for name in self._bundlers if self._signers and self._bundles)

    async def close(self) -> None:
        """Stop sending bundles and following the chains."""
        for _, bundler in self._bundlers.values():
            await bundler.worker.close()
        for task in self._warming:
            task.cancel()
        await asyncio.gather(*self._ending, *self._warming, return_exceptions=True)
        await self._streams.close()
        await self._workers.close()

    # --- building

    def _build(self, name: str, network: NetworkSettings) -> NetworkBundler:
        options, rules = self._settings.bundler, _rules(self._settings.bundler)
        entry_points = _entry_points(network)
        pool = OperationPool(
            name, {each.address: each.version for each in entry_points}, self._database, self._clock, rules
        )
        chain = BundlerChain(lambda: self._gateway.registry.get(*name.split("/")))
        limits = BundleLimits(gas=options.bundle_gas, bytes=options.bundle_bytes, operations=options.bundle_operations)
        simulators = {
            each.address: Simulator(lambda: chain.network, each.version, each.address, network.chain_id)
            for each in entry_points
        }
        validators = self._validators(network, chain, simulators, rules.reputation)
        data_fee = data_fee_of(network.data_fee, lambda: chain.network)
        maker = BundleMaker(pool, chain, validators, limits)
        lanes = Lanes(
            pool,
            chain,
            maker,
            self._database,
            self._leases,
            self._clock,
            signers=self._signers,
            market=lambda: self._standard(chain),
            options=_lane_options(network, options),
        )
        worker = BundlingWorker(
            pool,
            chain,
            lanes,
            self._leases,
            self._clock,
            entry_points=entry_points,
            signers=self._signers,
            on_this_chain=lambda: self._on_this_chain(name, chain),
            options=WorkerOptions(
                mode=options.mode,
                gather_seconds=options.gather_seconds,
                least_balance=options.least_balance_gwei * _GWEI,
                keep_seconds=options.keep_days * _DAY_SECONDS,
            ),
            metrics=self._metrics,
        )
        return NetworkBundler(
            name,
            network.chain_id,
            entry_points,
            pool=pool,
            chain=chain,
            validators=validators,
            estimators={
                address: GasEstimator(simulator, lambda: self._price(chain), data_fee=data_fee)
                for address, simulator in simulators.items()
            },
            data_fee=data_fee,
            worker=worker,
            clock=self._clock,
            options=NetworkOptions(
                bundle=limits,
                operation_bytes=options.operation_bytes,
                least_tip=options.least_tip_gwei * _GWEI,
                least_seconds=options.least_seconds,
                lookup_blocks=options.lookup_blocks,
            ),
            speeds=lambda: self._speeds(chain),
            debug=network.debug_bundler,
            # A process that sends none itself cannot know, and need not have the keys.
            unavailable="" if self._signers or not self._bundles else _NO_SIGNER,
        )

    def _validators(
        self,
        network: NetworkSettings,
        chain: BundlerChain,
        simulators: Mapping[bytes, Simulator],
        rules: ReputationRules,
    ) -> Mapping[bytes, Validator]:
        if network.bundler_unsafe:
            stakes = StakeRule(rules.min_stake, rules.min_unstake_delay)
            return {
                address: SimulationValidator(simulator, self._blocks, stakes)
                for address, simulator in simulators.items()
            }
        validation = NetworkValidation(
            chain.network,
            network.chain_id,
            blocks=self._blocks,
            reader=self._reader,
            workers=self._workers,
            clock=self._clock,
            rules=rules,
            context_bytes=self._settings.bundler.context_bytes,
        )
        if self._signers:
            task = asyncio.create_task(self._warm(validation), name=f"first worker of {chain.network.name}")
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)
        return {each.address: validation.validator(each.version, each.address) for each in _entry_points(network)}

    @staticmethod
    async def _warm(validation: NetworkValidation) -> None:
        # Nobody waits for it, and the first operation does what was not done.
        with contextlib.suppress(ApiError, ChainError):
            await validation.warm()

    def _consumer(self, name: str) -> InclusionConsumer:
        bundler = self._bundlers[name][1]
        addresses = frozenset(each.address for each in bundler.entry_points)
        return InclusionConsumer(bundler.pool.store, SlotStore(name), addresses, self._clock)

    @property
    def signers(self) -> list[bytes]:
        """The accounts that send bundles."""
        return [signer.address for signer in self._signers]

    # --- what the parts ask for

    async def _on_this_chain(self, name: str, chain: BundlerChain) -> bool:
        """Whether the stream has come to a block of the chain that the nodes have now."""
        query = select(cursors.c.number, cursors.c.hash).where(cursors.c.network == name, cursors.c.role == _ROLE)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            return False
        return bool((await chain.block(to_quantity(row.number))).ref.hash == row.hash)

    async def _speeds(self, chain: BundlerChain) -> Mapping[str, Fees]:
        estimates = (await self._prices.prices(chain.network)).estimates
        return {
            speed: Fees(_wei(estimate.max_fee_gwei), _wei(estimate.max_priority_fee_gwei))
            for speed, estimate in (
                ("slow", estimates.slow),
                ("standard", estimates.standard),
                ("fast", estimates.fast),
            )
        }

    async def _price(self, chain: BundlerChain) -> Price:
        head, fees = await asyncio.gather(chain.head(), self._standard(chain))
        return Price(head.base_fee, fees.max_fee, fees.max_priority_fee)

    async def _standard(self, chain: BundlerChain) -> Fees:
        return (await self._speeds(chain))["fast"]


def _entry_points(network: NetworkSettings) -> list[EntryPoint]:
    """The newest version first: that is the preferred one."""
    return [
        EntryPoint(parse_address(network.entry_points[version]), version)
        for version in NEWEST_FIRST
        if version in network.entry_points
    ]


def _rules(options: BundlerSettings) -> PoolRules:
    return PoolRules(
        limits=PoolLimits(most_operations=options.pool_operations, replacement_percent=options.replacement_percent),
        reputation=ReputationRules(
            min_stake=options.least_stake_gwei * _GWEI, min_unstake_delay=options.least_unstake_seconds
        ),
        never_limited=frozenset(map(parse_address, options.never_limited)),
        always_banned=frozenset(map(parse_address, options.always_banned)),
    )


def _lane_options(network: NetworkSettings, options: BundlerSettings) -> LaneOptions:
    return LaneOptions(
        chain_id=network.chain_id,
        eip1559=network.eip1559,
        beneficiary=parse_address(options.beneficiary) if options.beneficiary else None,
        stuck_blocks=options.stuck_blocks,
        bump_percent=options.bump_percent,
        least_tip=options.least_tip_gwei * _GWEI,
    )


def _wei(gwei: str) -> int:
    return parse_units(gwei, GWEI_DECIMALS)
