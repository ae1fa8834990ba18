"""A ledger to test with, moved by hand instead of by the clock, and short ways to make transactions for it."""

from __future__ import annotations

import base64
import struct
from functools import partial
from typing import Any

import msgspec
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from capstan.devnet.solana.dispatch import Dispatcher
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.machine import Outcome
from capstan.devnet.solana.methods import METHODS
from capstan.devnet.solana.programs import ADDRESS_LOOKUP_TABLE, SYSTEM
from capstan.devnet.solana.records import Commitment
from capstan.devnet.solana.settings import NodeSettings

SOL = 10**9
MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


class Chain:
    """A ledger, its JSON-RPC methods, and a funded key."""

    def __init__(self, **settings: Any) -> None:
        self.settings = NodeSettings(**settings)
        self.now = 1_700_000_000.0
        self.ledger = Ledger(self.settings, lambda: self.now)
        self.key = self.ledger.faucet
        bound = {name: partial(handler, self.ledger) for name, handler in METHODS.items()}
        self.dispatcher = Dispatcher(bound, self.settings.max_batch)

    def advance(self, slots: int = 1) -> None:
        for _ in range(slots):
            self.now += 0.4
            self.ledger.advance()

    def blockhash(self) -> Hash:
        return self.ledger.bank(Commitment.CONFIRMED).blockhash

    def transaction(
        self, instructions: list[Instruction], *signers: Keypair, blockhash: Hash | None = None
    ) -> VersionedTransaction:
        keys = [*signers] or [self.key]
        message = Message.new_with_blockhash(instructions, keys[0].pubkey(), blockhash or self.blockhash())
        return VersionedTransaction(message, keys)

    def transfer(
        self, to: Pubkey, lamports: int = SOL, *, source: Keypair | None = None, blockhash: Hash | None = None
    ) -> VersionedTransaction:
        key = source or self.key
        instruction = transfer(TransferParams(from_pubkey=key.pubkey(), to_pubkey=to, lamports=lamports))
        return self.transaction([instruction], key, blockhash=blockhash)

    def run(self, instructions: list[Instruction], *signers: Keypair) -> Outcome:
        """Executes and insists on success."""
        outcome = self.ledger.execute(self.transaction(instructions, *signers))
        assert outcome.error is None, (outcome.error, outcome.logs)
        return outcome

    def funded(self, lamports: int = 10 * SOL) -> Keypair:
        key = Keypair()
        assert self.ledger.execute(self.transfer(key.pubkey(), lamports)).error is None
        return key

    def balance(self, address: Pubkey, commitment: Commitment) -> int:
        account = self.ledger.account(address, self.ledger.bank(commitment).slot)
        return 0 if account is None else account.lamports

    def reply(self, method: str, *params: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        raw = self.dispatcher.handle(msgspec.json.encode(request))
        assert raw is not None
        reply: dict[str, Any] = msgspec.json.decode(raw)
        assert reply["id"] == 1
        return reply

    def result(self, method: str, *params: Any) -> Any:
        reply = self.reply(method, *params)
        assert "error" not in reply, reply
        return reply["result"]

    def error(self, method: str, *params: Any) -> dict[str, Any]:
        reply = self.reply(method, *params)
        assert "result" not in reply, reply
        error: dict[str, Any] = reply["error"]
        return error


def wire(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode()


BASE64 = {"encoding": "base64"}


def lookup_table(chain: Chain, addresses: list[Pubkey]) -> Pubkey:
    """Creates a lookup table with the real program and waits until its entries may be used."""
    chain.advance(2)
    payer, recent = chain.key.pubkey(), chain.ledger.slot - 1
    table, bump = Pubkey.find_program_address([bytes(payer), recent.to_bytes(8, "little")], ADDRESS_LOOKUP_TABLE)
    accounts = [
        AccountMeta(table, False, True),
        AccountMeta(payer, True, False),
        AccountMeta(payer, True, True),
        AccountMeta(SYSTEM, False, False),
    ]
    create = Instruction(ADDRESS_LOOKUP_TABLE, struct.pack("<IQB", 0, recent, bump), accounts)
    entries = b"".join(map(bytes, addresses))
    extend = Instruction(ADDRESS_LOOKUP_TABLE, struct.pack("<IQ", 2, len(addresses)) + entries, accounts)
    chain.run([create, extend])
    chain.advance()
    return table


def versioned_transfer(chain: Chain, table: Pubkey, to: Pubkey, lamports: int) -> VersionedTransaction:
    payer = chain.key.pubkey()
    instruction = transfer(TransferParams(from_pubkey=payer, to_pubkey=to, lamports=lamports))
    accounts = [AddressLookupTableAccount(table, [Pubkey.new_unique(), to])]
    message = MessageV0.try_compile(payer, [instruction], accounts, chain.blockhash())
    return VersionedTransaction(message, [chain.key])
