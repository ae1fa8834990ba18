"""`capstan dev` as a newcomer meets it: `dev.json`, keys that stay, chains that answer, nothing left behind."""

import asyncio
import stat
from pathlib import Path

import httpx
from eth_account import Account
from solana.rpc.async_api import AsyncClient
from solders.keypair import Keypair
from web3 import Web3
from web3.types import Wei

from tests.support.development import Development, descendants, is_running
from tests.support.servers import wait_until
from tests.support.service import run_command, run_json

FIELDS = {
    "base_url",
    "ws_url",
    "dashboard_url",
    "dashboard",
    "api_key",
    "live_key",
    "operator_token",
    "chain",
    "network",
    "chain_id",
    "node_url",
    "accounts",
    "entry_points",
    "factories",
    "paymasters",
    "tokens",
    "nfts",
    "solana",
}
VERSIONS = {"0.6", "0.7", "0.8"}


def _web3(development: Development) -> Web3:
    headers = {"X-API-Key": development.api_key, "Content-Type": "application/json"}
    url = f"{development.base_url}/rpc/ethereum/devnet"
    return Web3(Web3.HTTPProvider(url, request_kwargs={"headers": headers, "timeout": 20}))


def test_dev_json_has_every_field_and_is_private(development: Development) -> None:
    document = development.document
    assert set(document) >= FIELDS
    assert document["base_url"].endswith("/v1")
    assert document["ws_url"].startswith("ws://")
    assert set(document["dashboard"]) == {"email", "password"}
    assert document["api_key"].startswith("svc_test_")
    assert document["live_key"].startswith("svc_live_")
    assert (document["chain"], document["network"], document["chain_id"]) == ("ethereum", "devnet", 31337)
    assert len(document["accounts"]) >= 10
    for name in ("entry_points", "factories", "paymasters"):
        assert set(document[name]) == VERSIONS
    assert {token["decimals"] for token in document["tokens"]} == {6, 18}
    assert {collection["standard"] for collection in document["nfts"]} == {"ERC721", "ERC1155"}
    assert document["solana"]["network"] == "devnet"
    assert stat.S_IMODE((development.directory / "dev.json").stat().st_mode) == 0o600


def test_the_pages_it_names_answer(development: Development) -> None:
    for path in ("/docs", "/dashboard"):
        answer = httpx.get(development.origin + path, timeout=20, follow_redirects=True)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")


def test_every_address_it_names_has_code(development: Development) -> None:
    client = _web3(development)
    document = development.document
    addresses = [*document["entry_points"].values(), *document["factories"].values(), *document["paymasters"].values()]
    addresses += [token["address"] for token in document["tokens"] + document["nfts"]]
    addresses.append("0xcA11bde05977b3631167028862bE2a173976CA11")
    for address in addresses:
        assert len(client.eth.get_code(Web3.to_checksum_address(address))) > 100, address


def test_web3_sends_a_transaction_through_the_service(development: Development) -> None:
    client = _web3(development)
    sender = Account.from_key(development.document["accounts"][7]["private_key"])
    receiver = Account.create().address
    signed = sender.sign_transaction(
        {
            "to": receiver,
            "value": 12345,
            "gas": 21000,
            "maxFeePerGas": client.eth.gas_price * 2,
            "maxPriorityFeePerGas": 10**9,
            "nonce": client.eth.get_transaction_count(sender.address),
            "chainId": client.eth.chain_id,
        }
    )
    receipt = client.eth.wait_for_transaction_receipt(
        client.eth.send_raw_transaction(signed.raw_transaction), timeout=30
    )
    assert receipt["status"] == 1
    assert client.eth.get_balance(receiver) == 12345


def test_anyone_can_mint_the_sample_tokens(development: Development) -> None:
    client = _web3(development)
    token = development.document["tokens"][0]
    minter = Account.from_key(development.document["accounts"][8]["private_key"])
    abi = [
        {
            "type": "function",
            "name": name,
            "stateMutability": mutability,
            "inputs": [{"name": f"a{place}", "type": kind} for place, kind in enumerate(kinds)],
            "outputs": [{"name": "", "type": "uint256"}] if mutability == "view" else [],
        }
        for name, mutability, kinds in (
            ("mint", "nonpayable", ("address", "uint256")),
            ("balanceOf", "view", ("address",)),
        )
    ]
    contract = client.eth.contract(address=Web3.to_checksum_address(token["address"]), abi=abi)
    receiver = Account.create().address
    transaction = contract.functions.mint(receiver, 5).build_transaction(
        {
            "from": minter.address,
            "nonce": client.eth.get_transaction_count(minter.address),
            "gas": 200_000,
            "maxFeePerGas": Wei(client.eth.gas_price * 2),
            "maxPriorityFeePerGas": Wei(10**9),
        }
    )
    signed = minter.sign_transaction(transaction)
    client.eth.wait_for_transaction_receipt(client.eth.send_raw_transaction(signed.raw_transaction), timeout=30)
    assert contract.functions.balanceOf(receiver).call() == 5


def test_blocks_come_every_second_also_when_idle(development: Development) -> None:
    client = _web3(development)
    first = client.eth.block_number
    wait_until(lambda: client.eth.block_number >= first + 3, seconds=15)


async def test_solana_answers_its_own_client_through_the_service(development: Development) -> None:
    url = f"{development.base_url}/rpc/solana/devnet"
    async with AsyncClient(url, extra_headers={"X-API-Key": development.api_key}) as client:
        owner = Keypair().pubkey()
        await client.request_airdrop(owner, 1_000_000_000)
        async with asyncio.timeout(20):
            while (await client.get_balance(owner)).value != 1_000_000_000:
                await asyncio.sleep(0.1)
        assert (await client.get_slot()).value > 0


def test_a_key_made_meanwhile_has_its_plans_limits(development: Development) -> None:
    key = run_json("keys", "create", "--plan", "free", "--data-dir", str(development.directory))["key"]
    answer = httpx.get(f"{development.base_url}/account", headers={"X-API-Key": key}, timeout=20)
    assert answer.headers["x-ratelimit-limit"] == "10"
    mine = httpx.get(f"{development.base_url}/account", headers={"X-API-Key": development.api_key}, timeout=20)
    assert mine.headers["x-ratelimit-limit"] == "0"


def test_a_second_one_on_the_same_directory_is_refused(development: Development) -> None:
    done = run_command("dev", "--port", "0", "--data-dir", str(development.directory))
    assert done.returncode == 4
    assert str(development.directory) in done.stderr
    assert (development.directory / "dev.json").exists()


def test_keys_stay_between_runs_and_a_kill_leaves_no_chain_running(tmp_path: Path) -> None:
    first = Development(tmp_path)
    first.start()
    assert first.process_id is not None
    children = descendants(first.process_id)
    assert len(children) >= 2
    first.kill()
    wait_until(lambda: not any(is_running(child) for child in children), seconds=10)
    second = Development(tmp_path)
    second.start()
    try:
        for name in ("api_key", "live_key", "operator_token", "dashboard"):
            assert second.document[name] == first.document[name]
        answer = httpx.get(f"{second.base_url}/account", headers={"X-API-Key": first.api_key}, timeout=20)
        assert answer.status_code == 200
    finally:
        code = second.stop()
    assert code == 0


def test_deeply_nested_json_is_refused_and_harms_nothing(development: Development) -> None:
    url = f"{development.base_url}/rpc/ethereum/devnet"
    headers = {"X-API-Key": development.api_key}
    deep = b"[" * 200_000 + b"]" * 200_000
    call = b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":' + deep + b"}"
    for body in (deep, call, b'{"a":' * 100_000):
        assert httpx.post(url, content=body, headers=headers, timeout=20).status_code == 400
    assert httpx.get(f"{development.base_url}/account", headers=headers, timeout=20).status_code == 200
