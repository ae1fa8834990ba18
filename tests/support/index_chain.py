"""Scripted blocks with token events, and the parts of the index put together, for tests of the index."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Table, select

from capstan.chain.follower.models import Applied, Block, Delta, Log, Reverted
from capstan.core.clock import SystemClock
from capstan.index import events
from capstan.index.consumer import IndexConsumer, MetadataListener
from capstan.index.metrics import IndexMetrics
from capstan.index.store import IndexStore
from capstan.index.subjects import Subjects
from capstan.index.writer import TransferWriter
from capstan.storage.database import Database
from capstan.storage.schema import (
    index_coverage,
    nft_collections,
    nft_counts,
    nft_holdings,
    nft_ranges,
    token_holders,
    transfers,
)

NETWORK = "ethereum/devnet"
ZERO = bytes(20)
# Everything that follows from the transfers of the chain.
DERIVED: tuple[Table, ...] = (transfers, nft_holdings, nft_ranges, nft_counts, nft_collections, token_holders)


def address(number: int) -> bytes:
    """An address of its own for each number above zero."""
    return number.to_bytes(20)


def word(value: int | bytes) -> str:
    """32 bytes as hex digits."""
    return value.to_bytes(32).hex() if isinstance(value, int) else value.hex().rjust(64, "0")


def event(contract: bytes, topics: Sequence[str], data: str = "") -> dict[str, Any]:
    """The part of a log that does not depend on its block."""
    return {"address": "0x" + contract.hex(), "topics": list(topics), "data": "0x" + data}


def erc20(contract: bytes, sender: bytes, receiver: bytes, amount: int) -> dict[str, Any]:
    return event(contract, [events.TRANSFER, "0x" + word(sender), "0x" + word(receiver)], word(amount))


def erc721(contract: bytes, sender: bytes, receiver: bytes, token_id: int) -> dict[str, Any]:
    return event(contract, [events.TRANSFER, *("0x" + word(each) for each in (sender, receiver, token_id))])


def single(contract: bytes, sender: bytes, receiver: bytes, token_id: int, amount: int) -> dict[str, Any]:
    parties = ["0x" + word(each) for each in (address(99), sender, receiver)]
    return event(contract, [events.TRANSFER_SINGLE, *parties], word(token_id) + word(amount))


def batch(contract: bytes, sender: bytes, receiver: bytes, items: Sequence[tuple[int, int]]) -> dict[str, Any]:
    parties = ["0x" + word(each) for each in (address(99), sender, receiver)]
    ids = word(len(items)) + "".join(word(token_id) for token_id, _ in items)
    amounts = word(len(items)) + "".join(word(amount) for _, amount in items)
    data = word(64) + word(64 + len(ids) // 2) + ids + amounts
    return event(contract, [events.TRANSFER_BATCH, *parties], data)


def consecutive(contract: bytes, sender: bytes, receiver: bytes, first: int, last: int) -> dict[str, Any]:
    topics = [events.CONSECUTIVE_TRANSFER, *("0x" + word(each) for each in (first, sender, receiver))]
    return event(contract, topics, word(last))


def digest(*parts: object) -> str:
    return "0x" + hashlib.sha256(repr(parts).encode()).hexdigest()


def node_log(part: dict[str, Any], number: int, block_hash: str, index: int, **more: Any) -> dict[str, Any]:
    """A log as eth_getLogs tells it."""
    return {
        **part,
        "blockNumber": hex(number),
        "blockHash": block_hash,
        "transactionHash": digest("tx", block_hash, index),
        "transactionIndex": "0x0",
        "logIndex": hex(index),
        "removed": False,
        **more,
    }


def block(number: int, parent_hash: str, parts: Iterable[dict[str, Any]] = (), fork: object = "") -> Block:
    """A block with these events."""
    block_hash = digest("block", number, parent_hash, fork)
    logs = []
    for index, part in enumerate(parts):
        entry = node_log(part, number, block_hash, index)
        topics = tuple(entry["topics"])
        logs.append(Log(entry["address"], topics, index, entry["transactionHash"], msgspec.json.encode(entry)))
    return Block(number, block_hash, parent_hash, 1_700_000_000 + number, b"{}", None, None, tuple(logs))


def bare(applied: Block) -> Block:
    """The same block as the stream has it when it is reverted: without content."""
    return msgspec.structs.replace(applied, logs=None)


class Parts:
    """The index on one database, fed by hand."""

    def __init__(
        self,
        database: Database,
        *,
        network: str = NETWORK,
        wrapped: frozenset[bytes] = frozenset(),
        listener: MetadataListener | None = None,
    ) -> None:
        self.database = database
        self.network = network
        self.clock = SystemClock()
        self.metrics = IndexMetrics()
        self.subjects = Subjects(self.clock, sqlite_dialect=database.is_sqlite)
        self.writer = TransferWriter(sqlite=database.is_sqlite)
        self.store = IndexStore(database, self.subjects)
        self.consumer = IndexConsumer(
            network, self.subjects, self.writer, self.metrics, wrapped=wrapped, listener=listener
        )
        self.chain: list[Block] = []

    async def feed(self, *deltas: Delta) -> None:
        """Each delta in a transaction of its own, as the stream does it."""
        for delta in deltas:
            async with self.database.write() as connection:
                await self.consumer.apply(connection, delta)

    async def mine(self, *parts: dict[str, Any], fork: object = "") -> Block:
        """Apply the next block."""
        parent = self.chain[-1] if self.chain else None
        number, parent_hash = (parent.number + 1, parent.hash) if parent else (0, "0x" + "00" * 32)
        made = block(number, parent_hash, parts, fork)
        self.chain.append(made)
        await self.feed(Applied(made))
        return made

    async def revert(self, count: int = 1) -> None:
        """Take back the last blocks."""
        for _ in range(count):
            await self.feed(Reverted(bare(self.chain.pop())))

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that follows from the chain, in a fixed order."""
        return await table_rows(self.database, DERIVED)

    async def coverage_rows(self) -> list[tuple[Any, ...]]:
        return (await table_rows(self.database, (index_coverage,)))["index_coverage"]


async def table_rows(database: Database, tables: Iterable[Table]) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of some tables, sorted."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    async with database.read() as connection:
        for table in tables:
            rows = await connection.execute(select(table))
            found[table.name] = sorted((tuple(row) for row in rows), key=repr)
    return found
