"""Methods about SPL tokens: balances, supply, accounts by owner or delegate, the largest holders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from capstan.devnet.solana import params as p
from capstan.devnet.solana.errors import invalid_params
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods.accounts import keyed_accounts
from capstan.devnet.solana.methods.common import with_context
from capstan.devnet.solana.records import Bank
from capstan.devnet.solana.tokens import (
    Mint,
    TokenAccount,
    decode_account,
    decode_mint,
    is_token_program,
    ui_amount,
)

MAX_LARGEST_ACCOUNTS = 20


def get_token_account_balance(ledger: Ledger, params: Any) -> dict[str, Any]:
    address, config = p.read(params, str, p.CommitmentConfig, required=1)
    bank = p.bank_for(ledger, config)
    account = _existing(ledger, bank, p.pubkey(address))
    token = decode_account(account.data) if is_token_program(account.owner) else None
    if token is None:
        raise invalid_params("Invalid param: not a Token account")
    _, mint = _mint(ledger, bank, token.mint)
    return with_context(bank.slot, ui_amount(token.amount, mint.decimals))


def get_token_supply(ledger: Ledger, params: Any) -> dict[str, Any]:
    address, config = p.read(params, str, p.CommitmentConfig, required=1)
    bank = p.bank_for(ledger, config)
    account = _existing(ledger, bank, p.pubkey(address))
    if not is_token_program(account.owner):
        raise invalid_params("Invalid param: not a Token mint")
    mint = decode_mint(account.data)
    if mint is None:
        raise invalid_params("Invalid param: mint could not be unpacked")
    return with_context(bank.slot, ui_amount(mint.supply, mint.decimals))


def get_token_largest_accounts(ledger: Ledger, params: Any) -> dict[str, Any]:
    address, config = p.read(params, str, p.CommitmentConfig, required=1)
    key = p.pubkey(address)
    bank = p.bank_for(ledger, config)
    program, mint = _mint(ledger, bank, key)
    holders = [
        (token.amount, bytes(holder), holder)
        for holder, account in ledger.program_accounts(program, bank.slot).items()
        if (token := decode_account(account.data)) is not None and token.mint == key
    ]
    largest = sorted(holders, reverse=True)[:MAX_LARGEST_ACCOUNTS]
    return with_context(
        bank.slot,
        [{"address": str(holder)} | ui_amount(amount, mint.decimals) for amount, _, holder in largest],
    )


def get_token_accounts_by_owner(ledger: Ledger, params: Any) -> dict[str, Any]:
    owner, token_filter, config = p.read(params, str, p.TokenFilter, p.AccountConfig, required=2)
    key = p.pubkey(owner)
    return _accounts_where(ledger, token_filter, config, lambda token: token.owner == key)


def get_token_accounts_by_delegate(ledger: Ledger, params: Any) -> dict[str, Any]:
    delegate, token_filter, config = p.read(params, str, p.TokenFilter, p.AccountConfig, required=2)
    key = p.pubkey(delegate)
    return _accounts_where(ledger, token_filter, config, lambda token: token.delegate == key)


def _accounts_where(
    ledger: Ledger,
    token_filter: p.TokenFilter,
    config: p.AccountConfig | None,
    matches: Callable[[TokenAccount], bool],
) -> dict[str, Any]:
    config = config or p.AccountConfig()
    bank = p.bank_for(ledger, config)
    program, mint = _program_and_mint(ledger, bank, token_filter)
    found = {
        address: account
        for address, account in ledger.program_accounts(program, bank.slot).items()
        if (token := decode_account(account.data)) is not None
        and matches(token)
        and (mint is None or token.mint == mint)
    }
    return with_context(bank.slot, keyed_accounts(ledger, bank, found, config))


def _program_and_mint(ledger: Ledger, bank: Bank, token_filter: p.TokenFilter) -> tuple[Pubkey, Pubkey | None]:
    if token_filter.mint is not None:
        mint = p.pubkey(token_filter.mint)
        program, _ = _mint(ledger, bank, mint)
        return program, mint
    if token_filter.program_id is None:
        raise invalid_params("Invalid params: expected `mint` or `programId`.")
    program = p.pubkey(token_filter.program_id)
    if not is_token_program(program):
        raise invalid_params("Invalid param: unrecognized Token program id")
    return program, None


def _existing(ledger: Ledger, bank: Bank, address: Pubkey) -> Account:
    account = ledger.account(address, bank.slot)
    if account is None:
        raise invalid_params("Invalid param: could not find account")
    return account


def _mint(ledger: Ledger, bank: Bank, address: Pubkey) -> tuple[Pubkey, Mint]:
    """The token program and state of a mint."""
    account = ledger.account(address, bank.slot)
    if account is None:
        raise invalid_params("Invalid param: could not find mint")
    mint = decode_mint(account.data)
    if mint is None:
        raise invalid_params("Invalid param: Token mint could not be unpacked")
    if not is_token_program(account.owner):
        raise invalid_params("Invalid param: not a Token mint")
    return account.owner, mint
