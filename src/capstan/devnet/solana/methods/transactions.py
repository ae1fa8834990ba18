"""Methods that read landed transactions: one by signature, statuses of many, the signatures that touch an address."""

from __future__ import annotations

from itertools import islice
from typing import Any

from solders.signature import Signature

from capstan.devnet.solana import params as p
from capstan.devnet.solana.errors import invalid_params
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods.common import with_context
from capstan.devnet.solana.records import Commitment, TransactionRecord
from capstan.devnet.solana.settings import MAX_RECENT_BLOCKHASHES
from capstan.devnet.solana.transaction_json import TransactionEncoding, encode_landed, status_json

MAX_STATUSES = 256
MAX_SIGNATURES_FOR_ADDRESS = 1_000


def get_transaction(ledger: Ledger, params: Any) -> dict[str, Any] | None:
    text, config = p.read(params, str, p.TransactionConfig | TransactionEncoding, required=1)
    signature = p.signature(text)
    if isinstance(config, TransactionEncoding):
        config = p.TransactionConfig(encoding=config)
    config = config or p.TransactionConfig()
    newest = ledger.bank(p.at_least_confirmed(config)).slot
    record = ledger.store.transaction(signature)
    if record is None or record.slot > newest:
        return None
    return encode_landed(record, config.encoding or TransactionEncoding.JSON, config.max_supported_transaction_version)


def get_signature_statuses(ledger: Ledger, params: Any) -> dict[str, Any]:
    texts, config = p.read(params, list[str], p.StatusConfig, required=1)
    if len(texts) > MAX_STATUSES:
        raise invalid_params(f"Too many inputs provided; max {MAX_STATUSES}")
    signatures = [p.signature(text) for text in texts]
    search_history = config is not None and config.search_transaction_history
    statuses = [_status(ledger, signature, search_history) for signature in signatures]
    return with_context(ledger.slot, statuses)


def _status(ledger: Ledger, signature: Signature, search_history: bool) -> dict[str, Any] | None:
    record = ledger.store.transaction(signature)
    if record is None or (not search_history and record.slot < ledger.slot - MAX_RECENT_BLOCKHASHES):
        return None
    commitment = ledger.commitment_of(record.slot)
    return {
        "slot": record.slot,
        "confirmations": None if commitment is Commitment.FINALIZED else ledger.slot - record.slot,
        "status": status_json(record.outcome.error),
        "err": record.outcome.error,
        "confirmationStatus": str(commitment),
    }


def get_signatures_for_address(ledger: Ledger, params: Any) -> list[dict[str, Any]]:
    text, config = p.read(params, str, p.SignaturesConfig, required=1)
    config = config or p.SignaturesConfig()
    address = p.pubkey(text)
    before = None if config.before is None else p.signature(config.before)
    until = None if config.until is None else p.signature(config.until)
    limit = MAX_SIGNATURES_FOR_ADDRESS if config.limit is None else config.limit
    if not 0 < limit <= MAX_SIGNATURES_FOR_ADDRESS:
        raise invalid_params(f"Invalid limit; max {MAX_SIGNATURES_FOR_ADDRESS}")
    p.at_least_confirmed(config)
    newest = p.bank_for(ledger, config).slot
    records = (record for record in ledger.store.newest_first(address) if record.slot <= newest)
    window = _between(ledger, records, before, until)
    return [_entry(ledger, record) for record in islice(window, limit)]


def _between(ledger: Ledger, records: Any, before: Signature | None, until: Signature | None) -> Any:
    """The records older than `before` and newer than `until`. Both may name transactions of other addresses."""
    newest = None if before is None else ledger.store.transaction(before)
    oldest = None if until is None else ledger.store.transaction(until)
    if before is not None and newest is None:
        return
    for record in records:
        if oldest is not None and _position(record) <= _position(oldest):
            return
        if newest is None or _position(record) < _position(newest):
            yield record


def _position(record: TransactionRecord) -> tuple[int, int]:
    return record.slot, record.index


def _entry(ledger: Ledger, record: TransactionRecord) -> dict[str, Any]:
    return {
        "signature": str(record.signature),
        "slot": record.slot,
        "err": record.outcome.error,
        "memo": record.memo,
        "blockTime": record.block_time,
        "confirmationStatus": str(ledger.commitment_of(record.slot)),
        "transactionIndex": record.index,
    }
