"""What travels between the processes of a cluster, and how it is written.

Entries of the Redis streams, and blocks by their hash. Written as MessagePack; a program that reads something else, of
another version say, ignores it. Nothing here does input or output.
"""

from typing import TypeAlias

import msgspec
from msgspec import Raw

from capstan.chain.follower.models import Block, Demand, Log
from capstan.chain.heads.headers import Header


class ShareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of sharing. The defaults suit every cluster."""

    # A leader that has not been heard of for so long has lost the lead.
    lease_seconds: float = 2.0
    # How often the lease is renewed, or looked at.
    tick_seconds: float = 0.5
    # Entries kept in the stream of a network, and in that of its pending transactions.
    entries: int = 1_024
    pending_entries: int = 4_096
    # Entries that may wait to be written; beyond, the oldest are dropped.
    queued: int = 4_096
    # How long one waits for a block that a colleague is fetching before one fetches it too.
    wait_seconds: float = 2.0
    # How long a block can be had from Redis, and the largest that is put there.
    block_seconds: float = 60.0
    block_bytes: int = 16 * 1024 * 1024
    # Blocks below the head that are shared; older ones are read by whoever needs them.
    block_depth: int = 64
    # One command; reading waits for news for `read_seconds` besides.
    command_seconds: float = 0.5
    read_seconds: float = 1.0
    # After a failure Redis is left alone for so long.
    rest_seconds: float = 1.0


class Report(msgspec.Struct, frozen=True, tag="report", array_like=True):
    """An upstream had this head. `way` are the headers between the leader's chain and that, lowest first."""

    # The fencing token of the leader that says so.
    token: int
    upstream: str
    header: Header
    way: tuple[Header, ...]
    # When the upstream was asked, on the clock of the Redis server.
    asked_at: float


class Finality(msgspec.Struct, frozen=True, tag="final", array_like=True):
    """What the leader knows to be final and safe."""

    token: int
    finalized: int
    hash: str | None
    safe: int | None


class Stored(msgspec.Struct, frozen=True, tag="stored", array_like=True):
    """The block with this hash can be had now, or whoever was fetching it has given up."""

    hash: str


class Pending(msgspec.Struct, frozen=True, tag="pending", array_like=True):
    """A transaction that is not in a block yet; `full` says for whom it is meant: those who want whole ones."""

    token: int
    hash: str
    transaction: bytes | None
    full: bool


Entry: TypeAlias = Report | Finality | Stored | Pending

_ENTRY: msgspec.msgpack.Decoder[Report | Finality | Stored | Pending] = msgspec.msgpack.Decoder(
    Report | Finality | Stored | Pending
)


class _StoredBlock(msgspec.Struct, array_like=True):
    demand: int
    number: int
    hash: str
    parent_hash: str
    timestamp: int
    header: bytes
    transactions: tuple[bytes, ...] | None
    receipts: tuple[bytes, ...] | None
    logs: tuple[Log, ...] | None


_BLOCK = msgspec.msgpack.Decoder(_StoredBlock)


def write_entry(entry: Entry) -> bytes:
    """The entry as it travels."""
    return msgspec.msgpack.encode(entry)


def read_entry(data: bytes) -> Entry | None:
    """The entry, or None when it is nothing that we know."""
    try:
        return _ENTRY.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_block(block: Block, demand: Demand) -> bytes:
    """The block, behind one digit that says how much of it there is."""
    stored = _StoredBlock(
        demand=demand,
        number=block.number,
        hash=block.hash,
        parent_hash=block.parent_hash,
        timestamp=block.timestamp,
        header=block.header,
        transactions=_bytes(block.transactions),
        receipts=_bytes(block.receipts),
        logs=block.logs,
    )
    return b"%d" % demand + msgspec.msgpack.encode(stored)


def read_block(data: bytes, number: int, block_hash: str, demand: Demand) -> Block | None:
    """The block that was asked for, or None when this is something else or less."""
    try:
        stored = _BLOCK.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if (stored.number, stored.hash) != (number, block_hash) or stored.demand < demand:
        return None
    return Block(
        number=stored.number,
        hash=stored.hash,
        parent_hash=stored.parent_hash,
        timestamp=stored.timestamp,
        header=stored.header,
        transactions=_raws(stored.transactions),
        receipts=_raws(stored.receipts),
        logs=stored.logs,
    )


def _bytes(items: tuple[Raw, ...] | None) -> tuple[bytes, ...] | None:
    return None if items is None else tuple(bytes(item) for item in items)


def _raws(items: tuple[bytes, ...] | None) -> tuple[Raw, ...] | None:
    return None if items is None else tuple(Raw(item) for item in items)
