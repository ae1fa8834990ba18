"""Complete blocks and their transactions, found by slot, signature and address. Bounded: the oldest blocks go first.

The ledger writes; the request handlers read through it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from solders.pubkey import Pubkey
from solders.signature import Signature

from capstan.devnet.solana.records import Block, TransactionRecord


class BlockStore:
    def __init__(self, max_blocks: int, max_transactions: int) -> None:
        self._max_blocks = max_blocks
        self._max_transactions = max_transactions
        self._blocks: dict[int, Block] = {}
        self._by_signature: dict[Signature, TransactionRecord] = {}
        self._by_address: dict[Pubkey, deque[TransactionRecord]] = {}
        self._first_slot = 0

    @property
    def first_slot(self) -> int:
        return self._first_slot

    def add_block(self, block: Block) -> None:
        self._blocks[block.slot] = block

    def add_transaction(self, record: TransactionRecord) -> None:
        """Called while the block is still open: a processed transaction can be found at once."""
        self._by_signature[record.signature] = record
        for address in dict.fromkeys(record.resolved.keys):
            self._by_address.setdefault(address, deque()).append(record)

    def block(self, slot: int) -> Block | None:
        return self._blocks.get(slot)

    def transaction(self, signature: Signature) -> TransactionRecord | None:
        return self._by_signature.get(signature)

    def newest_first(self, address: Pubkey) -> Iterator[TransactionRecord]:
        return reversed(self._by_address.get(address, deque()))

    def prune(self, keep_from: int) -> None:
        """Drops the oldest blocks until the bounds hold, but never a block at or after `keep_from`."""
        while self._first_slot < keep_from and (
            len(self._blocks) > self._max_blocks or len(self._by_signature) > self._max_transactions
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        block = self._blocks.pop(self._first_slot)
        self._first_slot += 1
        for record in block.transactions:
            del self._by_signature[record.signature]
            for address in dict.fromkeys(record.resolved.keys):
                # Transactions leave in the order they came, so this one is the oldest of every address it names.
                records = self._by_address[address]
                records.popleft()
                if not records:
                    del self._by_address[address]
