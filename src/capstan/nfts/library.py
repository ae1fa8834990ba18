"""The metadata documents of NFTs: from memory, from the table, or fetched.

Called by the NFT services. A document is fetched once and kept for a week; when its contract announces a change, it is
fetched again on the next question. A document that cannot be fetched is tried again later and later, and until then
there is none. Callers who want the same document share one fetch; a fetch goes on when its caller stops waiting.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.core.clock import Clock
from capstan.core.weighted import WeightedMemory
from capstan.index.models import Notice
from capstan.nfts.documents import with_id
from capstan.nfts.fetching import DocumentFetcher, FetchFailed
from capstan.nfts.models import Document, Standard
from capstan.nfts.store import NftStore, Stored, key_of
from capstan.storage.errors import StorageError

log = structlog.get_logger(__name__)

# What was read from the table is looked up there again after so long: another process, or the stream, may have changed
# it meanwhile.
_MEMORY_SECONDS = 10.0
_FETCHES_AT_ONCE = 32
_MOST_FETCHES = 2000


class LibraryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long documents and failures are kept."""

    document_seconds: float
    retry_seconds: float
    longest_retry_seconds: float
    memory_bytes: int


class Wanted(msgspec.Struct, frozen=True):
    """A document that is wanted: of an id, or with `token_id` None of the collection. The contract gave the URI."""

    contract: bytes
    token_id: int | None
    uri: str
    standard: Standard

    @property
    def placeholder(self) -> int | None:
        """The id that `{id}` stands for; ERC-1155 only."""
        return self.token_id if self.standard == "ERC1155" else None


_Key: TypeAlias = tuple[str, bytes, bytes]


class _Kept(msgspec.Struct, frozen=True):
    stored: Stored
    until: float


class Library:
    """Documents of all networks. `close` at the end."""

    def __init__(self, store: NftStore, fetcher: DocumentFetcher, clock: Clock, options: LibraryOptions) -> None:
        self._store = store
        self._fetcher = fetcher
        self._clock = clock
        self._options = options
        self._kept: WeightedMemory[_Key, _Kept] = WeightedMemory(options.memory_bytes)
        self._fetches: dict[_Key, asyncio.Task[Stored]] = {}
        # Fetches under way whose contract has announced a change since they began: they may bring what was before.
        self._outdated: set[_Key] = set()
        self._limit = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def document(self, network: str, wanted: Wanted) -> Document | None:
        """The document, fetched if need be; None when there is none to be had now."""
        return (await self.documents(network, [wanted], patience=None))[0]

    async def documents(
        self, network: str, wanted: Sequence[Wanted], *, patience: float | None
    ) -> list[Document | None]:
        """The documents in order. After `patience` seconds those that are still being fetched count as none."""
        found: list[Document | None] = [None] * len(wanted)
        remote: dict[int, Wanted] = {}
        for place, item in enumerate(wanted):
            inline, document = self._fetcher.inline(with_id(item.uri, item.placeholder), item.placeholder)
            if inline:
                found[place] = document
            else:
                remote[place] = item
        stored = await self._stored(network, remote.values())
        fetches: dict[int, asyncio.Task[Stored]] = {}
        for place, item in remote.items():
            key = _key(network, item)
            entry = stored.get(key)
            current = entry is not None and entry.uri == item.uri
            if entry is not None and current:
                found[place] = entry.document
                if self._clock.now() < entry.next_at:
                    continue
            fetch = self._fetch(key, item, entry)
            # One that is merely old is shown while it is fetched anew; one that is said to have changed is not.
            if fetch is not None and (found[place] is None or entry is None or entry.next_at == 0):
                fetches[place] = fetch
        if fetches:
            # Not cancelled when the time is over: the next caller will want it.
            await asyncio.wait(fetches.values(), timeout=patience)
        for place, fetch in fetches.items():
            if fetch.done() and not fetch.cancelled() and fetch.exception() is None:
                found[place] = fetch.result().document
        return found

    async def metadata_changed(self, connection: AsyncConnection, network: str, notices: Sequence[Notice]) -> None:
        """Contracts announced changes: note it in the given transaction."""
        await self._store.mark_changed(connection, network, notices)
        contracts = {notice.contract for notice in notices}
        for key in self._kept.keys():  # noqa: SIM118 - a list of its own, from which entries can be taken
            if key[0] == network and key[1] in contracts:
                self._kept.discard(key)
        self._outdated |= {key for key in self._fetches if key[0] == network and key[1] in contracts}

    async def close(self) -> None:
        """Stop the fetches under way."""
        fetches = tuple(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def _stored(self, network: str, wanted: Iterable[Wanted]) -> dict[_Key, Stored]:
        now = self._clock.monotonic()
        found: dict[_Key, Stored] = {}
        missing: list[_Key] = []
        for item in wanted:
            key = _key(network, item)
            kept = self._kept.get(key)
            if kept is not None and now < kept.until:
                found[key] = kept.stored
            else:
                missing.append(key)
        if missing:
            try:
                rows = await self._store.load(network, [(contract, token) for _, contract, token in missing])
            except StorageError as error:
                log.warning("nfts.store_failed", reason=str(error))
                rows = {}
            for (contract, token), stored in rows.items():
                found[network, contract, token] = stored
                self._keep((network, contract, token), stored)
        return found

    def _fetch(self, key: _Key, wanted: Wanted, entry: Stored | None) -> asyncio.Task[Stored] | None:
        fetch = self._fetches.get(key)
        if fetch is None:
            if len(self._fetches) >= _MOST_FETCHES:
                log.warning("nfts.too_many_fetches", fetches=len(self._fetches))
                return None
            fetch = asyncio.create_task(self._fetch_and_store(key, wanted, entry), name="NFT metadata")
            self._fetches[key] = fetch
            fetch.add_done_callback(lambda done: self._finish(key, done))
        return fetch

    def _finish(self, key: _Key, fetch: asyncio.Task[Stored]) -> None:
        self._fetches.pop(key, None)
        self._outdated.discard(key)
        if not fetch.cancelled() and (error := fetch.exception()) is not None:
            log.error("nfts.fetch_broke", reason=type(error).__name__, exc_info=error)

    async def _fetch_and_store(self, key: _Key, wanted: Wanted, entry: Stored | None) -> Stored:
        network, contract, token = key
        before = entry if entry is not None and entry.uri == wanted.uri else None
        async with self._limit:
            try:
                uri = with_id(wanted.uri, wanted.placeholder)
                document: Document | None = await self._fetcher.fetch(uri, wanted.placeholder)
                failures, pause = 0, self._options.document_seconds
            except FetchFailed as error:
                log.info("nfts.fetch_failed", contract=contract.hex(), token_id=wanted.token_id, reason=str(error))
                document = None if before is None else before.document
                failures = 1 if before is None else before.failures + 1
                pause = self._options.retry_seconds * 2 ** min(failures - 1, 40)
                pause = min(pause, self._options.longest_retry_seconds)
        next_at = 0.0 if key in self._outdated else self._clock.now() + pause
        stored = Stored(wanted.uri, document, failures, next_at)
        self._keep(key, stored)
        try:
            await self._store.save(network, contract, token, stored, entry)
        except StorageError as error:
            log.warning("nfts.store_failed", reason=str(error))
        return stored

    def _keep(self, key: _Key, stored: Stored) -> None:
        kept = _Kept(stored, self._clock.monotonic() + _MEMORY_SECONDS)
        self._kept.put(key, kept, _weight(stored))


def _weight(stored: Stored) -> int:
    """About the bytes that it takes in memory."""
    document = stored.document or Document()
    texts = (stored.uri, document.name, document.description, document.image, document.banner)
    traits = sum(len(trait.trait_type) + len(trait.value) + 200 for trait in document.traits)
    return 1000 + sum(len(text) for text in texts if text) + traits


def _key(network: str, wanted: Wanted) -> _Key:
    return network, wanted.contract, key_of(wanted.token_id)
