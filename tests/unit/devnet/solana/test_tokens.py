"""SPL token state: decoded from what the real token programs write, and from nothing else."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account
from spl.token import instructions as spl
from spl.token import models as spl_models

from capstan.devnet.solana.programs import TOKEN, TOKEN_2022
from capstan.devnet.solana.tokens import decimal_text, decode_account, decode_mint, decode_multisig, ui_amount
from tests.unit.devnet.solana.chain import Chain

PARSED = {"encoding": "jsonParsed", "commitment": "processed"}


@given(st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=0, max_value=30))
def test_the_text_of_an_amount_is_exact(amount: int, decimals: int) -> None:
    text = decimal_text(amount, decimals)
    assert Decimal(text) == Decimal(amount).scaleb(-decimals)
    assert "." not in text or not text.endswith("0")


def test_an_amount_with_too_many_decimals_has_no_float() -> None:
    assert ui_amount(1, 19)["uiAmount"] == 1e-19
    assert ui_amount(1, 20)["uiAmount"] is None
    assert ui_amount(1_500_000, 6) == {
        "uiAmount": 1.5,
        "decimals": 6,
        "amount": "1500000",
        "uiAmountString": "1.5",
    }


@pytest.mark.parametrize("length", [0, 1, 82, 164, 165, 166, 355, 500])
def test_zeroed_data_is_no_token_state(length: int) -> None:
    data = bytes(length)
    assert decode_account(data) is None
    assert decode_mint(data) is None
    assert decode_multisig(data) is None


class Token:
    """A mint with six decimals, made by the real program."""

    def __init__(self, chain: Chain, program: Pubkey) -> None:
        self.chain, self.program = chain, program
        self.authority = chain.key.pubkey()
        mint = Keypair()
        self.mint = mint.pubkey()
        create = create_account(
            CreateAccountParams(
                from_pubkey=self.authority,
                to_pubkey=self.mint,
                lamports=chain.ledger.rent_exempt_minimum(82),
                space=82,
                owner=program,
            )
        )
        initialize = spl.initialize_mint(
            spl_models.InitializeMintParams(
                decimals=6, program_id=program, mint=self.mint, mint_authority=self.authority, freeze_authority=None
            )
        )
        chain.run([create, initialize], chain.key, mint)

    def account_of(self, owner: Pubkey) -> Pubkey:
        chain = self.chain
        chain.run([spl.create_associated_token_account(self.authority, owner, self.mint, self.program)])
        return spl.get_associated_token_address(owner, self.mint, self.program)

    def mint_to(self, account: Pubkey, amount: int) -> None:
        self.chain.run([self.instruction(7, amount, (self.mint, account))])

    def instruction(self, number: int, amount: int, accounts: tuple[Pubkey, ...]) -> Instruction:
        metas = [AccountMeta(account, False, True) for account in accounts]
        metas.append(AccountMeta(self.authority, True, False))
        return Instruction(self.program, struct.pack("<BQ", number, amount), metas)


@pytest.fixture(params=[TOKEN, TOKEN_2022], ids=["spl-token", "spl-token-2022"])
def token(request: pytest.FixtureRequest) -> Token:
    return Token(Chain(), request.param)


def parsed(chain: Chain, address: Pubkey) -> dict[str, Any]:
    data: dict[str, Any] = chain.result("getAccountInfo", str(address), PARSED)["value"]["data"]
    return data


def test_a_mint_and_its_accounts_are_parsed(token: Token) -> None:
    owner = Pubkey.new_unique()
    account = token.account_of(owner)
    token.mint_to(account, 1_234_500)
    mint = parsed(token.chain, token.mint)
    name = "spl-token" if token.program == TOKEN else "spl-token-2022"
    assert mint["program"] == name
    assert mint["parsed"] == {
        "type": "mint",
        "info": {
            "mintAuthority": str(token.authority),
            "supply": "1234500",
            "decimals": 6,
            "isInitialized": True,
            "freezeAuthority": None,
        },
    }
    holder = parsed(token.chain, account)["parsed"]
    assert holder["type"] == "account"
    assert holder["info"]["owner"] == str(owner)
    assert holder["info"]["mint"] == str(token.mint)
    assert holder["info"]["tokenAmount"]["uiAmountString"] == "1.2345"
    assert holder["info"]["state"] == "initialized"
    extensions = holder["info"].get("extensions")
    assert extensions == (None if token.program == TOKEN else [{"extension": "immutableOwner"}])


def test_balances_supply_and_holders(token: Token) -> None:
    chain = token.chain
    first, second = Pubkey.new_unique(), Pubkey.new_unique()
    accounts = token.account_of(first), token.account_of(second)
    token.mint_to(accounts[0], 3_000_000)
    token.mint_to(accounts[1], 5_000_000)
    chain.advance(3)
    assert chain.result("getTokenAccountBalance", str(accounts[0]))["value"]["amount"] == "3000000"
    assert chain.result("getTokenSupply", str(token.mint))["value"]["uiAmountString"] == "8"
    largest = chain.result("getTokenLargestAccounts", str(token.mint))["value"]
    assert [item["address"] for item in largest] == [str(accounts[1]), str(accounts[0])]
    for token_filter in ({"mint": str(token.mint)}, {"programId": str(token.program)}):
        (held,) = chain.result("getTokenAccountsByOwner", str(first), token_filter, PARSED)["value"]
        assert held["pubkey"] == str(accounts[0])
        assert held["account"]["data"]["parsed"]["info"]["tokenAmount"]["amount"] == "3000000"
    assert chain.result("getTokenAccountsByOwner", str(token.mint), {"programId": str(token.program)})["value"] == []
    state = chain.result(
        "getProgramAccounts", str(token.program), {"encoding": "base64", "filters": ["tokenAccountState"]}
    )
    assert {item["pubkey"] for item in state} == {str(account) for account in accounts}


def test_a_delegate_finds_what_it_may_spend(token: Token) -> None:
    chain = token.chain
    account, delegate = token.account_of(token.authority), Pubkey.new_unique()
    token.mint_to(account, 10)
    chain.run([token.instruction(4, 7, (account, delegate))])
    (found,) = chain.result("getTokenAccountsByDelegate", str(delegate), {"mint": str(token.mint)}, PARSED)["value"]
    info = found["account"]["data"]["parsed"]["info"]
    assert info["delegate"] == str(delegate)
    assert info["delegatedAmount"]["amount"] == "7"


def test_a_landed_transaction_lists_token_balances_before_and_after(token: Token) -> None:
    chain = token.chain
    account = token.account_of(Pubkey.new_unique())
    token.mint_to(account, 5)
    token.mint_to(account, 6)
    chain.advance(3)
    newest = chain.result("getSignaturesForAddress", str(account))[0]["signature"]
    meta = chain.result("getTransaction", newest)["meta"]
    (before,), (after,) = meta["preTokenBalances"], meta["postTokenBalances"]
    assert (before["uiTokenAmount"]["amount"], after["uiTokenAmount"]["amount"]) == ("5", "11")
    assert after["mint"] == str(token.mint)
    assert after["programId"] == str(token.program)


def test_token_instructions_are_parsed_also_inside_others(token: Token) -> None:
    chain = token.chain
    owner = Pubkey.new_unique()
    account = token.account_of(owner)
    chain.advance(3)
    newest = chain.result("getSignaturesForAddress", str(account))[0]["signature"]
    found = chain.result("getTransaction", newest, "jsonParsed")
    (top,) = found["transaction"]["message"]["instructions"]
    assert top["program"] == "spl-associated-token-account"
    assert top["parsed"]["type"] == "create"
    assert top["parsed"]["info"]["wallet"] == str(owner)
    assert top["stackHeight"] == 1
    (group,) = found["meta"]["innerInstructions"]
    kinds = [call["parsed"]["type"] for call in group["instructions"] if "parsed" in call]
    assert "createAccount" in kinds
    assert kinds[-1] == "initializeAccount3"
    assert all(call["stackHeight"] == 2 for call in group["instructions"])
