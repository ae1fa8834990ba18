"""Landed transactions and blocks as JSON, in the encodings of `getTransaction` and `getBlock`. Pure: reads records,
asks nothing of the ledger.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from solders.instruction import CompiledInstruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction_metadata import InnerInstruction

from capstan.devnet.solana.binary import base58_encode, base64_encode
from capstan.devnet.solana.errors import unsupported_transaction_version
from capstan.devnet.solana.instruction_json import parse_instruction
from capstan.devnet.solana.messages import ResolvedMessage
from capstan.devnet.solana.records import Block, TransactionRecord

TOP_LEVEL_STACK_HEIGHT = 1


class TransactionEncoding(StrEnum):
    BINARY = "binary"
    BASE58 = "base58"
    BASE64 = "base64"
    JSON = "json"
    JSON_PARSED = "jsonParsed"


class TransactionDetails(StrEnum):
    FULL = "full"
    ACCOUNTS = "accounts"
    SIGNATURES = "signatures"
    NONE = "none"


def encode_landed(record: TransactionRecord, encoding: TransactionEncoding, max_version: int | None) -> dict[str, Any]:
    """The result of `getTransaction`."""
    body = {"slot": record.slot} | encode_transaction(record, encoding, max_version)
    return body | {"blockTime": record.block_time, "transactionIndex": record.index}


def encode_block(
    block: Block,
    encoding: TransactionEncoding,
    details: TransactionDetails,
    max_version: int | None,
    show_rewards: bool,
) -> dict[str, Any]:
    """The result of `getBlock`. There are no rewards: LiteSVM burns the fees and pays nobody."""
    body: dict[str, Any] = {
        "previousBlockhash": str(block.previous_blockhash),
        "blockhash": str(block.blockhash),
        "parentSlot": block.parent_slot,
    }
    if details is TransactionDetails.FULL:
        body["transactions"] = [encode_transaction(item, encoding, max_version) for item in block.transactions]
    elif details is TransactionDetails.ACCOUNTS:
        body["transactions"] = [_with_accounts_only(item, max_version) for item in block.transactions]
    elif details is TransactionDetails.SIGNATURES:
        body["signatures"] = [str(item.signature) for item in block.transactions]
    if show_rewards:
        body["rewards"] = []
    return body | {"blockTime": block.time, "blockHeight": block.height}


def encode_transaction(
    record: TransactionRecord, encoding: TransactionEncoding, max_version: int | None
) -> dict[str, Any]:
    parsed = encoding is TransactionEncoding.JSON_PARSED
    version = _version(record, max_version)
    return {"transaction": _body(record, encoding), "meta": _meta(record, parsed=parsed)} | version


def _version(record: TransactionRecord, max_version: int | None) -> dict[str, Any]:
    """Old clients cannot read the field, so it is there only for those who say which versions they know."""
    number = 0 if isinstance(record.resolved.message, MessageV0) else None
    if number is not None and (max_version is None or number > max_version):
        raise unsupported_transaction_version(number)
    if max_version is None:
        return {}
    return {"version": "legacy" if number is None else number}


def _body(record: TransactionRecord, encoding: TransactionEncoding) -> Any:
    if encoding is TransactionEncoding.BASE64:
        return [base64_encode(bytes(record.transaction)), "base64"]
    if encoding is TransactionEncoding.BASE58:
        return [base58_encode(bytes(record.transaction)), "base58"]
    if encoding is TransactionEncoding.BINARY:
        return base58_encode(bytes(record.transaction))
    parsed = encoding is TransactionEncoding.JSON_PARSED
    return {
        "signatures": [str(signature) for signature in record.transaction.signatures],
        "message": _parsed_message(record.resolved) if parsed else _raw_message(record.resolved),
    }


def _raw_message(resolved: ResolvedMessage) -> dict[str, Any]:
    message = resolved.message
    body: dict[str, Any] = {
        "header": {
            "numRequiredSignatures": message.header.num_required_signatures,
            "numReadonlySignedAccounts": message.header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": message.header.num_readonly_unsigned_accounts,
        },
        "accountKeys": [str(key) for key in message.account_keys],
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [_compiled(item, TOP_LEVEL_STACK_HEIGHT) for item in message.instructions],
    }
    return body | _lookups(resolved)


def _parsed_message(resolved: ResolvedMessage) -> dict[str, Any]:
    instructions = resolved.message.instructions
    body: dict[str, Any] = {
        "accountKeys": parsed_accounts(resolved),
        "recentBlockhash": str(resolved.message.recent_blockhash),
        "instructions": [parse_instruction(item, resolved.keys, TOP_LEVEL_STACK_HEIGHT) for item in instructions],
    }
    return body | _lookups(resolved)


def _lookups(resolved: ResolvedMessage) -> dict[str, Any]:
    if not isinstance(resolved.message, MessageV0):
        return {}
    lookups = [
        {
            "accountKey": str(lookup.account_key),
            "writableIndexes": list(lookup.writable_indexes),
            "readonlyIndexes": list(lookup.readonly_indexes),
        }
        for lookup in resolved.message.address_table_lookups
    ]
    return {"addressTableLookups": lookups}


def parsed_accounts(resolved: ResolvedMessage) -> list[dict[str, Any]]:
    return [
        {
            "pubkey": str(key),
            "signer": index < resolved.signer_count,
            "source": "transaction" if index < resolved.static_count else "lookupTable",
            "writable": resolved.writable[index],
        }
        for index, key in enumerate(resolved.keys)
    ]


def _compiled(instruction: CompiledInstruction, stack_height: int | None) -> dict[str, Any]:
    return {
        "programIdIndex": instruction.program_id_index,
        "accounts": list(instruction.accounts),
        "data": base58_encode(instruction.data),
        "stackHeight": stack_height,
    }


def inner_instructions(
    inner: list[list[InnerInstruction]], keys: tuple[Pubkey, ...], *, parsed: bool
) -> list[dict[str, Any]]:
    """Cross-program calls by the top-level instruction that made them; those that made none are left out."""
    groups: list[dict[str, Any]] = []
    for index, calls in enumerate(inner):
        encoded = [
            parse_instruction(call.instruction(), keys, call.stack_height())
            if parsed
            else _compiled(call.instruction(), call.stack_height())
            for call in calls
        ]
        if encoded:
            groups.append({"index": index, "instructions": encoded})
    return groups


def return_data_json(return_data: tuple[Pubkey, bytes] | None) -> dict[str, Any] | None:
    if return_data is None:
        return None
    program, data = return_data
    return {"programId": str(program), "data": [base64_encode(data), "base64"]}


def status_json(error: Any) -> dict[str, Any]:
    return {"Ok": None} if error is None else {"Err": error}


def loaded_addresses_json(resolved: ResolvedMessage) -> dict[str, Any]:
    return {
        "writable": [str(key) for key in resolved.loaded_writable],
        "readonly": [str(key) for key in resolved.loaded_readonly],
    }


def _simple_meta(record: TransactionRecord) -> dict[str, Any]:
    return {
        "err": record.outcome.error,
        "status": status_json(record.outcome.error),
        "fee": record.outcome.fee,
        "preBalances": record.pre_balances,
        "postBalances": record.post_balances,
        "preTokenBalances": record.pre_token_balances,
        "postTokenBalances": record.post_token_balances,
        "rewards": [],
    }


def _meta(record: TransactionRecord, *, parsed: bool) -> dict[str, Any]:
    outcome = record.outcome
    meta = _simple_meta(record) | {
        "innerInstructions": inner_instructions(outcome.inner, record.resolved.keys, parsed=parsed),
        "logMessages": outcome.logs,
        "computeUnitsConsumed": outcome.units,
    }
    if not parsed:
        meta["loadedAddresses"] = loaded_addresses_json(record.resolved)
    if outcome.return_data is not None:
        meta["returnData"] = return_data_json(outcome.return_data)
    return meta


def _with_accounts_only(record: TransactionRecord, max_version: int | None) -> dict[str, Any]:
    version = _version(record, max_version)
    body = {
        "signatures": [str(signature) for signature in record.transaction.signatures],
        "accountKeys": parsed_accounts(record.resolved),
    }
    return {"transaction": body, "meta": _simple_meta(record)} | version
