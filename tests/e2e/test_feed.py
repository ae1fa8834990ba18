"""The WebSocket feed of `capstan dev` on the real chain: subscriptions, calls, handshakes, limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak
from web3 import AsyncWeb3, WebSocketProvider

from tests.support.development import Development
from tests.support.feed_client import FeedClient, RpcError, connected, linked, socket_url
from tests.support.http import RATE_HEADERS
from tests.support.node import Node
from tests.support.service import run_command, run_json

TRANSFER = "0x" + keccak(text="Transfer(address,address,uint256)").hex()
# The account these tests send from; no other test may.
SENDER = 8


@pytest.fixture(scope="module")
def node(development: Development) -> Node:
    return Node(development.document["node_url"])


@pytest.fixture
async def client(development: Development) -> AsyncIterator[FeedClient]:
    async with connected(socket_url(development.base_url, key=development.api_key)) as opened:
        yield opened


def make_key(development: Development, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = run_json("keys", "create", "--data-dir", str(development.directory), *options)
    return found


def mint(development: Development, node: Node, receiver: str) -> str:
    """Send a transaction that mints a sample token, and return its hash. It is mined with the next block."""
    account = development.document["accounts"][SENDER]
    token = development.document["tokens"][0]["address"]
    data = keccak(text="mint(address,uint256)")[:4] + encode(["address", "uint256"], [receiver, 5])
    transaction = {
        "type": 2,
        "chainId": development.document["chain_id"],
        "nonce": int(node.ask("eth_getTransactionCount", account["address"], "pending"), 16),
        "to": token,
        "value": 0,
        "data": data,
        "gas": 200_000,
        "maxFeePerGas": 20 * 10**9,
        "maxPriorityFeePerGas": 10**9,
    }
    signed = Account.sign_transaction(transaction, account["private_key"])
    return str(node.ask("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex()))


async def test_new_heads_are_the_headers_of_the_node_and_linked(client: FeedClient, node: Node) -> None:
    heads = await client.subscribe("newHeads")
    await client.wait_for(lambda: len(client.of(heads)) >= 3)
    assert linked(client.of(heads))
    for head in client.of(heads):
        block = node.ask("eth_getBlockByHash", head["hash"], False)
        not_told = {"transactions", "uncles", "size", "totalDifficulty", "withdrawals"}
        assert head == {name: value for name, value in block.items() if name not in not_told}
        for name in ("number", "timestamp", "gasUsed", "gasLimit", "baseFeePerGas"):
            assert head[name].startswith("0x")


async def test_logs_are_those_of_eth_get_logs_and_filtered(
    client: FeedClient, development: Development, node: Node
) -> None:
    receiver = Account.create().address
    token = development.document["tokens"][0]["address"]
    padded = "0x" + receiver[2:].lower().rjust(64, "0")
    exact = await client.subscribe("logs", {"address": token, "topics": [TRANSFER, None, padded]})
    loose = await client.subscribe("logs", {"topics": [[TRANSFER, "0x" + "00" * 32]]})
    other = await client.subscribe("logs", {"address": "0x" + "12" * 20})
    transaction = mint(development, node, receiver)
    await client.wait_for(
        lambda: client.of(exact) and any(log["transactionHash"] == transaction for log in client.of(loose))
    )
    [log] = client.of(exact)
    assert [log] == node.ask("eth_getLogs", {"blockHash": log["blockHash"], "topics": [TRANSFER, None, padded]})
    assert log["removed"] is False
    assert log in client.of(loose)
    assert client.of(other) == []


async def test_pending_transactions_are_told_as_hashes_and_whole(
    client: FeedClient, development: Development, node: Node
) -> None:
    hashes = await client.subscribe("newPendingTransactions")
    whole = await client.subscribe("newPendingTransactions", True)
    sent: list[str] = []
    # The watch of the mempool begins with the subscription; what was sent before it is not told.
    async with asyncio.timeout(30):
        while not set(sent) & set(client.of(hashes)) or not client.of(whole):
            sent.append(await asyncio.to_thread(mint, development, node, Account.create().address))
            await asyncio.sleep(0.5)
    assert len(set(client.of(hashes))) == len(client.of(hashes))
    sender = development.document["accounts"][SENDER]["address"].lower()
    assert any(one["from"].lower() == sender and one["hash"] in sent for one in client.of(whole))


async def test_syncing_says_that_the_chain_is_there(client: FeedClient) -> None:
    syncing = await client.subscribe("syncing")
    await client.wait_for(lambda: False in client.of(syncing))


async def test_after_unsubscribing_nothing_more_comes(client: FeedClient) -> None:
    ended, kept = await client.subscribe("newHeads"), await client.subscribe("newHeads")
    await client.wait_for(lambda: client.of(ended) and client.of(kept))
    assert await client.call("eth_unsubscribe", ended) is True
    before, also = len(client.of(ended)), len(client.of(kept))
    await client.wait_for(lambda: len(client.of(kept)) >= also + 2)
    assert len(client.of(ended)) == before
    with pytest.raises(RpcError, match="subscription not found"):
        await client.call("eth_unsubscribe", ended)


async def test_a_replay_brings_every_block_once_and_goes_on_live(client: FeedClient, node: Node) -> None:
    head = node.block_number()
    first = max(1, head - 30)
    heads = await client.subscribe("newHeads", {"fromBlock": hex(first)})
    await client.wait_for(lambda: len(client.of(heads)) >= head - first + 3)
    numbers = [int(one["number"], 16) for one in client.of(heads)]
    assert numbers == list(range(first, first + len(numbers)))
    assert linked(client.of(heads))


async def test_replayed_logs_are_those_of_the_chain(client: FeedClient, development: Development, node: Node) -> None:
    first = node.block_number()
    for _ in range(3):
        mint(development, node, Account.create().address)
    mined_at = node.block_number() + 2
    heads = await client.subscribe("newHeads")
    await client.wait_for(lambda: any(int(one["number"], 16) >= mined_at for one in client.of(heads)))
    logs = await client.subscribe("logs", {"fromBlock": hex(first), "topics": [TRANSFER]})
    expected = node.ask("eth_getLogs", {"fromBlock": hex(first), "toBlock": hex(mined_at), "topics": [TRANSFER]})
    assert len(expected) >= 3
    await client.wait_for(lambda: len(client.of(logs)) >= len(expected))
    assert client.of(logs)[: len(expected)] == expected


async def test_calls_and_batches_work_on_the_socket(client: FeedClient, development: Development, node: Node) -> None:
    assert await client.call("eth_chainId") == hex(development.document["chain_id"])
    account = development.document["accounts"][0]["address"]
    assert await client.call("eth_getBalance", account, "0x0") == node.ask("eth_getBalance", account, "0x0")
    with pytest.raises(RpcError) as caught:
        await client.call("personal_sign")
    assert caught.value.code == -32601
    with pytest.raises(RpcError) as caught:
        await client.call("eth_subscribe", "newBlocks")
    assert caught.value.code == -32601


async def test_a_batch_mixes_reads_subscriptions_and_mistakes(development: Development) -> None:
    url = socket_url(development.base_url, key=development.api_key)
    async with websockets.connect(url, proxy=None) as connection:
        calls: list[Any] = [
            {"id": "a", "method": "eth_chainId"},
            {"id": "b", "method": "eth_subscribe", "params": ["newHeads"]},
            {"id": "c", "method": "trace_block", "params": ["latest"]},
            {"method": "eth_blockNumber"},
            7,
        ]
        await connection.send(json.dumps(calls))
        replies = {reply["id"]: reply for reply in json.loads(await asyncio.wait_for(connection.recv(), 20))}
        assert set(replies) == {"a", "b", "c", None}
        assert replies["c"]["error"]["code"] == -32004
        assert replies[None]["error"]["code"] == -32600
        pushed = json.loads(await asyncio.wait_for(connection.recv(), 20))
        assert pushed["params"]["subscription"] == replies["b"]["result"]


async def refused(url: str, **options: Any) -> websockets.Response:
    """The answer to a handshake that must fail."""
    with pytest.raises(websockets.InvalidStatus) as caught:
        await websockets.connect(url, proxy=None, **options)
    response = caught.value.response
    body = json.loads(bytes(response.body or b""))
    assert body["error"]["status"] == response.status_code
    for name in RATE_HEADERS:
        assert response.headers[name].isdigit()
    assert response.headers["x-request-id"]
    return response


def code_of(response: websockets.Response) -> str:
    return str(json.loads(bytes(response.body or b""))["error"]["code"])


async def test_handshakes_are_refused_with_the_error_body(development: Development) -> None:
    base, key = development.base_url, development.api_key
    for url in (socket_url(base), socket_url(base, key="svc_test_wrong"), socket_url(base, key="")):
        response = await refused(url)
        assert (response.status_code, code_of(response)) == (401, "unauthorized")
    response = await refused(socket_url(base, "ethereum/mainnet", key))
    assert (response.status_code, code_of(response)) == (403, "forbidden")
    for network in ("nowhere/devnet", "ethereum/nothing", "ethereum", "ethereum/devnet/more"):
        response = await refused(socket_url(base, network, key))
        assert (response.status_code, code_of(response)) == (404, "not_found")
    response = await refused(f"{development.document['ws_url']}/v2/ws/ethereum/devnet?apiKey={key}")
    assert response.status_code == 404
    response = await refused(socket_url(base, key=key), additional_headers={"X-API-Key": "svc_test_other"})
    assert response.status_code == 401


@pytest.mark.parametrize("name", ["X-API-Key", "Authorization"])
async def test_servers_may_send_the_key_as_a_header(development: Development, name: str) -> None:
    value = development.api_key if name == "X-API-Key" else f"Bearer {development.api_key}"
    async with connected(socket_url(development.base_url), additional_headers={name: value}) as client:
        assert int(await client.call("eth_blockNumber"), 16) >= 0


def test_a_plain_get_of_the_address_is_an_ordinary_error(development: Development) -> None:
    url = f"{development.base_url}/ws/ethereum/devnet"
    answer = httpx.get(url, headers={"X-API-Key": development.api_key}, trust_env=False)
    assert answer.status_code == 426
    assert "WebSocket" in answer.json()["error"]["message"]
    old = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "8"}
    answer = httpx.get(url, headers={"X-API-Key": development.api_key, **old}, trust_env=False)
    assert answer.status_code == 426
    assert answer.headers["sec-websocket-version"] == "13"
    bad = {**old, "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "short"}
    answer = httpx.get(url, headers={"X-API-Key": development.api_key, **bad}, trust_env=False)
    assert answer.status_code == 400


async def test_scopes_hold_on_the_socket(development: Development) -> None:
    reading = make_key(development, "--scope", "rpc:read")["key"]
    writing = make_key(development, "--scope", "rpc:write")["key"]
    neither = make_key(development, "--scope", "data:read")["key"]
    async with connected(socket_url(development.base_url, key=reading)) as client:
        assert await client.subscribe("newHeads")
        with pytest.raises(RpcError, match="rpc:write") as caught:
            await client.call("eth_sendRawTransaction", "0x00")
        assert caught.value.code == -32003
    async with connected(socket_url(development.base_url, key=writing)) as client:
        for method, params in (("eth_blockNumber", ()), ("eth_subscribe", ("newHeads",))):
            with pytest.raises(RpcError) as caught:
                await client.call(method, *params)
            assert caught.value.code == -32003
    assert (await refused(socket_url(development.base_url, key=neither))).status_code == 403


async def test_a_free_key_over_its_limit_gets_an_error_and_keeps_its_socket(development: Development) -> None:
    key = make_key(development, "--plan", "free")["key"]
    async with connected(socket_url(development.base_url, key=key)) as client:
        answers = await asyncio.gather(*(client.call("eth_chainId") for _ in range(30)), return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, RpcError)]
        assert 15 <= len(refusals) <= 21
        assert {refusal.code for refusal in refusals} == {-32005}
        assert refusals[0].data == {"retryAfter": 1}
        await asyncio.sleep(1.1)
        assert await client.call("eth_chainId")


async def test_handshakes_count_as_requests(development: Development) -> None:
    url = socket_url(development.base_url, key=make_key(development, "--plan", "free")["key"])
    tried = await asyncio.gather(*(websockets.connect(url, proxy=None) for _ in range(20)), return_exceptions=True)
    refusals = [one.response for one in tried if isinstance(one, websockets.InvalidStatus)]
    assert len(refusals) >= 5
    assert {response.status_code for response in refusals} == {429}
    assert refusals[0].headers["retry-after"] == "1"
    assert refusals[0].headers["x-ratelimit-limit"] == "10"
    for one in tried:
        if not isinstance(one, BaseException):
            await one.close()


async def test_a_revoked_key_and_a_suspended_account_lose_their_sockets(development: Development) -> None:
    directory = str(development.directory)
    for suspend in (False, True):
        made = make_key(development)
        async with connected(socket_url(development.base_url, key=made["key"])) as client:
            await client.subscribe("newHeads")
            command = ("accounts", "suspend", made["account"]) if suspend else ("keys", "revoke", made["id"])
            done = await asyncio.to_thread(run_command, *command, "--data-dir", directory)
            assert done.returncode == 0, done.stderr
            code, _ = await client.wait_closed(3.0)
            assert code == 4401


async def test_what_is_pushed_stands_in_the_usage_ledger(development: Development) -> None:
    key = make_key(development)["key"]
    async with connected(socket_url(development.base_url, key=key)) as client:
        heads = await client.subscribe("newHeads")
        await client.wait_for(lambda: len(client.of(heads)) >= 2)
    headers = {"X-API-Key": key}
    rows: dict[str, Any] = {}
    async with asyncio.timeout(20), httpx.AsyncClient(headers=headers, trust_env=False) as http:
        # The ledger is written once a second, so the two messages may come into it one after the other.
        while rows.get("eth_subscription", {"requests": 0})["requests"] < 2:
            await asyncio.sleep(0.2)
            rows = {row["name"]: row for row in (await http.get(f"{development.base_url}/usage")).json()["rows"]}
    assert rows["eth_subscription"]["units"] == rows["eth_subscription"]["requests"] >= 2
    assert rows["eth_subscribe"]["units"] == 1


async def test_a_solana_socket_answers_the_calls_of_its_own_chain(development: Development) -> None:
    url = socket_url(development.base_url, "solana/devnet", development.api_key)
    async with connected(url) as client:
        assert await client.call("getHealth") == "ok"
        with pytest.raises(RpcError) as caught:
            await client.call("eth_subscribe", "newHeads")
        assert caught.value.code == -32601


async def test_web3_py_subscribes_and_reads(development: Development) -> None:
    url = socket_url(development.base_url, key=development.api_key)
    async with AsyncWeb3(WebSocketProvider(url)) as web3:
        subscription = await web3.eth.subscribe("newHeads")
        assert await web3.eth.chain_id == development.document["chain_id"]
        numbers: list[int] = []
        async with asyncio.timeout(30):
            async for message in web3.socket.process_subscriptions():
                numbers.append(message["result"]["number"])
                if len(numbers) == 3:
                    break
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert await web3.eth.unsubscribe(subscription)
