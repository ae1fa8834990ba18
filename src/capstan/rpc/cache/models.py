"""What the parts of the cache tell each other, and the little they need to know of the chain.

The protocols are satisfied by the head tracker of the chain package and by its changes; nothing here does any work.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeAlias

import msgspec

# A block number, a tag such as "latest", or None where the call leaves the block out.
BlockName: TypeAlias = int | str | None


class HeadView(Protocol):
    """What is known of a network's chain now. Unknown parts are None."""

    @property
    def latest_number(self) -> int | None:
        """The number of the latest block; the slot on Solana."""
        ...

    @property
    def latest_hash(self) -> str | None:
        """Its hash, in lower case."""
        ...

    @property
    def finalized_number(self) -> int | None:
        """The last block that cannot be reverted any more."""
        ...

    def hash_at(self, number: int) -> str | None:
        """The hash of the canonical block of that number, in lower case, if it is known."""
        ...


class BlockRef(Protocol):
    """A block of the chain."""

    @property
    def number(self) -> int: ...

    @property
    def hash(self) -> str: ...


class HeadChange(Protocol):
    """The blocks that left the chain and those that came instead."""

    @property
    def applied(self) -> Sequence[BlockRef]: ...

    @property
    def reverted(self) -> Sequence[BlockRef]: ...

    @property
    def restarted(self) -> bool:
        """Whether nothing that was said of the chain before is vouched for any more."""
        ...


class NoHeads:
    """The view of a network that nobody follows. Nothing that depends on a block is kept then."""

    latest_number: int | None = None
    latest_hash: str | None = None
    finalized_number: int | None = None

    def hash_at(self, number: int) -> str | None:
        return None


class When(Enum):
    """On what the answer to a method depends, apart from its arguments."""

    NOTHING = "nothing"  # the same for ever
    HEAD = "head"  # the latest block
    BLOCK = "block"  # the block named in the arguments
    BLOCK_HASH = "block hash"  # the block with that hash
    ITEM = "item"  # where a transaction is, which the answer tells
    LOGS = "logs"  # a range of blocks, or one block by hash
    SLOT = "slot"  # a finalized slot named in the arguments (Solana)
    FINAL_ITEM = "final item"  # a finalized block or transaction, if there is an answer at all (Solana)


class Shape(Enum):
    """Where an answer tells which block it is of."""

    OPAQUE = "opaque"  # nowhere
    NUMBER = "number"  # it is a block number
    BLOCK = "block"  # `number` and `hash`
    ITEM = "item"  # `blockNumber` and `blockHash`
    ITEMS = "items"  # the same, of the first element of an array
    DATED = "dated"  # not at all, but it is complete only once `blockTime` is there (Solana)


class Kind(Enum):
    """What may be done with the answer to one call."""

    PERMANENT = "permanent"  # kept for ever
    BY_HASH = "by hash"  # kept while the block that the answer names is in the chain
    AT_BLOCK = "at block"  # kept while the block that the call names is in the chain
    AT_HEAD = "at head"  # kept until the next head
    UNTIL_HEAD = "until head"  # likewise, but a moment at most: it may change between two heads
    NEVER = "never"  # not kept, and not shared with others who ask at the same time


class Question(msgspec.Struct, frozen=True, gc=False):
    """A call as far as it can be understood without knowing the chain."""

    # Equal keys mean equal questions. Empty when the answer is never kept.
    key: bytes
    when: When | None = None
    shape: Shape = Shape.OPAQUE
    # The block the call names; for logs the last one of the range.
    block: BlockName = None
    # The hash of the block or transaction that the call names, in lower case.
    hash: str | None = None
    # Whether the answer for the head may change before the next head.
    brief: bool = False
    # Whether an answer for the head may be kept although nobody follows the chain: its time is short anyway (Solana).
    timed: bool = False


class Policy(msgspec.Struct, frozen=True, gc=False):
    """What may be done with the answer, given the chain as it was when the call was made."""

    kind: Kind
    shape: Shape = Shape.OPAQUE
    # AT_BLOCK: the block that is asked for. AT_HEAD: the latest block then, if that is what is asked for.
    number: int | None = None
    # AT_BLOCK: its hash, if known. BY_HASH: the hash of the block that the answer must be of, if the call names one.
    hash: str | None = None
    # AT_BLOCK: whether the call names the block by its hash.
    by_hash: bool = False
    # Whether the answer, if there is one, cannot change any more.
    final: bool = False


class Life(Enum):
    """How long an entry lives."""

    FINAL = "final"
    BLOCK = "block"
    HEAD = "head"
    MOMENT = "moment"


class Binding(msgspec.Struct, frozen=True, gc=False):
    """To what an answer is bound. `number` is the last block it depends on, where there is one."""

    life: Life
    number: int | None = None


class NetworkOptions(msgspec.Struct, frozen=True):
    """How the answers of one network are kept."""

    # Answers at the head live until the next one; this bounds it for when no news of heads arrives. About two blocks.
    head_seconds: float = 4.0
    # Null receipts, pending transactions: these may change before the next head.
    moment_seconds: float = 1.0
    # Whether final answers are also kept outside the process. Not for a development chain, which starts afresh.
    persist: bool = False


NEVER = Policy(Kind.NEVER)
UNCACHEABLE = Question(b"")
