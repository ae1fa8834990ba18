"""Random chains, a scripted upstream and the parts of the index together, for the tests of history."""

from random import Random
from typing import Any

from capstan.chain.follower.models import Applied, Block
from capstan.core.clock import SystemClock
from capstan.index import events
from capstan.index.backfill import Backfill
from capstan.index.history import HistoryReader
from capstan.index.job import Source
from capstan.index.models import Subject, SubjectKind
from capstan.index.ranges import RangeLimit
from capstan.index.service import IndexedNetwork, TransferIndex
from capstan.index.subjects import SubjectState
from capstan.storage.database import Database
from tests.support.index_chain import (
    NETWORK,
    ZERO,
    Parts,
    address,
    batch,
    block,
    consecutive,
    erc20,
    erc721,
    event,
    single,
    word,
)
from tests.support.index_node import tools_for
from tests.support.index_pool import ScriptedPool

TOKEN, PUNKS, GAMES, COIN = address(20), address(721), address(1155), address(77)
PEOPLE = [address(number) for number in (1, 2, 3, 4)]
ANN = Subject(SubjectKind.HOLDER, PEOPLE[0])
WRAPPED = frozenset({COIN})


def random_chain(length: int, seed: int = 3, parent: str = "0x" + "00" * 32, first: int = 0) -> list[Block]:
    """Blocks with all kinds of transfers."""
    random = Random(seed)
    chain: list[Block] = []
    for number in range(first, first + length):
        one, other = random.choice([ZERO, *PEOPLE]), random.choice([ZERO, *PEOPLE])
        kinds: list[dict[str, Any]] = [
            erc20(TOKEN, one, other, random.randrange(9)),
            erc721(PUNKS, one, other, random.randrange(5)),
            single(GAMES, one, other, random.randrange(3), random.randrange(4)),
            batch(GAMES, one, other, [(random.randrange(3), 1), (7, 2)]),
            consecutive(PUNKS, one, other, random.randrange(5), 5),
            event(COIN, [events.DEPOSIT, "0x" + word(random.choice(PEOPLE))], word(5)),
            event(TOKEN, [events.TRANSFER, "0x" + word(one)], word(1)),
        ]
        parts = random.sample(kinds, random.randrange(4))
        chain.append(block(number, parent, parts, fork=seed))
        parent = chain[-1].hash
    return chain


def source_of(scripted: ScriptedPool, parts: Parts, settled: int | None = None) -> Source:
    reader = HistoryReader(NETWORK, lambda: scripted.pool, parts.metrics, wrapped=WRAPPED)
    return Source(reader, RangeLimit(SystemClock()), lambda: settled)


async def start_at(parts: Parts, chain: list[Block], *subjects: Subject) -> list[SubjectState]:
    """The stream begins with the last block; then these subjects are followed. Returns their states."""
    parts.chain = [chain[-1]]
    await parts.feed(Applied(chain[-1]))
    async with parts.database.write() as connection:
        network = await parts.subjects.lock(connection, NETWORK)
        return [await parts.subjects.register(connection, network, subject, 0) for subject in subjects]


async def by_stream(database: Database, chain: list[Block], *subjects: Subject) -> dict[str, list[tuple[Any, ...]]]:
    """What the index holds when the stream alone brought the chain."""
    parts = Parts(database, network="ethereum/whole", wrapped=WRAPPED)
    async with database.write() as connection:
        network = await parts.subjects.lock(connection, parts.network)
        for subject in subjects:
            await parts.subjects.register(connection, network, subject, 0)
        for item in chain:
            await parts.consumer.apply(connection, Applied(item))
    return await rows_of(parts, network.id)


async def rows_of(parts: Parts, network_id: int) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of one network, without its number, and without the time, which the past does not always tell."""
    found = await parts.rows()
    return {
        name: sorted((row[1:-1] if name == "transfers" else row[1:] for row in rows if row[0] == network_id), key=repr)
        for name, rows in found.items()
    }


class Served:
    """The whole index with a scripted upstream."""

    def __init__(
        self, parts: Parts, scripted: ScriptedPool, *, jobs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.source = source_of(scripted, parts, 10_000)
        self.network = IndexedNetwork(self.source, "on_demand")
        self.backfill = Backfill(tools_for(parts, **(jobs or {})), lambda: [self.source])
        self.needed: list[str] = []
        self.index = TransferIndex(
            parts.database,
            parts.subjects,
            parts.store,
            self.backfill,
            lambda: {NETWORK: self.network},
            SystemClock(),
            needed=self.needed.append,
            **{"wait_seconds": 20.0, **options},
        )
