"""The ledger's data: commitments, blocks, executed transactions, and the view of the chain a request reads from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from capstan.devnet.solana.machine import Outcome
from capstan.devnet.solana.messages import ResolvedMessage


class Commitment(StrEnum):
    PROCESSED = "processed"
    CONFIRMED = "confirmed"
    FINALIZED = "finalized"


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One transaction that landed in a block, failed or not, with all that `getTransaction` shows."""

    signature: Signature
    slot: int
    index: int
    block_time: int
    transaction: VersionedTransaction
    resolved: ResolvedMessage
    outcome: Outcome
    pre_balances: list[int]
    post_balances: list[int]
    pre_token_balances: list[dict[str, Any]]
    post_token_balances: list[dict[str, Any]]
    memo: str | None
    unit_price: int
    touched: tuple[Pubkey, ...]
    """Accounts this transaction wrote: all writable ones, or only the payer and nonce when it failed."""


@dataclass(slots=True)
class Block:
    """A slot and what happened in it. `blockhash` is set when the slot ends and the block is complete."""

    slot: int
    parent_slot: int
    time: int
    previous_blockhash: Hash
    transaction_count: int
    """Transactions since genesis, this block's included."""
    lamports: int
    """All lamports in existence after this block. Fees are burned: LiteSVM pays no leader."""
    blockhash: Hash | None = None
    transactions: list[TransactionRecord] = field(default_factory=list)
    touched: dict[Pubkey, None] = field(default_factory=dict)

    @property
    def height(self) -> int:
        """No slot is ever skipped here, so heights and slots are the same numbers."""
        return self.slot


@dataclass(frozen=True, slots=True)
class Bank:
    """The chain as seen at one commitment. `newest_hash_slot` is the block whose hash is the latest in this view."""

    slot: int
    blockhash: Hash
    newest_hash_slot: int
    transaction_count: int
    lamports: int

    @property
    def height(self) -> int:
        return self.slot
