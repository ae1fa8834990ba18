"""Builds the data services from the settings: prices, tokens, NFTs, and what they share.

Called by the composition root, of which it is a part: it names concrete classes and connects them. `open` also starts
the transfer index; without one the services still answer what contracts say, and tell that nothing is covered.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from decimal import Decimal

from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.answers.parameters import FindNetwork
from capstan.answers.transfers import transfer_route
from capstan.background import Background
from capstan.catalogue.networks import Network as Facts
from capstan.catalogue.networks import Networks
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.reader import StateReader
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.hexes import parse_address
from capstan.core.money import parse_price
from capstan.gateway import Gateway
from capstan.index.consumer import MetadataListener
from capstan.index.models import Notice
from capstan.indexing import DataIndex, IndexView
from capstan.nfts.fetching import DocumentFetcher, FetchOptions
from capstan.nfts.library import Library, LibraryOptions
from capstan.nfts.reading import NftReader
from capstan.nfts.routes import nft_routes
from capstan.nfts.service import NftService
from capstan.nfts.store import NftStore
from capstan.nfts.transfers import NFT_TRANSFERS
from capstan.nfts.uris import Gateways
from capstan.outbound.client import GuardedClient
from capstan.prices.feeds import ChainlinkFeeds
from capstan.prices.floor_http import HttpFloors
from capstan.prices.floors import FloorService, FloorSource
from capstan.prices.http import HttpPrices
from capstan.prices.listings import ListingFloors
from capstan.prices.models import NATIVE, PriceOptions, Token
from capstan.prices.pools import UniswapV2, UniswapV3
from capstan.prices.sales import SalesFloors
from capstan.prices.service import FixedPrices, PriceService
from capstan.prices.vaults import Vaults
from capstan.settings import Settings
from capstan.storage.database import Database
from capstan.stream.wanted import WantedStreams
from capstan.tokens.logos import load_logos
from capstan.tokens.metadata import TokenBook
from capstan.tokens.routes import token_routes
from capstan.tokens.service import TokenOptions, TokenService
from capstan.tokens.store import TokenStore
from capstan.tokens.transfers import TOKEN_TRANSFERS


class DataServices:
    """Prices, tokens and NFTs, connected."""

    def __init__(
        self,
        blocks: HeadBlocks,
        index: DataIndex,
        prices: PriceService,
        tokens: TokenService,
        nfts: NftService,
        listeners: Sequence[MetadataListener],
        floors: FloorService,
    ) -> None:
        self._index = index
        self.blocks = blocks
        self.prices = prices
        self.tokens = tokens
        self.nfts = nfts
        self.floors = floors
        # Whom the index tells that contracts announced changes.
        self._listeners = listeners
        self.background: Background | None = None

    @classmethod
    async def open(
        cls,
        settings: Settings,
        database: Database,
        gateway: Gateway,
        clock: Clock,
        metrics: CollectorRegistry,
        stack: AsyncExitStack,
        *,
        networks: Callable[[], Networks],
        wanted: WantedStreams,
    ) -> "DataServices":
        """Build the services and the index they read, and start following the chain; the stack ends all of it."""
        services = cls.build(settings, database, gateway.heads, clock, stack, networks=networks)
        services.background = await Background.open(
            settings, database, gateway, clock, metrics, stack, wanted=wanted, listener=services
        )
        services.use_index(services.background.index)
        return services

    async def apply(self, settings: Settings) -> None:
        """Take over reloaded settings, after the gateway has."""
        if self.background is not None:
            await self.background.apply(settings)

    @classmethod
    def build(
        cls,
        settings: Settings,
        database: Database,
        heads: LatestHeads,
        clock: Clock,
        stack: AsyncExitStack,
        *,
        networks: Callable[[], Networks],
    ) -> "DataServices":
        """Build the services; the stack closes them. `networks` is asked each time, because a reload replaces it."""

        def facts(network: Network) -> Facts:
            return networks().describe(network.spec.chain, network.spec.network)

        client = GuardedClient(allow_http=settings.development, allow_loopback=settings.development)
        stack.push_async_callback(client.close)
        reader = StateReader(lambda network: facts(network).multicall3)
        blocks = HeadBlocks(heads, clock)
        prices = _prices(settings, reader, client, clock, facts)
        known = DataIndex(blocks, clock)
        book = TokenBook(TokenStore(database), clock, seconds=settings.tokens.metadata_seconds)
        tokens = TokenService(
            blocks,
            reader,
            known,
            prices,
            book,
            load_logos(settings.tokens.token_lists),
            facts=facts,
            clock=clock,
            options=TokenOptions(most_tokens=settings.tokens.most_tokens, memory_bytes=settings.tokens.memory_bytes),
        )
        stack.push_async_callback(tokens.close)
        gateways = Gateways(settings.nfts.ipfs_gateways, settings.nfts.arweave_gateways)
        library = _library(settings, database, client, gateways, clock)
        stack.push_async_callback(library.close)
        floors = FloorService(_floor_sources(settings, reader, client), prices, facts, clock)
        stack.push_async_callback(floors.close)
        nfts = NftService(blocks, NftReader(reader, known), known, library, floors, gateways, clock)
        stack.push_async_callback(nfts.close)
        return cls(blocks, known, prices, tokens, nfts, (library, book), floors)

    def use_index(self, index: IndexView) -> None:
        """Take transfers from this index from now on. The index in turn tells of changed metadata."""
        self._index.use(index)

    async def metadata_changed(self, connection: AsyncConnection, network: str, notices: Sequence[Notice]) -> None:
        """See `MetadataListener`: all who keep metadata hear of it."""
        for listener in self._listeners:
            await listener.metadata_changed(connection, network, notices)

    def routes(self, find_network: FindNetwork) -> list[HTTPRouteHandler]:
        """The handlers of all data paths."""
        routes = [*token_routes(self.tokens, find_network), *nft_routes(self.nfts, find_network)]
        if self.background is not None:
            index = self.background.index
            routes += [transfer_route(index, view, find_network) for view in (TOKEN_TRANSFERS, NFT_TRANSFERS)]
        return routes


def _library(
    settings: Settings, database: Database, client: GuardedClient, gateways: Gateways, clock: Clock
) -> Library:
    nfts = settings.nfts
    fetcher = DocumentFetcher(
        client,
        gateways,
        FetchOptions(seconds=nfts.fetch_seconds, bytes=nfts.fetch_bytes, redirects=nfts.fetch_redirects),
    )
    options = LibraryOptions(
        document_seconds=nfts.metadata_seconds,
        retry_seconds=nfts.retry_seconds,
        longest_retry_seconds=nfts.longest_retry_seconds,
        memory_bytes=nfts.memory_bytes,
    )
    return Library(NftStore(database), fetcher, clock, options)


def _floor_sources(settings: Settings, reader: StateReader, client: GuardedClient) -> list[FloorSource]:
    """In the order in which they are asked: what can be bought, what was sold, what others say."""
    nfts = settings.nfts
    sources: list[FloorSource] = []
    if nfts.floor_listing_days:
        sources.append(ListingFloors(reader, days=nfts.floor_listing_days))
    if nfts.floor_receipts:
        sources.append(SalesFloors(receipts=nfts.floor_receipts))
    if nfts.floor_http_url:
        sources.append(HttpFloors(client, url=nfts.floor_http_url))
    return sources


def _prices(
    settings: Settings,
    reader: StateReader,
    client: GuardedClient,
    clock: Clock,
    facts: Callable[[Network], Facts],
) -> PriceService:
    chosen = settings.prices
    options = PriceOptions(
        sources=chosen.sources,
        feed_seconds=chosen.feed_seconds,
        window_seconds=chosen.window_seconds,
        least_liquidity_usd=Decimal(chosen.least_liquidity_usd),
        refresh_seconds=chosen.refresh_seconds,
        fixed=_fixed(chosen.fixed),
        trusted_vaults={
            network: frozenset(
                parse_address(address) for name, address in _split(chosen.trusted_vaults) if name == network
            )
            for network in {name for name, _ in _split(chosen.trusted_vaults)}
        },
    )
    sources = (
        FixedPrices(options),
        ChainlinkFeeds(reader, options),
        UniswapV3(reader, clock, options),
        UniswapV2(reader, clock, options),
        Vaults(reader, clock, options),
        HttpPrices(
            client,
            clock,
            url=chosen.http_url,
            longest_age=chosen.http_seconds,
            least_confidence=chosen.http_confidence,
        ),
    )
    return PriceService(sources, facts, clock, options)


def _fixed(prices: Mapping[str, str]) -> dict[str, dict[Token, Decimal]]:
    """The fixed prices by network and token."""
    found: dict[str, dict[Token, Decimal]] = {}
    for (network, address), price in zip(_split(prices), prices.values(), strict=True):
        token = NATIVE if address == "native" else parse_address(address)
        found.setdefault(network, {})[token] = parse_price(price)
    return found


def _split(names: Mapping[str, str] | tuple[str, ...]) -> list[tuple[str, str]]:
    """The network and the address of names such as `ethereum/mainnet:0x…`."""
    return [(network, address) for network, _, address in (name.partition(":") for name in names)]
