"""Methods that run transactions: airdrop, send, simulate.

Simulation always runs on the newest state, whatever commitment is asked for: LiteSVM has no other. The context slot of
the reply says so.
"""

from __future__ import annotations

import secrets
from typing import Any

from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import SanitizeError, VersionedTransaction

from capstan.devnet.solana import error_text
from capstan.devnet.solana import params as p
from capstan.devnet.solana.account_json import AccountEncoding, encode_account
from capstan.devnet.solana.binary import base58_decode, base64_decode
from capstan.devnet.solana.errors import (
    internal_error,
    invalid_params,
    min_context_slot_not_reached,
    preflight_failure,
    signature_verification_failure,
)
from capstan.devnet.solana.ledger import BlockFull, Ledger
from capstan.devnet.solana.machine import Outcome
from capstan.devnet.solana.messages import ResolvedMessage, UnsupportedMessage, message_of
from capstan.devnet.solana.methods.blocks import blockhash_json
from capstan.devnet.solana.methods.common import with_context
from capstan.devnet.solana.records import Commitment
from capstan.devnet.solana.tokens import token_balances
from capstan.devnet.solana.transaction_json import (
    TransactionEncoding,
    inner_instructions,
    loaded_addresses_json,
    return_data_json,
)

AIRDROP_ATTEMPTS = 5
PACKET_DATA_SIZE = 1232
MAX_BASE58_SIZE = 1683
MAX_BASE64_SIZE = 1644
_TYPE_NAME = "solana_transaction::versioned::VersionedTransaction"

# Failures the node finds while it takes the message apart, before it would run: bad parameters, not a failed run.
_SANITIZE_ERRORS = frozenset(
    {
        "SanitizeFailure",
        "InvalidAccountIndex",
        "UnsupportedVersion",
        "AddressLookupTableNotFound",
        "InvalidAddressLookupTableOwner",
        "InvalidAddressLookupTableData",
        "InvalidAddressLookupTableIndex",
    }
)


def request_airdrop(ledger: Ledger, params: Any) -> str:
    """A plain transfer from the faucet, signed by it, so that it can be looked up like any other."""
    text, lamports, config = p.read(params, str, p.U64, p.AirdropConfig, required=2)
    recipient = p.pubkey(text)
    given = config.recent_blockhash if config else None
    blockhash = ledger.bank(Commitment.CONFIRMED).blockhash if given is None else p.blockhash(given)
    faucet = ledger.faucet.pubkey()
    instructions = [transfer(TransferParams(from_pubkey=faucet, to_pubkey=recipient, lamports=lamports))]
    for _ in range(AIRDROP_ATTEMPTS):
        message = Message.new_with_blockhash(instructions, faucet, blockhash)
        transaction = VersionedTransaction(message, [ledger.faucet])
        outcome = _execute(ledger, transaction)
        if outcome.error != "AlreadyProcessed":
            break
        # The same airdrop twice on one blockhash is the same transaction. An unused limit makes it another one.
        instructions[1:] = [set_compute_unit_limit(10_000 + secrets.randbelow(1_000_000))]
    if outcome.error is not None:
        raise internal_error(f"airdrop request failed: {error_text.describe(outcome.error)}")
    return str(transaction.signatures[0])


def send_transaction(ledger: Ledger, params: Any) -> str:
    data, config = p.read(params, str, p.SendConfig, required=1)
    config = config or p.SendConfig()
    transaction = _decode(data, config.encoding)
    _check_min_context(ledger, config.min_context_slot)
    if not config.skip_preflight:
        if not all(transaction.verify_with_results()):
            raise signature_verification_failure()
        outcome = ledger.simulate(transaction, verify=True)
        _reject_unsanitary(outcome)
        if outcome.error is not None:
            raise preflight_failure(error_text.describe(outcome.error), _simulation(outcome))
    # Without preflight a node only passes the transaction on, so what is wrong with it is not reported here.
    _execute(ledger, transaction)
    return str(transaction.signatures[0])


def _execute(ledger: Ledger, transaction: VersionedTransaction) -> Outcome:
    try:
        return ledger.execute(transaction)
    except BlockFull as error:
        raise internal_error(f"Internal error: {error}") from error


def simulate_transaction(ledger: Ledger, params: Any) -> dict[str, Any]:
    data, config = p.read(params, str, p.SimulateConfig, required=1)
    config = config or p.SimulateConfig()
    transaction = _decode(data, config.encoding)
    _check_min_context(ledger, config.min_context_slot)
    bank = ledger.bank(Commitment.PROCESSED)
    replacement = None
    if config.replace_recent_blockhash:
        if config.sig_verify:
            raise invalid_params("sigVerify may not be used with replaceRecentBlockhash")
        transaction = _with_blockhash(transaction, bank.blockhash)
        replacement = blockhash_json(bank)
    if config.sig_verify and not all(transaction.verify_with_results()):
        raise signature_verification_failure()
    resolved = ledger.resolve(transaction)
    outcome = ledger.simulate(transaction, verify=False)
    _reject_unsanitary(outcome)
    result = _simulation(outcome) | {
        "accounts": _simulated_accounts(ledger, config.accounts, outcome, resolved),
        "replacementBlockhash": replacement,
    }
    if resolved is not None:
        result |= _simulated_balances(ledger, outcome, resolved)
        if config.inner_instructions:
            result["innerInstructions"] = inner_instructions(outcome.inner, resolved.keys, parsed=True)
    return with_context(bank.slot, result)


def _simulation(outcome: Outcome) -> dict[str, Any]:
    """`RpcSimulateTransactionResult`. LiteSVM does not say how much account data was loaded, so that stays null."""
    return {
        "err": outcome.error,
        "logs": outcome.logs,
        "accounts": None,
        "unitsConsumed": outcome.units,
        "loadedAccountsDataSize": None,
        "returnData": return_data_json(outcome.return_data),
        "innerInstructions": None,
        "replacementBlockhash": None,
        "fee": outcome.fee or None,  # nothing is free: zero means it never came to a price
        "preBalances": None,
        "postBalances": None,
        "preTokenBalances": None,
        "postTokenBalances": None,
        "loadedAddresses": None,
    }


def _simulated_balances(ledger: Ledger, outcome: Outcome, resolved: ResolvedMessage) -> dict[str, Any]:
    def before(address: Pubkey) -> Any:
        return ledger.account(address, ledger.slot)

    def after(address: Pubkey) -> Any:
        return outcome.accounts.get(address) or before(address)

    def lamports(read: Any) -> list[int]:
        accounts = (read(key) for key in resolved.keys)
        return [0 if account is None else account.lamports for account in accounts]

    result: dict[str, Any] = {
        "preBalances": lamports(before),
        "preTokenBalances": token_balances(resolved.keys, before),
        "loadedAddresses": loaded_addresses_json(resolved),
    }
    if outcome.error is None:
        result |= {"postBalances": lamports(after), "postTokenBalances": token_balances(resolved.keys, after)}
    return result


def _simulated_accounts(
    ledger: Ledger, wanted: p.SimulatedAccounts | None, outcome: Outcome, resolved: ResolvedMessage | None
) -> list[Any] | None:
    if wanted is None:
        return None
    encoding = wanted.encoding or AccountEncoding.BASE64
    if encoding in (AccountEncoding.BINARY, AccountEncoding.BASE58):
        raise invalid_params("base58 encoding not supported")
    count = 0 if resolved is None else len(resolved.keys)
    if len(wanted.addresses) > count:
        raise invalid_params(f"Too many accounts provided; max {count}")
    if outcome.error is not None:
        return [None] * len(wanted.addresses)

    def read(address: Pubkey) -> Any:
        account = outcome.accounts.get(address) or ledger.account(address, ledger.slot)
        return account if account is not None and account.lamports else None

    keys = [p.pubkey(text) for text in wanted.addresses]
    accounts = [(key, read(key)) for key in keys]
    return [
        None if account is None else encode_account(key, account, encoding, None, read) for key, account in accounts
    ]


def _check_min_context(ledger: Ledger, minimum: int | None) -> None:
    if minimum is not None and ledger.slot < minimum:
        raise min_context_slot_not_reached(ledger.slot)


def _reject_unsanitary(outcome: Outcome) -> None:
    if isinstance(outcome.error, str) and outcome.error in _SANITIZE_ERRORS:
        raise invalid_params(f"invalid transaction: {error_text.describe(outcome.error)}")


def _decode(data: str, encoding: TransactionEncoding | None) -> VersionedTransaction:
    wire = _wire_bytes(data, encoding or TransactionEncoding.BASE58)
    if len(wire) > PACKET_DATA_SIZE:
        raise invalid_params(f"decoded {_TYPE_NAME} too large: {len(wire)} bytes (max: {PACKET_DATA_SIZE} bytes)")
    try:
        transaction = VersionedTransaction.from_bytes(wire)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize {_TYPE_NAME}: {error}") from error
    try:
        transaction.sanitize()
        message_of(transaction)
    except SanitizeError as error:
        raise invalid_params(f"invalid transaction: {error_text.describe('SanitizeFailure')}") from error
    except UnsupportedMessage as error:
        raise invalid_params(f"invalid transaction: {error_text.describe('UnsupportedVersion')}") from error
    return transaction


def _wire_bytes(data: str, encoding: TransactionEncoding) -> bytes:
    if encoding in (TransactionEncoding.BASE58, TransactionEncoding.BINARY):
        name, limit, decode = "base58", MAX_BASE58_SIZE, base58_decode
    elif encoding is TransactionEncoding.BASE64:
        name, limit, decode = "base64", MAX_BASE64_SIZE, base64_decode
    else:
        raise invalid_params(f"unsupported encoding: {encoding}. Supported encodings: base58, base64")
    if len(data) > limit:
        size = f"{len(data)} bytes (max: encoded/raw {limit}/{PACKET_DATA_SIZE})"
        raise invalid_params(f"{name} encoded {_TYPE_NAME} too large: {size}")
    try:
        return decode(data)
    except ValueError as error:
        raise invalid_params(f"invalid {name} encoding: {error}") from error


def _with_blockhash(transaction: VersionedTransaction, blockhash: Hash) -> VersionedTransaction:
    """The same transaction on another blockhash. Its signatures no longer match; they are not checked here."""
    message = message_of(transaction)
    if isinstance(message, MessageV0):
        changed: Message | MessageV0 = MessageV0(
            message.header, message.account_keys, blockhash, message.instructions, message.address_table_lookups
        )
    else:
        header = message.header
        changed = Message.new_with_compiled_instructions(
            header.num_required_signatures,
            header.num_readonly_signed_accounts,
            header.num_readonly_unsigned_accounts,
            message.account_keys,
            blockhash,
            message.instructions,
        )
    return VersionedTransaction.populate(changed, transaction.signatures)
