"""What a transaction's message refers to: its accounts with lookup tables resolved, who signs, what is writable, and
whether it runs on a durable nonce. The ledger asks before it executes; the JSON encoders read the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from solders.account import Account
from solders.hash import Hash
from solders.instruction import CompiledInstruction
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from capstan.devnet.solana.programs import (
    ADDRESS_LOOKUP_TABLE,
    COMPUTE_BUDGET,
    MEMO_PROGRAMS,
    SYSTEM,
    UPGRADEABLE_LOADER,
)

AccountReader = Callable[[Pubkey], Account | None]

LOOKUP_TABLE_HEADER = 56
"""Bytes before the first address in a lookup table account (`LOOKUP_TABLE_META_SIZE`)."""

NONCE_LENGTH = 80
_SET_COMPUTE_UNIT_PRICE = 3


class UnsupportedMessage(ValueError):
    """A message version this node cannot run (anything newer than v0)."""


class UnresolvedLookup(ValueError):
    """A lookup table that does not exist or lacks the index asked for. The runtime then reports its own error."""


@dataclass(frozen=True, slots=True)
class ResolvedMessage:
    """A message with every account it touches spelled out, in the runtime's order."""

    message: Message | MessageV0
    keys: tuple[Pubkey, ...]
    writable: tuple[bool, ...]
    signer_count: int
    loaded_writable: tuple[Pubkey, ...]
    loaded_readonly: tuple[Pubkey, ...]

    @property
    def instructions(self) -> list[CompiledInstruction]:
        return self.message.instructions

    @property
    def payer(self) -> Pubkey:
        return self.keys[0]

    @property
    def static_count(self) -> int:
        return len(self.keys) - len(self.loaded_writable) - len(self.loaded_readonly)

    def writable_keys(self) -> list[Pubkey]:
        return [key for key, writable in zip(self.keys, self.writable, strict=True) if writable]

    def program_of(self, instruction: CompiledInstruction) -> Pubkey:
        return self.keys[instruction.program_id_index]


def message_of(transaction: VersionedTransaction) -> Message | MessageV0:
    message = transaction.message
    if isinstance(message, Message | MessageV0):
        return message
    raise UnsupportedMessage("this node runs legacy and version 0 transactions only")


def resolve(message: Message | MessageV0, read: AccountReader) -> ResolvedMessage:
    """Lists the message's accounts: its own keys, then the writable and then the read-only looked-up ones."""
    static = tuple(message.account_keys)
    loaded_writable: list[Pubkey] = []
    loaded_readonly: list[Pubkey] = []
    if isinstance(message, MessageV0):
        for lookup in message.address_table_lookups:
            addresses = _table_addresses(read(lookup.account_key))
            loaded_writable.extend(_pick(addresses, lookup.writable_indexes))
            loaded_readonly.extend(_pick(addresses, lookup.readonly_indexes))
    keys = (*static, *loaded_writable, *loaded_readonly)
    return ResolvedMessage(
        message=message,
        keys=keys,
        writable=_writable_flags(message, keys, len(static), len(loaded_writable)),
        signer_count=message.header.num_required_signatures,
        loaded_writable=tuple(loaded_writable),
        loaded_readonly=tuple(loaded_readonly),
    )


def _table_addresses(table: Account | None) -> list[Pubkey]:
    if table is None or table.owner != ADDRESS_LOOKUP_TABLE or len(table.data) < LOOKUP_TABLE_HEADER:
        raise UnresolvedLookup("no such lookup table")
    return lookup_table_addresses(table.data)


def lookup_table_addresses(data: bytes) -> list[Pubkey]:
    body = data[LOOKUP_TABLE_HEADER:]
    return [Pubkey(body[start : start + 32]) for start in range(0, len(body) - 31, 32)]


def _pick(addresses: list[Pubkey], indexes: bytes) -> list[Pubkey]:
    try:
        return [addresses[index] for index in indexes]
    except IndexError as error:
        raise UnresolvedLookup("the lookup table has no such entry") from error


def _writable_flags(
    message: Message | MessageV0, keys: tuple[Pubkey, ...], static_count: int, loaded_writable_count: int
) -> tuple[bool, ...]:
    header = message.header
    signers = header.num_required_signatures
    invoked = {instruction.program_id_index for instruction in message.instructions}
    # The runtime takes write access away from invoked programs, unless the loader that may change them takes part.
    demote_programs = UPGRADEABLE_LOADER not in keys

    def is_writable(index: int) -> bool:
        if index in invoked and demote_programs:
            return False
        if index < signers:
            return index < signers - header.num_readonly_signed_accounts
        if index < static_count:
            return index < static_count - header.num_readonly_unsigned_accounts
        return index < static_count + loaded_writable_count

    return tuple(is_writable(index) for index in range(len(keys)))


def durable_nonce_account(transaction: VersionedTransaction, resolved: ResolvedMessage) -> Pubkey | None:
    """The nonce account, when the first instruction advances one."""
    if not transaction.uses_durable_nonce():
        return None
    accounts = resolved.instructions[0].accounts
    return resolved.keys[accounts[0]] if accounts else None


def nonce_allows(resolved: ResolvedMessage, nonce_account: Account | None) -> bool:
    """Whether the stored nonce is the message's blockhash and its authority signs."""
    if nonce_account is None or nonce_account.owner != SYSTEM or len(nonce_account.data) != NONCE_LENGTH:
        return False
    data = nonce_account.data
    version, state = int.from_bytes(data[0:4], "little"), int.from_bytes(data[4:8], "little")
    if (version, state) != (1, 1) or data[40:72] != bytes(resolved.message.recent_blockhash):
        return False
    authority = Pubkey(data[8:40])
    accounts = resolved.instructions[0].accounts
    return any(index < resolved.signer_count and resolved.keys[index] == authority for index in accounts)


def next_nonce_data(data: bytes, blockhash: Hash) -> bytes:
    """The nonce account's data after an advance (`DurableNonce::from_blockhash`)."""
    nonce = hashlib.sha256(b"DURABLE_NONCE" + bytes(blockhash)).digest()
    return data[:40] + nonce + data[72:]


def memo_of(resolved: ResolvedMessage) -> str | None:
    """The memos of a transaction, in the form `getSignaturesForAddress` lists them."""
    memos: list[str] = []
    for instruction in resolved.instructions:
        if resolved.program_of(instruction) in MEMO_PROGRAMS:
            text = instruction.data.decode("utf-8", "replace")
            memos.append(f"[{len(instruction.data)}] {text}")
    return "; ".join(memos) or None


def compute_unit_price(resolved: ResolvedMessage) -> int:
    """The micro-lamports per compute unit the transaction offers; 0 when it offers none."""
    for instruction in resolved.instructions:
        data = instruction.data
        if resolved.program_of(instruction) == COMPUTE_BUDGET and len(data) == 9 and data[0] == _SET_COMPUTE_UNIT_PRICE:
            return int.from_bytes(data[1:9], "little")
    return 0
