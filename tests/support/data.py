"""The data services in one process: on a real chain, with a real database, and an index that the test fills.

`data_services` gives prices, tokens and NFTs connected as the service connects them, but with an upstream that counts
the calls it passes on, and with an index in memory, so that a test can say which tokens an address may hold.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from capstan.catalogue.networks import Networks
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import Clock, SystemClock
from capstan.data import DataServices
from capstan.devnet.models import Deployment
from capstan.index.models import Collection, Coverage, Holding, HoldingPage, Standard
from capstan.settings import Settings, load_settings
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.wiring import network_specs
from tests.support.storage import migrate_new

# Far more than any answer takes, also on a slow machine; what has no bound would take for ever.
BOUNDED_SECONDS = 120.0


class MemoryIndex:
    """An index that holds what the test puts in. It covers everything up to `block`, by default far ahead."""

    def __init__(self) -> None:
        self.block: int | None = 10**9
        self.complete = True
        self.tokens: dict[bytes, list[bytes]] = {}
        self.holdings: list[Holding] = []
        self.followed: set[str] = set()

    def hold(self, contract: str, token_id: int, owner: str, *, standard: Standard, amount: int = 1) -> None:
        """Somebody holds an id."""
        self.holdings.append(Holding(_bytes(contract), token_id, standard, _bytes(owner), amount))

    def touch(self, holder: str, *contracts: str) -> None:
        """An address has moved these tokens."""
        self.tokens.setdefault(_bytes(holder), []).extend(map(_bytes, contracts))

    @property
    def coverage(self) -> Coverage:
        return Coverage(self.block, self.complete)

    def follow(self, network: str) -> None:
        self.followed.add(network)

    async def tokens_of(self, network: str, holder: bytes) -> tuple[tuple[bytes, ...], Coverage]:
        return tuple(self.tokens.get(holder, ())), self.coverage

    async def owned(self, network: str, holder: bytes, *, page: int, limit: int) -> HoldingPage:
        found = [item for item in self.holdings if item.owner == holder]
        found.sort(key=lambda item: (item.contract, item.token_id))
        return HoldingPage(tuple(found[(page - 1) * limit : page * limit]), len(found), self.coverage)

    async def collection(self, network: str, contract: bytes) -> tuple[Collection | None, Coverage]:
        found = [item for item in self.holdings if item.contract == contract]
        if not found:
            return None, self.coverage
        owners, ids = {item.owner for item in found}, {item.token_id for item in found}
        supply = sum(item.amount for item in found)
        return Collection(len(owners), len(ids), supply, tuple({item.standard for item in found})), self.coverage

    async def owners(self, network: str, contract: bytes, token_id: int, *, limit: int) -> HoldingPage:
        found = [item for item in self.holdings if (item.contract, item.token_id) == (contract, token_id)]
        return HoldingPage(tuple(found[:limit]), len(found), self.coverage)


class CountingRelay:
    """Passes calls on to a node and counts them by method. Heads that the tracker reads are counted apart."""

    def __init__(self, node_url: str) -> None:
        self._node_url = node_url
        self.calls: list[str] = []
        # Whether it answers with a failure of its own.
        self.broken = False
        self._server = TestServer(self._application())
        self._session: aiohttp.ClientSession | None = None

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_post("/", self._handle)
        return application

    @property
    def url(self) -> str:
        return str(self._server.make_url("/"))

    @property
    def reads(self) -> int:
        """The calls that read state."""
        return sum(method in ("eth_call", "eth_getCode") for method in self.calls)

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.broken:
            return web.Response(status=503)
        decoded = msgspec.json.decode(body)
        self.calls += [call["method"] for call in (decoded if isinstance(decoded, list) else [decoded])]
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._node_url, data=body, headers=headers) as answer:
            return web.Response(body=await answer.read(), content_type="application/json")

    async def __aenter__(self) -> "CountingRelay":
        self._session = aiohttp.ClientSession()
        await self._server.start_server(host="127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()
        assert self._session is not None
        await self._session.close()


class DataSetup(msgspec.Struct, frozen=True):
    """The services and what stands around them."""

    data: DataServices
    network: Network
    index: MemoryIndex
    relay: CountingRelay
    database: Database
    settings: Settings
    heads: LatestHeads

    async def balances(self, address: str, page: int = 1, limit: int = 50) -> dict[str, Any]:
        """The decoded list of balances."""
        return _decoded((await self.data.tokens.balances(self.network, address, page, limit)).body)

    async def token(self, contract: str) -> dict[str, Any]:
        """The decoded metadata of a token."""
        return _decoded((await self.data.tokens.metadata(self.network, contract)).body)

    async def nft(self, contract: str, token_id: int | str) -> dict[str, Any]:
        """The decoded metadata of an NFT."""
        return _decoded((await self.data.nfts.metadata(self.network, contract, str(token_id))).body)

    async def collection(self, contract: str) -> dict[str, Any]:
        """The decoded metadata of a collection."""
        return _decoded((await self.data.nfts.collection(self.network, contract)).body)

    async def owned(self, address: str, page: int = 1, limit: int = 50) -> dict[str, Any]:
        """The decoded list of NFTs."""
        return _decoded((await self.data.nfts.owned(self.network, address, page, limit)).body)

    async def head_known(self) -> None:
        """Wait until the head is followed, so that reading it costs no call."""
        async with asyncio.timeout(60):
            await self.heads.renew(self.network)
            while self.heads.head(self.network) is None:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def data_services(
    node_url: str,
    deployment: Deployment,
    directory: Path,
    *,
    settings: Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[DataSetup]:
    """The services on `ethereum/devnet`. Production mode, so that the head is followed, unless the settings differ."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(CountingRelay(node_url))
        chosen = load_settings(
            None,
            {},
            {
                "nfts.ipfs_gateways": [],
                "nfts.arweave_gateways": [],
                **network_settings(deployment, relay.url),
                **(settings or {}),
            },
        )
        database = Database(DatabaseOptions(url=sqlite_url(directory / "data.db")))
        stack.push_async_callback(database.close)
        await migrate_new(database)
        registry = ChainRegistry(open_session(), clock)
        stack.push_async_callback(registry.close)
        registry.replace(network_specs(chosen))
        heads = LatestHeads(clock)
        stack.push_async_callback(heads.close)
        heads.sync(registry.networks())
        networks: Networks = chosen.catalogue()
        data = DataServices.build(chosen, database, heads, clock, stack, networks=lambda: networks)
        index = MemoryIndex()
        data.use_index(index)
        yield DataSetup(data, registry.networks()[0], index, relay, database, chosen, heads)


def network_settings(deployment: Deployment, url: str) -> dict[str, object]:
    """The development chain as the settings of `ethereum/devnet`."""
    native = next(feed.address for feed in deployment.price_feeds if feed.token is None)
    values: dict[str, object] = {
        "upstreams": [url],
        "multicall3": deployment.multicall3,
        "native_usd_feed": native,
        "price_feeds": {feed.token: feed.address for feed in deployment.price_feeds if feed.token is not None},
        "block_time_ms": 1000,
    }
    return {f"networks.ethereum/devnet.{key}": value for key, value in values.items()}


def _decoded(body: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(body)
    return decoded


def _bytes(address: str) -> bytes:
    return bytes.fromhex(address[2:])
