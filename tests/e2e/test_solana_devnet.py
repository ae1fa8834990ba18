"""The Solana development node as its users meet it: through solana-py and solders, over real HTTP and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Commitment, Confirmed, Finalized, Processed
from solana.rpc.core import RPCException
from solana.rpc.jsonrpc import SolanaJsonRpcError
from solana.rpc.models import DataSliceOpts, MemcmpOpts, TokenAccountOpts, TxOpts
from solana.rpc.websocket_api import SolanaWsClient
from solders.account_decoder import ParsedAccount
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.rpc.config import RpcTransactionLogsFilterMentions
from solders.rpc.errors import (
    InvalidParamsMessage,
    MethodNotFoundMessage,
    SendTransactionPreflightFailureMessage,
    UnsupportedTransactionVersionMessage,
)
from solders.rpc.requests import GetBalance, GetHealth, GetSlot, batch_to_json
from solders.rpc.responses import (
    AccountNotification,
    GetBalanceResp,
    GetHealthResp,
    GetSlotResp,
    LogsNotification,
    ProgramNotification,
    RootNotification,
    SignatureNotification,
    SlotNotification,
    batch_from_json,
)
from solders.transaction import VersionedTransaction
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.token import instructions as spl
from spl.token import models as spl_models
from spl.token.constants import TOKEN_PROGRAM_ID

from tests.support.solana import websocket_url
from tests.support.solana_client import SECONDS, SOL, Mint, info_of, next_of, pay, send, sign


@pytest.fixture
async def client(solana_devnet: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(solana_devnet, Confirmed, timeout=SECONDS) as client:
        yield client


@pytest.fixture
async def payer(client: AsyncClient) -> Keypair:
    """A key with ten SOL that a confirmed block knows about."""
    key = Keypair()
    airdrop = await client.request_airdrop(key.pubkey(), 10 * SOL)
    await client.confirm_transaction(airdrop.value, Confirmed, sleep_seconds=0.05)
    return key


@pytest.fixture
async def sockets(solana_devnet: str) -> AsyncIterator[SolanaWsClient]:
    async with SolanaWsClient(websocket_url(solana_devnet)) as sockets:
        yield sockets


async def test_an_airdrop_reaches_finality(client: AsyncClient) -> None:
    key = Keypair()
    airdrop = await client.request_airdrop(key.pubkey(), 2 * SOL)
    assert (await client.get_balance(key.pubkey(), Processed)).value == 2 * SOL
    await client.confirm_transaction(airdrop.value, Finalized, sleep_seconds=0.05)
    assert (await client.get_balance(key.pubkey(), Finalized)).value == 2 * SOL


async def test_a_transfer_is_paid_confirmed_and_can_be_looked_up(client: AsyncClient, payer: Keypair) -> None:
    to = Pubkey.new_unique()
    signature = await send(client, [pay(payer, to, SOL)], payer, until=Finalized)
    assert (await client.get_balance(to, Finalized)).value == SOL
    assert (await client.get_balance(payer.pubkey(), Finalized)).value == 9 * SOL - 5_000
    slots = set()
    for encoding in ("json", "jsonParsed", "base64", "base58"):
        found = (await client.get_transaction(signature, encoding, Finalized)).value
        assert found is not None
        slots.add(found.slot)
        meta = found.transaction.meta
        assert meta is not None
        assert meta.err is None
        assert meta.fee == 5_000
        assert meta.post_balances[1] == SOL
    listed = (await client.get_signatures_for_address(to, commitment=Finalized)).value
    assert [entry.signature for entry in listed] == [signature]
    block = (await client.get_block(slots.pop(), "base64", commitment=Finalized)).value
    assert block is not None
    assert block.transactions is not None
    transactions = [item.transaction for item in block.transactions]
    assert any(isinstance(item, VersionedTransaction) and item.signatures[0] == signature for item in transactions)


async def test_a_versioned_transaction_needs_a_client_that_knows_it(client: AsyncClient, payer: Keypair) -> None:
    latest = await client.get_latest_blockhash(Confirmed)
    instruction = pay(payer, Pubkey.new_unique(), SOL)
    message = MessageV0.try_compile(payer.pubkey(), [instruction], [], latest.value.blockhash)
    sent = await client.send_transaction(VersionedTransaction(message, [payer]))
    await client.confirm_transaction(sent.value, Confirmed, sleep_seconds=0.05)
    with pytest.raises(RPCException) as refused:
        await client.get_transaction(sent.value)
    assert isinstance(refused.value.args[0], UnsupportedTransactionVersionMessage)
    found = (await client.get_transaction(sent.value, max_supported_transaction_version=0)).value
    assert found is not None
    assert found.transaction.version == 0


async def test_a_blockhash_from_some_blocks_ago_is_still_accepted(
    client: AsyncClient, payer: Keypair, sockets: SolanaWsClient
) -> None:
    latest = (await client.get_latest_blockhash(Finalized)).value
    start = (await client.get_slot(Processed)).value
    await sockets.slot_subscribe()
    await next_of(sockets, SlotNotification, lambda told: told.result.slot >= start + 5)
    to = Pubkey.new_unique()
    message = Message.new_with_blockhash([pay(payer, to, SOL)], payer.pubkey(), latest.blockhash)
    sent = await client.send_transaction(VersionedTransaction(message, [payer]))
    await client.confirm_transaction(sent.value, Confirmed, sleep_seconds=0.05)
    assert (await client.get_balance(to, Confirmed)).value == SOL


async def test_an_unknown_blockhash_is_refused_in_solanas_words(client: AsyncClient, payer: Keypair) -> None:
    message = Message.new_with_blockhash([pay(payer, Pubkey.new_unique(), SOL)], payer.pubkey(), Hash.new_unique())
    with pytest.raises(RPCException) as refused:
        await client.send_transaction(VersionedTransaction(message, [payer]))
    error = refused.value.args[0]
    assert isinstance(error, SendTransactionPreflightFailureMessage)
    assert error.message == "Transaction simulation failed: Blockhash not found"


async def test_a_failing_transaction_is_simulated_with_its_logs(client: AsyncClient, payer: Keypair) -> None:
    transaction = await sign(client, [pay(payer, Pubkey.new_unique(), 50 * SOL)], payer)
    result = (await client.simulate_transaction(transaction, sig_verify=True)).value
    assert result.err == TransactionErrorInstructionError(0, InstructionErrorCustom(1))
    assert result.logs is not None
    assert any("insufficient lamports" in line for line in result.logs)
    with pytest.raises(RPCException) as refused:
        await client.send_transaction(transaction)
    error = refused.value.args[0]
    assert isinstance(error, SendTransactionPreflightFailureMessage)
    assert error.data.err == result.err
    assert error.data.logs == result.logs
    assert (await client.get_balance(payer.pubkey(), Processed)).value == 10 * SOL


async def test_sending_without_preflight_lands_the_failure(client: AsyncClient, payer: Keypair) -> None:
    transaction = await sign(client, [pay(payer, Pubkey.new_unique(), 50 * SOL)], payer)
    sent = await client.send_transaction(transaction, TxOpts(skip_preflight=True))
    statuses = await client.confirm_transaction(sent.value, Confirmed, sleep_seconds=0.05)
    assert statuses.value[0] is not None
    assert statuses.value[0].err == TransactionErrorInstructionError(0, InstructionErrorCustom(1))


async def test_the_fee_asked_for_is_the_fee_charged(client: AsyncClient, payer: Keypair) -> None:
    transaction = await sign(client, [pay(payer, payer.pubkey(), 1)], payer)
    assert isinstance(transaction.message, Message)
    fee = (await client.get_fee_for_message(transaction.message, Confirmed)).value  # type: ignore[arg-type]  # solana-py's annotation knows only v0, its code takes both
    assert fee == 5_000


async def test_a_token_is_created_issued_moved_and_read(client: AsyncClient, payer: Keypair) -> None:
    mint = Mint(client, payer)
    await mint.create()
    other = Pubkey.new_unique()
    source = await mint.issue(payer.pubkey(), 5_000_000)
    target = await mint.issue(other, 1)
    move = spl.transfer_checked(
        spl_models.TransferCheckedParams(
            program_id=TOKEN_PROGRAM_ID,
            source=source,
            mint=mint.address,
            dest=target,
            owner=payer.pubkey(),
            amount=1_500_000,
            decimals=6,
        )
    )
    signature = await send(client, [move], payer)
    assert (await client.get_token_account_balance(source)).value.ui_amount_string == "3.5"
    assert (await client.get_token_supply(mint.address)).value.amount == "5000001"
    raw = (await client.get_token_accounts_by_owner(other, TokenAccountOpts(mint=mint.address))).value
    assert [item.pubkey for item in raw] == [target]
    assert len(raw[0].account.data) == 165
    options = TokenAccountOpts(program_id=TOKEN_PROGRAM_ID)
    parsed = (await client.get_token_accounts_by_owner_json_parsed(other, options)).value
    assert info_of(parsed[0].account.data)["tokenAmount"]["amount"] == "1500001"
    largest = (await client.get_token_largest_accounts(mint.address)).value
    assert [item.address for item in largest] == [source, target]
    found = (await client.get_transaction(signature)).value
    assert found is not None
    meta = found.transaction.meta
    assert meta is not None
    assert meta.pre_token_balances is not None
    assert meta.post_token_balances is not None
    before = {item.account_index: int(item.ui_token_amount.amount) for item in meta.pre_token_balances}
    after = {item.account_index: int(item.ui_token_amount.amount) for item in meta.post_token_balances}
    assert sorted(after[index] - before[index] for index in after) == [-1_500_000, 1_500_000]


async def test_program_accounts_are_found_by_filter(client: AsyncClient, payer: Keypair) -> None:
    mint = Mint(client, payer)
    await mint.create()
    account = await mint.issue(payer.pubkey(), 7)
    filters: list[int | MemcmpOpts] = [165, MemcmpOpts(offset=0, bytes=str(mint.address))]
    found = await client.get_program_accounts(
        TOKEN_PROGRAM_ID, encoding="base64", data_slice=DataSliceOpts(offset=64, length=8), filters=filters
    )
    ((address, data),) = [(item.pubkey, item.account.data) for item in found.value]
    assert address == account
    assert int.from_bytes(data, "little") == 7
    parsed = await client.get_account_info_json_parsed(mint.address)
    assert parsed.value is not None
    assert isinstance(parsed.value.data, ParsedAccount)
    assert info_of(parsed.value.data)["supply"] == "7"


async def test_account_data_is_the_same_in_every_encoding(client: AsyncClient) -> None:
    plain = (await client.get_account_info(MEMO_PROGRAM_ID, encoding="base64")).value
    packed = (await client.get_account_info(MEMO_PROGRAM_ID, encoding="base64+zstd")).value
    assert plain is not None
    assert plain == packed
    assert plain.data[:4] == b"\x7fELF"
    assert plain.executable


async def test_slots_roots_and_block_heights_move_together(client: AsyncClient, sockets: SolanaWsClient) -> None:
    slots, roots = await sockets.slot_subscribe(), await sockets.root_subscribe()
    first = await next_of(sockets, SlotNotification)
    second = await next_of(sockets, SlotNotification)
    assert first.subscription == slots.subscription_id
    assert second.result.slot == first.result.slot + 1 == second.result.parent + 1
    root = await next_of(sockets, RootNotification)
    assert root.subscription == roots.subscription_id
    assert root.result <= second.result.slot
    info = (await client.get_epoch_info(Processed)).value
    assert info.absolute_slot >= second.result.slot
    assert info.block_height == info.absolute_slot
    await sockets.unsubscribe(slots)
    await sockets.unsubscribe(roots)


async def test_an_account_and_its_program_are_announced(
    client: AsyncClient, payer: Keypair, sockets: SolanaWsClient
) -> None:
    to = Pubkey.new_unique()
    account = await sockets.account_subscribe(pubkey=to, commitment=Confirmed, encoding="base64")
    await sockets.program_subscribe(program_id=Pubkey.default(), commitment=Confirmed, encoding="base64", filters=[0])
    signature = await send(client, [pay(payer, to, SOL)], payer)
    # Account subscribers are told of an account before subscribers of its program.
    told = await next_of(sockets, AccountNotification)
    owned = await next_of(sockets, ProgramNotification, lambda item: item.result.value.pubkey == to)
    assert told.subscription == account.subscription_id
    assert told.result.value.lamports == SOL
    assert owned.result.value.account.lamports == SOL
    found = (await client.get_transaction(signature)).value
    assert found is not None
    assert told.result.context.slot == found.slot


@pytest.mark.parametrize("commitment", [Processed, Confirmed, Finalized])
async def test_a_signature_is_announced_once_and_the_subscription_ends(
    client: AsyncClient, payer: Keypair, sockets: SolanaWsClient, commitment: Commitment
) -> None:
    transaction = await sign(client, [pay(payer, Pubkey.new_unique(), SOL)], payer)
    signature = transaction.signatures[0]
    subscription = await sockets.signature_subscribe(signature=signature, commitment=commitment)
    await client.send_transaction(transaction, TxOpts(preflight_commitment=Confirmed))
    told = await next_of(sockets, SignatureNotification)
    assert told.subscription == subscription.subscription_id
    assert told.result.value.err is None
    again = await sockets.signature_subscribe(signature=signature, commitment=commitment)
    repeated = await next_of(sockets, SignatureNotification)
    assert repeated.subscription == again.subscription_id
    assert repeated.result.context.slot == told.result.context.slot


async def test_logs_that_mention_an_address_are_announced(
    client: AsyncClient, payer: Keypair, sockets: SolanaWsClient
) -> None:
    to = Pubkey.new_unique()
    await sockets.logs_subscribe(filter_=RpcTransactionLogsFilterMentions(to), commitment=Confirmed)
    signature = await send(client, [pay(payer, to, SOL)], payer)
    told = await next_of(sockets, LogsNotification)
    assert told.result.value.signature == signature
    assert told.result.value.err is None
    assert "success" in told.result.value.logs[-1]


async def test_a_bad_subscription_is_an_error_not_a_closed_socket(sockets: SolanaWsClient) -> None:
    with pytest.raises(SolanaJsonRpcError) as refused:
        await sockets.vote_subscribe()
    assert (refused.value.code, refused.value.message) == (-32601, "Method not found")
    assert isinstance((await sockets.slot_subscribe()).subscription_id, int)


async def test_unknown_methods_and_bad_parameters_have_their_own_errors(client: AsyncClient) -> None:
    with pytest.raises(RPCException) as unknown:
        await client.get_vote_accounts()
    assert isinstance(unknown.value.args[0], MethodNotFoundMessage)
    with pytest.raises(RPCException) as bad:
        await client.get_token_supply(Pubkey.new_unique())
    assert isinstance(bad.value.args[0], InvalidParamsMessage)
    assert bad.value.args[0].message == "Invalid param: could not find account"


async def test_a_batch_is_answered_in_order(solana_devnet: str) -> None:
    requests: list[GetHealth | GetSlot | GetBalance] = [
        GetHealth(1),
        GetSlot(id=2),
        GetBalance(Pubkey.default(), id=3),
    ]
    headers = {"Content-Type": "application/json"}
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession() as http,
        http.post(solana_devnet, data=batch_to_json(requests), headers=headers) as reply,
    ):
        body = await reply.text()
    health, slot, balance = batch_from_json(body, [GetHealthResp, GetSlotResp, GetBalanceResp])
    assert isinstance(health, GetHealthResp)
    assert health.value == "ok"
    assert isinstance(slot, GetSlotResp)
    assert isinstance(balance, GetBalanceResp)
    assert balance.value == 1


async def test_absurdly_nested_json_does_not_end_the_node(solana_devnet: str) -> None:
    headers = {"Content-Type": "application/json"}
    async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as http:
        for body in (b"[" * 500_000, b'{"a":' * 100_000):
            async with http.post(solana_devnet, data=body, headers=headers) as reply:
                assert (await reply.json())["error"]["code"] == -32700
        async with http.post(solana_devnet, data=GetHealth().to_json(), headers=headers) as reply:
            assert (await reply.json())["result"] == "ok"
