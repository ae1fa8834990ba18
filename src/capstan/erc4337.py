"""Builds what concerns ERC-4337 from its parts: the smart wallets, and the streams in which their deployment is seen.

Called by the composition root, of which it is a part: it names concrete classes and connects them, and decides nothing
about requests.
"""

from contextlib import AsyncExitStack

from capstan.access.models import Caller
from capstan.access.plans import PlanBook
from capstan.access.reach import NetworkReach
from capstan.catalogue.networks import Network as NetworkFacts
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.reader import StateReader
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.ids import new_id
from capstan.gateway import Gateway
from capstan.settings import LiveSettings, Settings
from capstan.storage.database import Database
from capstan.stream.durable import DurableOptions
from capstan.stream.lease import LeaseStore
from capstan.stream.streams import DurableStreams
from capstan.stream.wanted import WantedStreams
from capstan.wallets.chain import WalletChain
from capstan.wallets.service import Reach, WalletService
from capstan.wallets.store import WalletStore
from capstan.wallets.worker import WalletConsumer

_ROLE = "wallets"


class WalletStreams:
    """Follows the networks on which there are wallets; of one without any, no block is fetched."""

    def __init__(self, database: Database, gateway: Gateway, clock: Clock) -> None:
        self._networks: set[str] = set()
        self._streams = DurableStreams(
            gateway.followers,
            database,
            LeaseStore(database, new_id("proc"), clock),
            lambda network: [WalletConsumer(network)],
            clock,
            options_of=lambda _network: DurableOptions(role=_ROLE),
            metrics=gateway.stream_metrics,
        )

    def follow(self, network: str, _first: int | None = None) -> None:
        """There is a wallet on this network. The service itself sees what happened before the stream began."""
        if network not in self._networks:
            self._networks.add(network)
            self.sync()

    def sync(self) -> None:
        """Take over the networks that are served now."""
        self._streams.sync(self._networks)

    async def close(self) -> None:
        """Stop following."""
        await self._streams.close()


async def open_wallets(
    live: LiveSettings,
    database: Database,
    gateway: Gateway,
    clock: Clock,
    reach: NetworkReach,
    plans: PlanBook,
    wanted: WantedStreams,
    stack: AsyncExitStack,
) -> WalletService:
    """The wallet service, started; the stack stops it. To be called when the gateway hears of reloads already."""

    def resolve(caller: Caller, chain: str, network: str | None) -> tuple[Network, NetworkFacts]:
        found = reach.of_chain(caller, chain, network)
        return gateway.registry.get(found.chain, found.network), found

    def limit(caller: Caller) -> int:
        return plans.effective(caller.plan, caller.overrides).wallets or 0

    def reloaded(_old: Settings, _new: Settings) -> None:
        streams.sync()

    async def needed(network: str) -> None:
        await wanted.want(network, _ROLE)

    store, streams = WalletStore(database), WalletStreams(database, gateway, clock)
    # Wallets are read one call at a time, so Multicall3 is of no use to them.
    chain = WalletChain(HeadBlocks(gateway.heads, clock), StateReader(lambda _network: ""))
    service = WalletService(
        store, chain, clock, reach=Reach(resolve=resolve, names=reach.names), limit=limit, needed=needed
    )
    stack.push_async_callback(service.close)
    stack.push_async_callback(streams.close)
    wanted.register(_ROLE, streams.follow)
    for network in await store.networks():
        # Known since before needs were written down.
        await wanted.want(network, _ROLE)
    live.on_change(reloaded)
    return service
