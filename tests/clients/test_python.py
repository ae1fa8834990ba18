"""web3.py and solana-py over HTTP through the gateway of `capstan dev`, unchanged, against what the nodes say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from eth_account import Account
from eth_typing import BlockNumber
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Finalized
from solana.rpc.models import TokenAccountOpts
from solders.keypair import Keypair
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_PROGRAM
from spl.token.constants import TOKEN_PROGRAM_ID
from web3 import AsyncHTTPProvider, AsyncWeb3, Web3
from web3.exceptions import ContractLogicError, Web3RPCError
from web3.types import Wei

from tests.clients.inputs import WEB3_SENDER
from tests.support.development import Development
from tests.support.node import Node
from tests.support.servers import wait_until
from tests.support.solana_client import SOL, Mint, pay, send

ETHER = 10**18
# So many blocks are there, whenever these tests run.
OLD_BLOCKS = 20
NOBODY = Web3.to_checksum_address("0x" + "11" * 20)
TOKEN_ABI = [
    {
        "type": "function",
        "name": name,
        "stateMutability": mutability,
        "inputs": [{"name": f"a{place}", "type": kind} for place, kind in enumerate(kinds)],
        "outputs": [{"name": "", "type": kind} for kind in outputs],
    }
    for name, mutability, kinds, outputs in (
        ("mint", "nonpayable", ("address", "uint256"), ()),
        ("transfer", "nonpayable", ("address", "uint256"), ("bool",)),
        ("balanceOf", "view", ("address",), ("uint256",)),
        ("symbol", "view", (), ("string",)),
    )
] + [
    {
        "type": "event",
        "name": "Transfer",
        "anonymous": False,
        "inputs": [
            {"name": "sender", "type": "address", "indexed": True},
            {"name": "receiver", "type": "address", "indexed": True},
            {"name": "value", "type": "uint256", "indexed": False},
        ],
    }
]


def url_of(development: Development) -> str:
    return f"{development.base_url}/rpc/ethereum/devnet"


def headers_of(development: Development) -> dict[str, str]:
    return {"X-API-Key": development.api_key, "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def web3(development: Development) -> Web3:
    options = {"headers": headers_of(development), "timeout": 20}
    return Web3(Web3.HTTPProvider(url_of(development), request_kwargs=options))


@pytest.fixture(scope="module")
def direct(development: Development) -> Web3:
    """The same client, straight at the node."""
    Node(development.document["node_url"]).mine_to(OLD_BLOCKS)
    return Web3(Web3.HTTPProvider(development.document["node_url"]))


@pytest.fixture(scope="module")
def token(web3: Web3, development: Development) -> Any:
    address = Web3.to_checksum_address(development.document["tokens"][0]["address"])
    return web3.eth.contract(address=address, abi=TOKEN_ABI)


def fees(web3: Web3, sender: str) -> dict[str, Any]:
    return {
        "from": sender,
        "gas": 300_000,
        "nonce": web3.eth.get_transaction_count(Web3.to_checksum_address(sender), "pending"),
        "maxFeePerGas": Wei(20 * 10**9),
        "maxPriorityFeePerGas": Wei(10**9),
        "chainId": 31337,
    }


def test_web3_reads_what_the_node_says(web3: Web3, direct: Web3, development: Development, token: Any) -> None:
    first = Web3.to_checksum_address(development.document["accounts"][0]["address"])
    reads: list[Callable[[Web3], Any]] = [
        lambda client: client.eth.chain_id,
        lambda client: client.client_version,
        lambda client: client.net.version,
        lambda client: client.eth.get_block(3, full_transactions=True),
        lambda client: client.eth.get_block_transaction_count(3),
        lambda client: client.eth.get_balance(first, 0),
        lambda client: client.eth.get_code(token.address),
        lambda client: client.eth.get_storage_at(token.address, 3),
        lambda client: client.eth.fee_history(2, BlockNumber(5), [25, 75]),
        lambda client: client.eth.get_logs({"fromBlock": 0, "toBlock": 16}),
        lambda client: client.eth.estimate_gas({"from": first, "to": NOBODY, "value": Wei(1)}),
    ]
    for read in reads:
        assert read(web3) == read(direct)
    accounts: Any = web3.eth.accounts
    assert list(accounts) == []
    assert web3.is_connected(show_traceback=True)


def test_web3_mints_listens_and_reads_back(web3: Web3, development: Development, token: Any) -> None:
    sender = Account.from_key(development.document["accounts"][WEB3_SENDER]["private_key"])
    receiver = Account.create().address
    events = token.events.Transfer.create_filter(from_block="latest", argument_filters={"receiver": receiver})
    blocks: Any = web3.eth.filter("latest")
    signed = sender.sign_transaction(token.functions.mint(receiver, 5).build_transaction(fees(web3, sender.address)))
    receipt = web3.eth.wait_for_transaction_receipt(
        web3.eth.send_raw_transaction(signed.raw_transaction), timeout=30, poll_latency=0.05
    )
    assert receipt["status"] == 1
    # The receipt was seen, so reads at the head include it.
    assert token.functions.balanceOf(receiver).call() == 5
    assert web3.eth.block_number >= receipt["blockNumber"]
    assert web3.eth.get_block("latest")["number"] >= receipt["blockNumber"]
    seen: list[Any] = []

    def arrived() -> bool:
        seen.extend(events.get_new_entries())
        return bool(seen)

    wait_until(arrived, seconds=20)
    assert [entry["args"]["value"] for entry in seen] == [5]
    assert receipt["blockHash"] in blocks.get_new_entries()
    assert web3.eth.uninstall_filter(events.filter_id)
    logs = token.events.Transfer.get_logs(
        from_block=receipt["blockNumber"], to_block=receipt["blockNumber"], argument_filters={"receiver": receiver}
    )
    assert [(log["args"]["value"], log["logIndex"]) for log in logs] == [(5, receipt["logs"][0]["logIndex"])]


def test_web3_sends_a_batch_of_a_hundred(web3: Web3, development: Development) -> None:
    addresses = [Web3.to_checksum_address(account["address"]) for account in development.document["accounts"]]
    with web3.batch_requests() as batch:
        for place in range(100):
            batch.add(web3.eth.get_balance(addresses[place % len(addresses)], 0))
        answers: Any = batch.execute()
    assert answers == [10_000 * ETHER] * 100


def test_web3_tells_why_a_call_reverted(web3: Web3, token: Any) -> None:
    poor = Account.create().address
    for ask in ("call", "estimate_gas"):
        with pytest.raises(ContractLogicError, match="ERC20: transfer amount exceeds balance"):
            getattr(token.functions.transfer(NOBODY, 1), ask)({"from": poor})
    with pytest.raises(Web3RPCError, match="does not exist"):
        web3.manager.request_blocking("eth_noSuchMethod", [])  # type: ignore[arg-type]  # not a method, on purpose


async def test_web3_works_asynchronously(development: Development, direct: Web3) -> None:
    options = {"headers": headers_of(development)}
    provider = AsyncHTTPProvider(url_of(development), request_kwargs=options)
    client = AsyncWeb3(provider)
    try:
        blocks = await asyncio.gather(*(client.eth.get_block(number) for number in range(OLD_BLOCKS)))
    finally:
        await provider.disconnect()
    assert [block["hash"] for block in blocks] == [direct.eth.get_block(number)["hash"] for number in range(OLD_BLOCKS)]


def test_calls_as_cast_makes_them(development: Development) -> None:
    """One call per request, ids from zero, `params` as a list or left out, and hex in the spelling of the caller."""
    gateway = Node(url_of(development), headers=headers_of(development))
    node = Node(development.document["node_url"])
    node.mine_to(OLD_BLOCKS)
    address = development.document["tokens"][0]["address"]
    for body in (
        b'{"method":"eth_chainId","params":[],"id":0,"jsonrpc":"2.0"}',
        b'{"id":0,"jsonrpc":"2.0","method":"eth_chainId"}',
        b'{"method":"eth_getBlockByNumber","params":["0x2",false],"id":1,"jsonrpc":"2.0"}',
        b'{"method":"eth_call","params":[{"to":"%b","input":"0x95d89b41"},"0x10"],"id":2,"jsonrpc":"2.0"}'
        % address.lower().encode(),
        b'{"method":"eth_getStorageAt","params":["%b","0x0","0x10"],"id":3,"jsonrpc":"2.0"}' % address.encode(),
    ):
        assert gateway.send(body) == node.send(body)


async def test_solana_py_reads_and_sends(development: Development) -> None:
    gateway_url = f"{development.base_url}/rpc/solana/devnet"
    headers = {"X-API-Key": development.api_key}
    async with (
        AsyncClient(gateway_url, extra_headers=headers) as client,
        AsyncClient(development.document["solana"]["node_url"]) as node,
        asyncio.timeout(60),
    ):
        payer, receiver = Keypair(), Keypair().pubkey()
        airdrop = (await client.request_airdrop(payer.pubkey(), 2 * SOL, Confirmed)).value
        await client.confirm_transaction(airdrop, Confirmed, sleep_seconds=0.05)
        signature = await send(client, [pay(payer, receiver, SOL)], payer, until=Finalized)
        assert (await client.get_balance(receiver, Finalized)).value == SOL
        reads: list[Callable[[AsyncClient], Any]] = [
            lambda one: one.get_genesis_hash(),
            lambda one: one.get_version(),
            lambda one: one.get_epoch_schedule(),
            lambda one: one.get_minimum_balance_for_rent_exemption(165),
            lambda one: one.get_transaction(signature, max_supported_transaction_version=0),
            lambda one: one.get_signature_statuses([signature, Signature.default()], search_transaction_history=True),
            lambda one: one.get_signatures_for_address(receiver),
        ]
        for read in reads:
            assert (await read(client)).value == (await read(node)).value
        landed = (await node.get_transaction(signature, max_supported_transaction_version=0)).value
        assert landed is not None
        slot = landed.slot
        assert (await client.get_block(slot)).value == (await node.get_block(slot)).value
        assert (await client.get_slot(Finalized)).value >= slot
        account = (await client.get_account_info(receiver, Finalized)).value
        assert account is not None
        assert (account.lamports, account.owner) == (SOL, SYSTEM_PROGRAM)
        mint = Mint(client, payer)
        await mint.create()
        held = await mint.issue(receiver, 3_000_000)
        assert (await client.get_token_account_balance(held, Confirmed)).value.amount == "3000000"
        listed = await client.get_token_accounts_by_owner(
            receiver, TokenAccountOpts(program_id=TOKEN_PROGRAM_ID), Confirmed
        )
        assert [entry.pubkey for entry in listed.value] == [held]
