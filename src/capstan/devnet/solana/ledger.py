"""The chain: slots, blocks, blockhashes, and the execution of transactions into the open block. It owns the machine and
is the one object the request handlers and subscriptions read from.

One thread only (see `machine`). `advance` is called once per slot by the server; nothing here waits or does input and
output, so every method leaves the chain consistent.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from solders.account import Account
from solders.clock import Clock
from solders.epoch_schedule import EpochSchedule
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from capstan.devnet.solana import messages, tokens
from capstan.devnet.solana.blockhashes import BlockhashQueue, ProcessedSignatures
from capstan.devnet.solana.machine import SLOT_SYSVARS, Machine, Outcome
from capstan.devnet.solana.messages import ResolvedMessage, UnresolvedLookup
from capstan.devnet.solana.records import Bank, Block, Commitment, TransactionRecord
from capstan.devnet.solana.settings import (
    FAUCET_LAMPORTS,
    MAX_PROCESSING_AGE,
    MAX_SLOT_HASHES,
    NodeSettings,
)
from capstan.devnet.solana.state_history import StateHistory
from capstan.devnet.solana.store import BlockStore


class BlockFull(RuntimeError):
    """The open block holds as many transactions as it may; the next slot takes more."""


class LedgerObserver(Protocol):
    """What subscriptions are told. Called in the middle of ledger work: must not execute anything."""

    def transaction_executed(self, record: TransactionRecord) -> None: ...
    def block_completed(self, block: Block) -> None: ...
    def block_finalized(self, block: Block) -> None: ...
    def slot_opened(self, block: Block, root: int) -> None: ...


class Ledger:
    def __init__(self, settings: NodeSettings, wall_clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._wall_clock = wall_clock
        self.faucet = Keypair()
        self.identity = Keypair().pubkey()
        self.genesis_hash = Hash(hashlib.sha256(b"capstan genesis" + secrets.token_bytes(32)).digest())
        self.root = 0
        self._machine = Machine(self.faucet.pubkey(), FAUCET_LAMPORTS)
        self.feature_set = self._machine.feature_set_id()
        self.epoch_schedule: EpochSchedule = self._machine.epoch_schedule()
        self._history = StateHistory(self._machine.account)
        self._hashes = BlockhashQueue()
        self._processed = ProcessedSignatures()
        self.store = BlockStore(settings.max_blocks, settings.max_transactions)
        self._observers: list[LedgerObserver] = []
        self._epoch_start = int(wall_clock())
        self._open = Block(0, 0, self._epoch_start, Hash.default(), 0, self._machine.total_lamports())
        self._begin_next(self._complete(self._open))

    def observe(self, observer: LedgerObserver) -> None:
        self._observers.append(observer)

    # Slots

    @property
    def slot(self) -> int:
        """The open slot."""
        return self._open.slot

    def advance(self) -> None:
        """Completes the open block and opens the next slot."""
        completed = self._complete(self._open)
        self._begin_next(completed)
        finalized = self._move_root(completed.slot)
        for observer in self._observers:
            observer.block_completed(completed)
            for block in finalized:
                observer.block_finalized(block)
            observer.slot_opened(self._open, self.root)
        self._history.forget_through(self.root)
        self._processed.forget_before(self.slot - MAX_PROCESSING_AGE - 1)
        self.store.prune(keep_from=self.root)

    def _complete(self, block: Block) -> Block:
        digest = hashlib.sha256(bytes(self.genesis_hash) + bytes(block.previous_blockhash))
        digest.update(block.slot.to_bytes(8, "little"))
        for record in block.transactions:
            digest.update(bytes(record.signature))
        block.blockhash = Hash(digest.digest())
        self._hashes.register(block.slot, block.blockhash)
        self.store.add_block(block)
        return block

    def _begin_next(self, parent: Block) -> None:
        assert parent.blockhash is not None
        slot, now = parent.slot + 1, int(self._wall_clock())
        epoch, index = self.epoch_schedule.get_epoch_and_slot_index(slot)
        if index == 0:
            self._epoch_start = now
        self._open = Block(slot, parent.slot, now, parent.blockhash, parent.transaction_count, parent.lamports)
        self._history.open(slot)
        self._history.keep(SLOT_SYSVARS)
        self._open.touched.update(dict.fromkeys(SLOT_SYSVARS))
        leader_epoch = self.epoch_schedule.get_leader_schedule_epoch(slot)
        self._machine.begin_slot(
            Clock(slot, self._epoch_start, epoch, leader_epoch, now),
            list(self._hashes.newest_first(MAX_SLOT_HASHES)),
            (blockhash for _, blockhash in self._hashes.newest_first(MAX_PROCESSING_AGE)),
        )

    def _move_root(self, completed_slot: int) -> list[Block]:
        root = max(self.root, completed_slot - self._settings.finality_slots)
        slots = range(self.root + 1, root + 1)
        self.root = root
        return [block for slot in slots if (block := self.store.block(slot)) is not None]

    # Views

    def bank(self, commitment: Commitment) -> Bank:
        if commitment is Commitment.PROCESSED:
            block = self._open
            return Bank(
                block.slot, block.previous_blockhash, block.parent_slot, block.transaction_count, block.lamports
            )
        slot = self._open.parent_slot if commitment is Commitment.CONFIRMED else self.root
        complete = self.store.block(slot)
        assert complete is not None
        assert complete.blockhash is not None
        return Bank(slot, complete.blockhash, slot, complete.transaction_count, complete.lamports)

    def commitment_of(self, slot: int) -> Commitment:
        if slot <= self.root:
            return Commitment.FINALIZED
        return Commitment.CONFIRMED if slot < self.slot else Commitment.PROCESSED

    def account(self, address: Pubkey, slot: int) -> Account | None:
        return self._history.account_at(address, slot)

    def program_accounts(self, program: Pubkey, slot: int) -> dict[Pubkey, Account]:
        return self._history.program_accounts_at(program, slot, self._machine.program_accounts(program))

    def blockhash_age(self, blockhash: Hash, bank: Bank) -> int | None:
        return self._hashes.age(blockhash, bank.newest_hash_slot)

    def rent_exempt_minimum(self, data_length: int) -> int:
        return self._machine.rent_exempt_minimum(data_length)

    def block_time(self, slot: int) -> int | None:
        if slot == self.slot:
            return self._open.time
        block = self.store.block(slot)
        return None if block is None else block.time

    # Transactions

    def simulate(self, transaction: VersionedTransaction, *, verify: bool) -> Outcome:
        """Runs the transaction on the newest state and throws the result away."""
        error = self._refusal(transaction)
        return Outcome.refused(error) if error else self._machine.simulate(transaction, verify=verify)

    def execute(self, transaction: VersionedTransaction) -> Outcome:
        """Runs the transaction into the open block. What the runtime would not even charge for leaves no trace."""
        error = self._refusal(transaction)
        if error:
            return Outcome.refused(error)
        if len(self._open.transactions) >= self._settings.max_transactions_per_slot:
            raise BlockFull(f"slot {self.slot} already holds {len(self._open.transactions)} transactions; try again")
        resolved = self._resolve(transaction)
        if resolved is None:
            return self._machine.simulate(transaction, verify=True)
        return self._run(transaction, resolved)

    def fee_for(self, message: Message | MessageV0, bank: Bank) -> int | None:
        """What the message would cost; None when its blockhash is not accepted."""
        signatures = [Signature.default()] * message.header.num_required_signatures
        transaction = VersionedTransaction.populate(message, signatures)
        if self.blockhash_age(message.recent_blockhash, bank) is None and not self._nonce_allows(transaction):
            return None
        return self._machine.simulate(transaction, verify=False).fee

    def _run(self, transaction: VersionedTransaction, resolved: ResolvedMessage) -> Outcome:
        read = self._machine.account
        by_nonce = self.blockhash_age(resolved.message.recent_blockhash, self.bank(Commitment.PROCESSED)) is None
        nonce = messages.durable_nonce_account(transaction, resolved) if by_nonce else None
        before = self._balances(resolved)
        tokens_before = tokens.token_balances(resolved.keys, read)
        self._history.keep(resolved.writable_keys())
        outcome = self._machine.execute(transaction)
        if not outcome.included:
            return outcome
        touched = resolved.writable_keys() if outcome.error is None else [resolved.payer]
        if outcome.error is not None and nonce is not None:
            self._advance_nonce(nonce, resolved)
            touched.append(nonce)
        self._record(
            TransactionRecord(
                signature=transaction.signatures[0],
                slot=self.slot,
                index=len(self._open.transactions),
                block_time=self._open.time,
                transaction=transaction,
                resolved=resolved,
                outcome=outcome,
                pre_balances=before,
                post_balances=self._balances(resolved),
                pre_token_balances=tokens_before,
                post_token_balances=tokens.token_balances(resolved.keys, read),
                memo=messages.memo_of(resolved),
                unit_price=messages.compute_unit_price(resolved),
                touched=tuple(touched),
            )
        )
        return outcome

    def _record(self, record: TransactionRecord) -> None:
        self._open.transactions.append(record)
        self._open.touched.update(dict.fromkeys(record.touched))
        self._open.transaction_count += 1
        self._open.lamports -= record.outcome.fee
        self._processed.add(record.signature, self.slot)
        self.store.add_transaction(record)
        for observer in self._observers:
            observer.transaction_executed(record)

    def _refusal(self, transaction: VersionedTransaction) -> str | None:
        """Why the transaction may not run now: too old, or run before. In Agave's order."""
        blockhash = transaction.message.recent_blockhash
        too_old = self.blockhash_age(blockhash, self.bank(Commitment.PROCESSED)) is None
        if too_old and not self._nonce_allows(transaction):
            return "BlockhashNotFound"
        if transaction.signatures and transaction.signatures[0] in self._processed:
            return "AlreadyProcessed"
        return None

    def _nonce_allows(self, transaction: VersionedTransaction) -> bool:
        resolved = self._resolve(transaction)
        nonce = None if resolved is None else messages.durable_nonce_account(transaction, resolved)
        if resolved is None or nonce is None:
            return False
        return messages.nonce_allows(resolved, self._machine.account(nonce))

    def _advance_nonce(self, address: Pubkey, resolved: ResolvedMessage) -> None:
        """The runtime advances the nonce also when the transaction fails; LiteSVM does not."""
        account = self._machine.account(address)
        if account is None or len(account.data) != messages.NONCE_LENGTH:
            return
        data = messages.next_nonce_data(account.data, resolved.message.recent_blockhash)
        self._machine.set_account(address, Account(account.lamports, data, account.owner))

    def _resolve(self, transaction: VersionedTransaction) -> ResolvedMessage | None:
        try:
            return messages.resolve(messages.message_of(transaction), self._machine.account)
        except UnresolvedLookup:
            return None

    def resolve(self, transaction: VersionedTransaction) -> ResolvedMessage | None:
        """The accounts a transaction would touch now; None when a lookup table is missing."""
        return self._resolve(transaction)

    def _balances(self, resolved: ResolvedMessage) -> list[int]:
        accounts = (self._machine.account(key) for key in resolved.keys)
        return [0 if account is None else account.lamports for account in accounts]
