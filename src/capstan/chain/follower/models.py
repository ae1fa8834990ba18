"""What the canonical stream is made of: blocks with their content, and the two things that can happen to one.

Made by the follower, read by everything that reacts to the chain. Plain values; nothing here does input or output.
"""

import enum
from typing import TypeAlias

import msgspec
from msgspec import Raw


class Demand(enum.IntEnum):
    """How much of each block somebody needs. The follower fetches the most that anybody demands, and no more."""

    HEADERS = 1
    LOGS = 2
    # Transactions and receipts too.
    FULL = 3


class Log(msgspec.Struct, frozen=True, gc=False):
    """One event of a contract."""

    # With 0x, lower case.
    address: str
    topics: tuple[str, ...]
    # The position in the block.
    index: int
    transaction_hash: str
    # The JSON object exactly as eth_getLogs tells it, with "removed":false.
    raw: bytes


class Block(msgspec.Struct, frozen=True):
    """One block of the canonical chain, as much of it as was demanded."""

    number: int
    hash: str
    parent_hash: str
    timestamp: int
    # The JSON object of newHeads: all header fields of the node's block, without transactions, uncles, withdrawals,
    # size and totalDifficulty.
    header: bytes
    # Full objects, in their order; None when nobody demanded them.
    transactions: tuple[Raw, ...] | None
    receipts: tuple[Raw, ...] | None
    logs: tuple[Log, ...] | None


class Applied(msgspec.Struct, frozen=True):
    """This block is the tip now. Its parent was the tip before."""

    block: Block


class Reverted(msgspec.Struct, frozen=True):
    """This block was the tip and is taken back; its parent is the tip now. The very block that was applied."""

    block: Block


Delta: TypeAlias = Applied | Reverted


class PendingTransaction(msgspec.Struct, frozen=True):
    """A transaction that an upstream has told us of before it was in a block."""

    hash: str
    # The JSON object as eth_getTransactionByHash tells it; None when nobody demanded it or no upstream could tell it.
    transaction: Raw | None
