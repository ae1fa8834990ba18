"""viem, ethers and web3.py over the WebSocket feed of `capstan dev`, unchanged, against what the node says."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from eth_account import Account
from eth_utils.crypto import keccak
from web3 import AsyncWeb3, Web3, WebSocketProvider

from tests.clients.inputs import (
    ETHERS_FEED_SENDER,
    VIEM_FEED_SENDER,
    WEB3_FEED_SENDER,
    Ran,
    feed_url,
    inputs,
)
from tests.support.development import Development
from tests.support.javascript import RunScript
from tests.support.node import Node

ETHER = 10**18
SECONDS = 30.0
TRANSFER = "0x" + keccak(text="Transfer(address,address,uint256)").hex()


@pytest.fixture(scope="module")
def node(development: Development) -> Node:
    """The node behind the feed, asked directly."""
    node = Node(development.document["node_url"])
    node.mine_to(5)
    return node


@pytest.fixture(scope="module")
def viem(development: Development, node: Node, javascript: RunScript) -> Ran:
    given = inputs(development, VIEM_FEED_SENDER)
    return Ran(given, javascript("viem_feed.mjs", given))


@pytest.fixture(scope="module")
def ethers(development: Development, node: Node, javascript: RunScript) -> Ran:
    given = inputs(development, ETHERS_FEED_SENDER)
    return Ran(given, javascript("ethers_feed.mjs", given))


@pytest.fixture(params=["viem", "ethers"])
def client(request: pytest.FixtureRequest) -> Ran:
    """Either of them."""
    ran: Ran = request.getfixturevalue(request.param)
    return ran


def test_reads_on_the_socket_are_the_nodes(client: Ran, node: Node) -> None:
    assert client.report.number("chain id") == client.given["chain_id"]
    reads = client.report["reads"]
    assert 0 < int(reads["number"]) <= node.block_number()
    assert int(reads["balance"]) == 10_000 * ETHER
    assert reads["block"]["hash"] == node.ask("eth_getBlockByNumber", "0x1", False)["hash"]


def test_viem_watches_blocks_without_a_gap(viem: Ran, node: Node) -> None:
    blocks = viem.report["blocks"]
    assert len(blocks) >= 3
    for before, after in pairwise(blocks):
        assert after["parentHash"] == before["hash"]
    for block in blocks:
        expected = node.ask("eth_getBlockByNumber", hex(int(block["number"])), False)
        assert (block["hash"], block["parentHash"]) == (expected["hash"], expected["parentHash"])
        for name in ("timestamp", "gasLimit", "baseFeePerGas"):
            assert int(block[name]) == int(expected[name], 16), name


def test_the_numbers_of_blocks_come_in_order(client: Ran) -> None:
    numbers = [int(number) for number in client.report["block numbers"]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_events_and_pending_transactions_arrive(client: Ran, node: Node) -> None:
    found = client.report["events"]
    assert found["pending"] is True
    assert [log["transactionHash"] for log in found["logs"]] == [found["hash"]]
    value = found["logs"][0]["args"]["value"]
    assert int(value, 16 if str(value).startswith("0x") else 10) == 77
    assert node.ask("eth_getTransactionReceipt", found["hash"])["blockNumber"] == hex(int(found["blockNumber"]))


def test_viem_met_no_error(viem: Ran) -> None:
    assert viem.report["errors"] == []


async def test_web3_subscribes_to_heads_logs_and_pending_transactions(development: Development, node: Node) -> None:
    document = development.document
    token = Web3.to_checksum_address(document["tokens"][0]["address"])
    sender = Account.from_key(document["accounts"][WEB3_FEED_SENDER]["private_key"])
    receiver = Account.create().address
    async with AsyncWeb3(WebSocketProvider(feed_url(development))) as client, asyncio.timeout(SECONDS):
        assert await client.eth.chain_id == document["chain_id"]
        heads = await client.eth.subscribe("newHeads")
        topics: list[Any] = [TRANSFER, None, "0x" + receiver[2:].lower().rjust(64, "0")]
        logs = await client.eth.subscribe("logs", {"address": token, "topics": topics})
        pending = await client.eth.subscribe("newPendingTransactions")
        signed = sender.sign_transaction(
            {
                "type": 2,
                "chainId": document["chain_id"],
                "nonce": await client.eth.get_transaction_count(sender.address, "pending"),
                "to": token,
                "value": 0,
                "data": "0x40c10f19" + receiver[2:].rjust(64, "0") + f"{5:064x}",
                "gas": 200_000,
                "maxFeePerGas": 20 * 10**9,
                "maxPriorityFeePerGas": 10**9,
            }
        )
        sent = await client.eth.send_raw_transaction(signed.raw_transaction)
        seen: dict[Any, list[Any]] = {heads: [], logs: [], pending: []}
        async for message in client.socket.process_subscriptions():
            arrived: Any = message
            seen[arrived["subscription"]].append(arrived["result"])
            if seen[logs] and len(seen[heads]) >= 3 and sent in seen[pending]:
                break
        assert await client.eth.unsubscribe(heads)
    assert [log["transactionHash"] for log in seen[logs]] == [sent]
    for before, after in pairwise(seen[heads]):
        assert after["parentHash"] == before["hash"]
    for head in seen[heads]:
        expected = node.ask("eth_getBlockByNumber", hex(head["number"]), False)
        assert head["hash"].to_0x_hex() == expected["hash"]
