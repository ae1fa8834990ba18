"""Short ways to use a Solana node through solana-py, for the tests that do so. Not a plugin: it is imported by name, so
that runs without such tests do not load the client library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Commitment, Confirmed
from solana.rpc.models import TxOpts
from solana.rpc.websocket_api import SolanaWsClient
from solders.account_decoder import ParsedAccount
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction
from spl.token import instructions as spl
from spl.token import models as spl_models
from spl.token.constants import MINT_LEN, TOKEN_PROGRAM_ID

SOL = 10**9
SECONDS = 30.0

Wanted = TypeVar("Wanted")


async def sign(client: AsyncClient, instructions: list[Instruction], *keys: Keypair) -> VersionedTransaction:
    latest = await client.get_latest_blockhash(Confirmed)
    message = Message.new_with_blockhash(instructions, keys[0].pubkey(), latest.value.blockhash)
    return VersionedTransaction(message, list(keys))


async def send(
    client: AsyncClient, instructions: list[Instruction], *keys: Keypair, until: Commitment = Confirmed
) -> Any:
    """Signs, sends, waits for the commitment, and gives the signature."""
    transaction = await sign(client, instructions, *keys)
    sent = await client.send_transaction(transaction, TxOpts(preflight_commitment=Confirmed))
    statuses = await client.confirm_transaction(sent.value, until, sleep_seconds=0.05)
    (status,) = statuses.value
    assert status is not None
    assert status.err is None
    return sent.value


def pay(source: Keypair, to: Pubkey, lamports: int) -> Instruction:
    return transfer(TransferParams(from_pubkey=source.pubkey(), to_pubkey=to, lamports=lamports))


async def next_of(sockets: SolanaWsClient, kind: type[Wanted], fits: Callable[[Any], bool] = lambda _: True) -> Wanted:
    """The next notification of that kind that fits."""
    async with asyncio.timeout(SECONDS):
        async for notification in sockets:
            if isinstance(notification, kind) and fits(notification):
                return notification
    raise AssertionError("the socket was closed")


def info_of(account: ParsedAccount) -> dict[str, Any]:
    """The parsed state, as the loosely typed JSON it is."""
    parsed: Any = account.parsed
    info: dict[str, Any] = parsed["info"]
    return info


class Mint:
    """A token made with solana-py's instructions: six decimals, the payer mints."""

    def __init__(self, client: AsyncClient, payer: Keypair) -> None:
        self.client, self.payer, self.key = client, payer, Keypair()
        self.address = self.key.pubkey()

    async def create(self) -> None:
        rent = (await self.client.get_minimum_balance_for_rent_exemption(MINT_LEN)).value
        payer = self.payer.pubkey()
        create = create_account(
            CreateAccountParams(
                from_pubkey=payer, to_pubkey=self.address, lamports=rent, space=MINT_LEN, owner=TOKEN_PROGRAM_ID
            )
        )
        initialize = spl.initialize_mint(
            spl_models.InitializeMintParams(
                decimals=6, program_id=TOKEN_PROGRAM_ID, mint=self.address, mint_authority=payer
            )
        )
        await send(self.client, [create, initialize], self.payer, self.key)

    async def issue(self, owner: Pubkey, amount: int) -> Pubkey:
        payer = self.payer.pubkey()
        account = spl.get_associated_token_address(owner, self.address)
        mint = spl.mint_to(
            spl_models.MintToParams(
                program_id=TOKEN_PROGRAM_ID, mint=self.address, dest=account, mint_authority=payer, amount=amount
            )
        )
        create = spl.create_associated_token_account(payer, owner, self.address)
        await send(self.client, [create, mint], self.payer)
        return account
