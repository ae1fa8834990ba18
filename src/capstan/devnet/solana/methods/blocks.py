"""Methods about blocks and blockhashes."""

from __future__ import annotations

from typing import Any

from solders.message import Message, MessageV0, from_bytes_versioned

from capstan.devnet.solana import params as p
from capstan.devnet.solana.binary import base64_decode
from capstan.devnet.solana.errors import block_cleaned_up, block_not_available, invalid_params
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods.common import with_context
from capstan.devnet.solana.records import Bank, Block
from capstan.devnet.solana.settings import MAX_PROCESSING_AGE
from capstan.devnet.solana.transaction_json import TransactionDetails, TransactionEncoding, encode_block

MAX_BLOCK_RANGE = 500_000


def blockhash_json(bank: Bank) -> dict[str, Any]:
    return {"blockhash": str(bank.blockhash), "lastValidBlockHeight": bank.height + MAX_PROCESSING_AGE}


def get_latest_blockhash(ledger: Ledger, params: Any) -> dict[str, Any]:
    (config,) = p.read(params, p.ContextConfig, required=0)
    bank = p.bank_for(ledger, config)
    return with_context(bank.slot, blockhash_json(bank))


def is_blockhash_valid(ledger: Ledger, params: Any) -> dict[str, Any]:
    text, config = p.read(params, str, p.ContextConfig, required=1)
    blockhash = p.blockhash(text, prefix="")
    bank = p.bank_for(ledger, config)
    return with_context(bank.slot, ledger.blockhash_age(blockhash, bank) is not None)


def get_fee_for_message(ledger: Ledger, params: Any) -> dict[str, Any]:
    text, config = p.read(params, str, p.ContextConfig, required=1)
    message = _decode_message(text)
    bank = p.bank_for(ledger, config)
    return with_context(bank.slot, ledger.fee_for(message, bank))


def _decode_message(text: str) -> Message | MessageV0:
    try:
        data = base64_decode(text)
    except ValueError as error:
        raise invalid_params(f"invalid base64 encoding: {error}") from error
    try:
        message = from_bytes_versioned(data)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize solana_message::VersionedMessage: {error}") from error
    if not isinstance(message, Message | MessageV0):
        raise invalid_params("invalid transaction message: Transaction version is unsupported")
    return message


def get_block(ledger: Ledger, params: Any) -> dict[str, Any]:
    slot, config = p.read(params, p.U64, p.BlockConfig | TransactionEncoding, required=1)
    if isinstance(config, TransactionEncoding):
        config = p.BlockConfig(encoding=config)
    config = config or p.BlockConfig()
    newest = ledger.bank(p.at_least_confirmed(config)).slot
    block = _complete_block(ledger, slot, newest)
    return encode_block(
        block,
        config.encoding or TransactionEncoding.JSON,
        config.transaction_details or TransactionDetails.FULL,
        config.max_supported_transaction_version,
        True if config.rewards is None else config.rewards,
    )


def _complete_block(ledger: Ledger, slot: int, newest: int) -> Block:
    if slot > newest:
        raise block_not_available(slot)
    block = ledger.store.block(slot)
    if block is None:
        raise block_cleaned_up(slot, ledger.store.first_slot)
    return block


def get_blocks(ledger: Ledger, params: Any) -> list[int]:
    start, second, third = p.read(params, p.U64, p.U64 | p.ContextConfig, p.ContextConfig, required=1)
    end = second if isinstance(second, int) else None
    config = third or (second if isinstance(second, p.ContextConfig) else None)
    newest = _newest_block(ledger, config)
    end = min(start + MAX_BLOCK_RANGE if end is None else end, newest)
    if end < start:
        return []
    if end - start > MAX_BLOCK_RANGE:
        raise invalid_params(f"Slot range too large; max {MAX_BLOCK_RANGE}")
    return list(range(max(start, ledger.store.first_slot), end + 1))


def get_blocks_with_limit(ledger: Ledger, params: Any) -> list[int]:
    start, limit, config = p.read(params, p.U64, p.U64, p.ContextConfig, required=2)
    newest = _newest_block(ledger, config)
    if limit > MAX_BLOCK_RANGE:
        raise invalid_params(f"Limit too large; max {MAX_BLOCK_RANGE}")
    first = max(start, ledger.store.first_slot)
    return list(range(first, min(first + limit, newest + 1)))


def _newest_block(ledger: Ledger, config: p.ContextConfig | None) -> int:
    p.at_least_confirmed(config)
    return p.bank_for(ledger, config).slot


def get_block_time(ledger: Ledger, params: Any) -> int:
    (slot,) = p.read(params, p.U64, required=1)
    if slot > ledger.slot:
        raise block_not_available(slot)
    time = ledger.block_time(slot)
    if time is None:
        raise block_cleaned_up(slot, ledger.store.first_slot)
    return time


def get_first_available_block(ledger: Ledger, params: Any) -> int:
    p.read(params, required=0)
    return ledger.store.first_slot


def minimum_ledger_slot(ledger: Ledger, params: Any) -> int:
    p.read(params, required=0)
    return ledger.store.first_slot
