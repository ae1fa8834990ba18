"""The transfer index as the capabilities see it: ask about an address or a contract, get rows and how far they reach.

Called by the token and NFT services; made by the composition root. On a network that is indexed in full every answer is
there. On a network that is indexed on demand the first question about a holder or a contract makes it a subject: its
history is fetched, and the stream keeps it current from then on. A question waits a short time for that, and is then
answered with what is there and `complete` false in its coverage.

Addresses and ids are bytes and integers here. ERC-20 balances are not: transfers only tell which tokens to ask about.
An address that holds only tokens whose events have no topics (CryptoKitties) is not found on demand by its holder,
because nodes cannot search for it; ask about the contract, or index the network in full.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import structlog

from capstan.core.clock import Clock
from capstan.core.errors import NotFound
from capstan.index.backfill import Backfill
from capstan.index.job import Source
from capstan.index.models import (
    EVERYTHING,
    ZERO_ADDRESS,
    Collection,
    Coverage,
    Holding,
    HoldingPage,
    Subject,
    SubjectKind,
    TransferPage,
)
from capstan.index.store import IndexStore
from capstan.index.subjects import Subjects, SubjectState
from capstan.index.times import with_times
from capstan.storage.database import Database

log = structlog.get_logger(__name__)

Mode = Literal["full", "on_demand"]

_POLL_SECONDS = 0.05
# After a wait in vain, questions about the same subject are answered at once for so long.
_PATIENCE_SECONDS = 30.0
# A contract that turned out not to have NFTs is not looked at again for so long.
_GONE_SECONDS = 3_600.0
_MOST_GONE = 10_000


class IndexedNetwork(msgspec.Struct, frozen=True):
    """A network of the index, as it is configured."""

    source: Source
    mode: Mode
    # Where history begins.
    first_block: int = 0

    @property
    def name(self) -> str:
        """`chain/network`."""
        return self.source.network


class TransferIndex:
    """The index of all networks."""

    def __init__(
        self,
        database: Database,
        subjects: Subjects,
        store: IndexStore,
        backfill: Backfill,
        networks: Callable[[], Mapping[str, IndexedNetwork]],
        clock: Clock,
        *,
        wait_seconds: float = 2.0,
        most_subjects: int = 100_000,
        needed: Callable[[str], None] = lambda _network: None,
    ) -> None:
        """`networks` are those that are indexed now, by name; `most_subjects` bounds what questions can begin.

        `needed` is called when the stream of a network must run from now on, because something is followed.
        """
        self._database = database
        self._subjects = subjects
        self._store = store
        self._backfill = backfill
        self._networks = networks
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._most_subjects = most_subjects
        self._needed = needed
        self._slow: dict[int, float] = {}
        self._gone: dict[tuple[str, Subject], float] = {}

    async def prepare(self) -> None:
        """Follow everything where a network is indexed in full, and no longer where it is not. At start and reload."""
        for network in self._networks().values():
            async with self._database.write() as connection:
                state = await self._subjects.lock(connection, network.name)
                if network.mode == "full":
                    await self._subjects.register(connection, state, EVERYTHING, network.first_block)
                elif (found := await self._subjects.find(connection, state.id, EVERYTHING)) is not None:
                    await self._subjects.forget(connection, found.id)
                count = await self._subjects.count(connection, state.id)
            if count:
                self._needed(network.name)

    # --- questions

    async def transfers(
        self,
        network: str,
        address: bytes,
        *,
        nft: bool,
        first_block: int | None = None,
        last_block: int | None = None,
        page: int = 1,
        limit: int = 50,
    ) -> TransferPage:
        """Transfers from and to an address, newest first: of NFTs, or of ERC-20 tokens.

        Pages stay as they are while blocks arrive if `last_block` is that of the first page's coverage.
        """
        subject = await self._ensure(network, Subject(SubjectKind.HOLDER, address))
        found = await self._store.transfers(
            network,
            subject,
            nft=nft,
            first_block=first_block,
            last_block=last_block,
            limit=limit,
            offset=(page - 1) * limit,
        )
        timed = await with_times(self._network(network).source.reader, found.transfers)
        return msgspec.structs.replace(found, transfers=timed)

    async def tokens_of(self, network: str, holder: bytes) -> tuple[tuple[bytes, ...], Coverage]:
        """The ERC-20 contracts that an address ever sent or received: those to ask for a balance."""
        subject = await self._ensure(network, Subject(SubjectKind.HOLDER, holder))
        contracts, coverage = await self._store.tokens_of(network, subject)
        return contracts, _known(coverage, holder)

    async def owned(self, network: str, holder: bytes, *, page: int = 1, limit: int = 50) -> HoldingPage:
        """The NFTs that an address holds, by contract and id."""
        subject = await self._ensure(network, Subject(SubjectKind.HOLDER, holder))
        found = await self._store.owned(network, subject, limit=limit, offset=(page - 1) * limit)
        return msgspec.structs.replace(found, coverage=_known(found.coverage, holder))

    async def collection(self, network: str, contract: bytes) -> tuple[Collection | None, Coverage]:
        """Owners, ids and supply of an NFT contract; None when no NFT transfer of it was seen."""
        subject = await self._ensure(network, Subject(SubjectKind.CONTRACT, contract))
        return await self._store.collection(network, subject)

    async def owners(self, network: str, contract: bytes, token_id: int, *, limit: int = 100) -> HoldingPage:
        """Who holds an id of a contract, and how much of it. `total` counts all holders."""
        subject = await self._ensure(network, Subject(SubjectKind.CONTRACT, contract))
        return await self._store.owners(network, subject, token_id, limit=limit)

    async def owner(self, network: str, contract: bytes, token_id: int) -> tuple[Holding | None, Coverage]:
        """The one holder of an id; None when there is none or more than one."""
        found = await self.owners(network, contract, token_id, limit=1)
        return (found.holdings[0] if found.total == 1 else None), found.coverage

    async def coverage(self, network: str, subject: Subject) -> Coverage:
        """How far the index reaches for a subject. Does not make it one."""
        self._network(network)
        return await self._store.coverage(network, subject)

    # --- following

    def follow(self, network: str) -> None:
        """Run the stream of a network from now on, also while nothing of it is indexed: for notices of metadata."""
        if network in self._networks():
            self._needed(network)

    def _network(self, name: str) -> IndexedNetwork:
        network = self._networks().get(name)
        if network is None:
            raise NotFound(f"transfers of {name} are not indexed on this server")
        return network

    async def _ensure(self, name: str, subject: Subject) -> Subject:
        """Make the history of a subject be there, as far as a short wait allows."""
        network = self._network(name)
        wanted = EVERYTHING if network.mode == "full" else subject
        if wanted.address == ZERO_ADDRESS:
            # It is a party to every mint and burn of the network.
            return subject
        if self._clock.monotonic() < self._gone.get((name, wanted), 0.0):
            return subject
        state = await self._find(name, wanted)
        if state is None and wanted is not EVERYTHING:
            state = await self._register(network, wanted)
        if state is not None and not state.complete:
            await self._wait(network, wanted, state)
        return subject

    async def _find(self, name: str, subject: Subject) -> SubjectState | None:
        async with self._database.read() as connection:
            network = await self._subjects.find_network(connection, name)
            return None if network is None else await self._subjects.find(connection, network.id, subject)

    async def _register(self, network: IndexedNetwork, subject: Subject) -> SubjectState:
        async with self._database.write() as connection:
            state = await self._subjects.lock(connection, network.name)
            if await self._subjects.count(connection, state.id) >= self._most_subjects:
                # Whoever asks about the one that is left out has it fetched again.
                log.warning("index.too_many_subjects", network=network.name, most=self._most_subjects)
                await self._subjects.forget_oldest(connection, state.id)
            registered = await self._subjects.register(connection, state, subject, network.first_block)
        self._needed(network.name)
        return registered

    async def _wait(self, network: IndexedNetwork, subject: Subject, state: SubjectState) -> None:
        """Wait for the history, which this process fetches, or another, or which has no end yet."""
        self._needed(network.name)
        now = self._clock.monotonic()
        if now < self._slow.get(state.id, 0.0):
            # It was waited for in vain a moment ago.
            self._backfill.fetch(network.source, state)
            return
        deadline = now + self._wait_seconds
        while (left := deadline - self._clock.monotonic()) > 0:
            self._backfill.fetch(network.source, state)
            await self._backfill.wait(state.id, left)
            found = await self._find(network.name, subject)
            if found is None:
                self._give_up(network.name, subject)
            if found is None or found.complete:
                return
            state = found
            await asyncio.sleep(_POLL_SECONDS)
        self._slow = {each: until for each, until in self._slow.items() if until > now}
        self._slow[state.id] = deadline + _PATIENCE_SECONDS
        log.info("index.answered_early", network=network.name, subject=str(subject))

    def _give_up(self, network: str, subject: Subject) -> None:
        """The history was not worth fetching; see `job`."""
        while len(self._gone) >= _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._gone[(network, subject)] = self._clock.monotonic() + _GONE_SECONDS


def _known(coverage: Coverage, holder: bytes) -> Coverage:
    """The zero address is a party to every mint and burn; what it holds besides is not kept, and not claimed."""
    return coverage if holder != ZERO_ADDRESS else Coverage(coverage.block, False)
