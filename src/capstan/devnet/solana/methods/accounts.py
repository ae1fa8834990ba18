"""Methods that read accounts: one, several, or all of a program's."""

from __future__ import annotations

from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from capstan.devnet.solana import params as p
from capstan.devnet.solana.account_json import AccountEncoding, encode_account
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods.common import with_context
from capstan.devnet.solana.records import Bank

MAX_MULTIPLE_ACCOUNTS = 100


def get_balance(ledger: Ledger, params: Any) -> dict[str, Any]:
    address, config = p.read(params, str, p.ContextConfig, required=1)
    key = p.pubkey(address)
    bank = p.bank_for(ledger, config)
    account = ledger.account(key, bank.slot)
    return with_context(bank.slot, 0 if account is None else account.lamports)


def get_account_info(ledger: Ledger, params: Any) -> dict[str, Any]:
    address, config = p.read(params, str, p.AccountConfig, required=1)
    key = p.pubkey(address)
    config = config or p.AccountConfig()
    bank = p.bank_for(ledger, config)
    return with_context(bank.slot, _account_json(ledger, bank, key, config, AccountEncoding.BINARY))


def get_multiple_accounts(ledger: Ledger, params: Any) -> dict[str, Any]:
    addresses, config = p.read(params, list[str], p.AccountConfig, required=1)
    keys = p.pubkeys(addresses, MAX_MULTIPLE_ACCOUNTS)
    config = config or p.AccountConfig()
    bank = p.bank_for(ledger, config)
    values = [_account_json(ledger, bank, key, config, AccountEncoding.BASE64) for key in keys]
    return with_context(bank.slot, values)


def get_program_accounts(ledger: Ledger, params: Any) -> Any:
    program, config = p.read(params, str, p.ProgramAccountsConfig, required=1)
    key = p.pubkey(program)
    config = config or p.ProgramAccountsConfig()
    filters = p.compile_filters(config.filters)
    bank = p.bank_for(ledger, config)
    found = {
        address: account
        for address, account in ledger.program_accounts(key, bank.slot).items()
        if all(allows(account.data) for allows in filters)
    }
    keyed = keyed_accounts(ledger, bank, found, config)
    return with_context(bank.slot, keyed) if config.with_context else keyed


def keyed_accounts(
    ledger: Ledger, bank: Bank, found: dict[Pubkey, Account], config: p.AccountConfig
) -> list[dict[str, Any]]:
    """`RpcKeyedAccount` for each, ordered by address so that two equal questions have equal answers."""
    encoding = config.encoding or AccountEncoding.BINARY
    return [
        {
            "pubkey": str(address),
            "account": encode_account(
                address, found[address], encoding, config.data_slice, lambda key: ledger.account(key, bank.slot)
            ),
        }
        for address in sorted(found, key=bytes)
    ]


def _account_json(
    ledger: Ledger, bank: Bank, key: Pubkey, config: p.AccountConfig, default: AccountEncoding
) -> dict[str, Any] | None:
    account = ledger.account(key, bank.slot)
    if account is None:
        return None
    return encode_account(
        key, account, config.encoding or default, config.data_slice, lambda other: ledger.account(other, bank.slot)
    )
