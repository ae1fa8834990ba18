"""What the tables of token and NFT metadata must do, on both databases."""

import asyncio
from datetime import UTC, datetime

import pytest

from capstan.core.clock import ManualClock
from capstan.index.models import Notice, NoticeKind
from capstan.nfts.fetching import DocumentFetcher, FetchOptions
from capstan.nfts.library import Library, LibraryOptions, Wanted
from capstan.nfts.models import Document, Trait
from capstan.nfts.store import NftStore, Stored, key_of
from capstan.nfts.uris import Gateways
from capstan.outbound.client import GuardedClient
from capstan.storage.database import Database
from capstan.tokens.metadata import TokenBook
from capstan.tokens.models import TokenFacts
from capstan.tokens.store import TokenStore
from tests.support.web import MetadataServer

NETWORK = "ethereum/devnet"
ONE, TWO = b"\x01" * 20, b"\x02" * 20
DOCUMENT = Document(name="One", image="ipfs://x", traits=(Trait("A", "b"),))
MOST = 2**256 - 1


async def test_token_metadata_is_kept_and_replaced(database: Database) -> None:
    store = TokenStore(database)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    since = moment.timestamp()
    await store.save(NETWORK, {ONE: TokenFacts("One", "1", 18), TWO: TokenFacts(None, None, None)}, moment=moment)
    await store.save(NETWORK, {ONE: TokenFacts("Uno \U0001f600", "U", 6)}, moment=moment)
    found = await store.load(NETWORK, [ONE, TWO, b"\x03" * 20], read_since=since)
    assert found == {ONE: TokenFacts("Uno \U0001f600", "U", 6), TWO: TokenFacts(None, None, None)}
    assert await store.load(NETWORK, [ONE], read_since=since + 1) == {}
    assert await store.load("polygon/mainnet", [ONE], read_since=since) == {}


async def test_many_tokens_are_loaded_at_once(database: Database) -> None:
    store = TokenStore(database)
    many = {number.to_bytes(20, "big"): TokenFacts(str(number), None, 18) for number in range(2500)}
    await store.save(NETWORK, many, moment=datetime(2026, 1, 1, tzinfo=UTC))
    assert await store.load(NETWORK, many, read_since=0) == many


async def test_documents_are_kept_and_replaced(database: Database) -> None:
    store = NftStore(database)
    await store.save(NETWORK, ONE, key_of(7), Stored("uri", None, 1, 100.0))
    await store.save(NETWORK, ONE, key_of(7), Stored("uri\0 2", DOCUMENT, 0, 200.5))
    await store.save(NETWORK, ONE, key_of(None), Stored("collection", DOCUMENT, 0, 300.0))
    found = await store.load(NETWORK, [(ONE, key_of(7)), (ONE, key_of(None)), (TWO, key_of(7))])
    assert found == {
        (ONE, key_of(7)): Stored("uri 2", DOCUMENT, 0, 200.5),
        (ONE, key_of(None)): Stored("collection", DOCUMENT, 0, 300.0),
    }


@pytest.mark.parametrize(
    ("first", "last", "changed"),
    [(7, 7, {7}), (0, MOST, {0, 7, 8, 255, 256, MOST}), (8, 255, {8, 255}), (256, MOST, {256, MOST}), (9, 9, set())],
)
async def test_notice_marks_its_range_and_no_more(database: Database, first: int, last: int, changed: set[int]) -> None:
    store = NftStore(database)
    ids = (0, 7, 8, 255, 256, MOST)
    for contract in (ONE, TWO):
        for token_id in ids:
            await store.save(NETWORK, contract, key_of(token_id), Stored("uri", DOCUMENT, 3, 100.0))
    async with database.write() as connection:
        await store.mark_changed(connection, NETWORK, [Notice(ONE, first, last)])
    found = await store.load(NETWORK, [(contract, key_of(token_id)) for contract in (ONE, TWO) for token_id in ids])
    marked = {int.from_bytes(token, "big") for (contract, token), row in found.items() if row.next_at == 0}
    assert marked == changed
    assert all(row.next_at == 100.0 for (contract, _), row in found.items() if contract == TWO)


class Shelf:
    """A library on a real web server, with a clock that moves when told."""

    def __init__(self, database: Database, server: MetadataServer, client: GuardedClient) -> None:
        self.clock = ManualClock()
        self.database = database
        self.server = server
        fetcher = DocumentFetcher(client, Gateways((), ()), FetchOptions(seconds=5, bytes=10_000, redirects=1))
        options = LibraryOptions(document_seconds=1000, retry_seconds=10, longest_retry_seconds=60, memory_bytes=10**6)
        self.library = Library(NftStore(database), fetcher, self.clock, options)

    async def name(self, path: str = "/1", token_id: int = 1) -> str | None:
        """The name in the document of a token."""
        wanted = Wanted(ONE, token_id, self.server.url + path, "ERC721")
        found = await self.library.document(NETWORK, wanted)
        return None if found is None else found.name

    async def announce(self, first: int = 0, last: int = 0, kind: NoticeKind = NoticeKind.IDS) -> None:
        """The contract says that something changed."""
        async with self.database.write() as connection:
            await self.library.metadata_changed(connection, NETWORK, [Notice(ONE, first, last, kind)])


@pytest.fixture
async def shelf(database: Database) -> object:
    async with MetadataServer() as server:
        client = GuardedClient(allow_http=True, allow_loopback=True)
        found = Shelf(database, server, client)
        yield found
        await found.library.close()
        await client.close()


async def test_document_is_fetched_once_and_again_when_it_changed(shelf: Shelf) -> None:
    shelf.server.documents["/1"] = {"name": "before"}
    assert [await shelf.name() for _ in range(3)] == ["before"] * 3
    shelf.server.documents["/1"] = {"name": "after"}
    shelf.clock.advance(11)
    assert await shelf.name() == "before", "nobody said that it changed"
    await shelf.announce(2, 5)
    assert await shelf.name() == "before", "others changed"
    await shelf.announce(0, MOST)
    assert await shelf.name() == "after"
    assert shelf.server.asked == ["/1", "/1"]


@pytest.mark.parametrize("kind", [NoticeKind.CODE, NoticeKind.COLLECTION])
async def test_notice_of_a_contract_is_about_its_collection(shelf: Shelf, kind: NoticeKind) -> None:
    shelf.server.documents |= {"/1": {"name": "before"}, "/all": {"name": "all before"}}
    whole = Wanted(ONE, None, shelf.server.url + "/all", "ERC721")
    await shelf.library.documents(NETWORK, [whole], patience=None)
    assert await shelf.name() == "before"
    shelf.server.documents |= {"/1": {"name": "after"}, "/all": {"name": "all after"}}
    await shelf.announce(kind=kind)
    found = await shelf.library.document(NETWORK, whole)
    assert found is not None
    assert found.name == "all after"
    assert await shelf.name() == ("after" if kind is NoticeKind.CODE else "before")


async def test_change_announced_during_a_fetch_is_not_lost(shelf: Shelf) -> None:
    """What is under way may be what was there before the change."""
    shelf.server.documents["/1"] = {"name": "before"}
    shelf.server.gate.clear()
    fetching = asyncio.create_task(shelf.name())
    async with asyncio.timeout(30):
        while not shelf.server.asked:
            await asyncio.sleep(0.01)
    await shelf.announce(1, 1)
    shelf.server.gate.set()
    assert await fetching == "before"
    shelf.server.documents["/1"] = {"name": "after"}
    assert await shelf.name() == "after"


async def test_change_that_another_process_noted_during_a_fetch_is_not_lost(database: Database) -> None:
    store = NftStore(database)
    seen = Stored("uri", DOCUMENT, 0, 100.0)
    await store.save(NETWORK, ONE, key_of(1), seen)
    async with database.write() as connection:
        await store.mark_changed(connection, NETWORK, [Notice(ONE, 1, 1)])
    await store.save(NETWORK, ONE, key_of(1), Stored("uri", DOCUMENT, 0, 900.0), seen)
    assert (await store.load(NETWORK, [(ONE, key_of(1))]))[ONE, key_of(1)].next_at == 0
    await store.save(NETWORK, ONE, key_of(1), Stored("uri", DOCUMENT, 0, 900.0), Stored("uri", DOCUMENT, 0, 0))
    assert (await store.load(NETWORK, [(ONE, key_of(1))]))[ONE, key_of(1)].next_at == 900


async def test_upgraded_tokens_are_forgotten(database: Database) -> None:
    store = TokenStore(database)
    facts = {ONE: TokenFacts("One", "1", 18), TWO: TokenFacts("Two", "2", 18)}
    await store.save(NETWORK, facts, moment=datetime(2026, 1, 1, tzinfo=UTC))
    await store.save("polygon/mainnet", facts, moment=datetime(2026, 1, 1, tzinfo=UTC))
    book = TokenBook(store, ManualClock(), seconds=10)
    async with database.write() as connection:
        await book.metadata_changed(connection, NETWORK, [Notice(ONE, kind=NoticeKind.CODE), Notice(TWO, 0, MOST)])
    assert await store.load(NETWORK, [ONE, TWO], read_since=0) == {TWO: facts[TWO]}
    assert await store.load("polygon/mainnet", [ONE, TWO], read_since=0) == facts


async def test_changed_uri_is_fetched_at_once(shelf: Shelf) -> None:
    shelf.server.documents |= {"/1": {"name": "hidden"}, "/2": {"name": "revealed"}}
    assert await shelf.name("/1") == "hidden"
    assert await shelf.name("/2") == "revealed"
    assert await shelf.name("/gone") is None, "what the old address said does not count"


async def test_failures_are_retried_later_and_later(shelf: Shelf) -> None:
    pauses = (10, 20, 40, 60, 60)
    for count, pause in enumerate(pauses, start=1):
        assert await shelf.name() is None
        assert len(shelf.server.asked) == count
        shelf.clock.advance(pause - 1)
        assert await shelf.name() is None
        assert len(shelf.server.asked) == count, "too early to ask again"
        shelf.clock.advance(2)
    shelf.server.documents["/1"] = {"name": "late"}
    assert await shelf.name() == "late"


async def test_old_document_stays_while_it_cannot_be_fetched_anew(shelf: Shelf) -> None:
    shelf.server.documents["/1"] = {"name": "kept"}
    assert await shelf.name() == "kept"
    del shelf.server.documents["/1"]
    await shelf.announce(1, 1)
    shelf.clock.advance(11)
    assert await shelf.name() == "kept"
    assert len(shelf.server.asked) == 2
