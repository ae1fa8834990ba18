"""viem, permissionless and ethers over HTTP through the gateway of `capstan dev`, unchanged, against the node itself.

Each script runs once. It reports what the client saw, and the tests compare that with the node asked directly.
"""

from __future__ import annotations

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak

from tests.clients.inputs import ETHERS_SENDER, VIEM_SENDER, Ran, inputs
from tests.support.development import Development
from tests.support.javascript import RunScript
from tests.support.node import Node

ETHER = 10**18
TRANSFER = "0x" + keccak(text="Transfer(address,address,uint256)").hex()


@pytest.fixture(scope="module")
def node(development: Development) -> Node:
    """The node behind the gateway, asked directly."""
    node = Node(development.document["node_url"])
    node.mine_to(5)
    return node


@pytest.fixture(scope="module")
def viem(development: Development, node: Node, javascript: RunScript) -> Ran:
    given = inputs(development, VIEM_SENDER)
    return Ran(given, javascript("viem.mjs", given))


@pytest.fixture(scope="module")
def ethers(development: Development, node: Node, javascript: RunScript) -> Ran:
    given = inputs(development, ETHERS_SENDER)
    return Ran(given, javascript("ethers.mjs", given))


@pytest.fixture(params=["viem", "ethers"])
def client(request: pytest.FixtureRequest) -> Ran:
    """Either of them."""
    ran: Ran = request.getfixturevalue(request.param)
    return ran


def test_the_chain_and_its_head_are_the_nodes(client: Ran, node: Node) -> None:
    assert client.report.number("chain id") == client.given["chain_id"]
    assert 0 < client.report.number("block number") <= node.block_number()


def test_reads_of_state_are_the_nodes(client: Ran, node: Node) -> None:
    sender = Account.from_key(client.given["private_key"]).address
    token = client.given["token"]
    assert client.report.number("balance") == int(node.ask("eth_getBalance", sender, "0x0"), 16) == 10_000 * ETHER
    assert client.report["code"] == node.ask("eth_getCode", token, "latest")
    assert int(client.report["storage"], 16) == int(node.ask("eth_getStorageAt", token, "0x3", "latest"), 16)
    asked = {"from": sender, "to": client.given["receiver"], "value": "0x1"}
    assert client.report.number("gas") == int(node.ask("eth_estimateGas", asked, "latest"), 16)


def test_viem_reads_a_whole_block(viem: Ran, node: Node) -> None:
    expected = node.ask("eth_getBlockByNumber", "0x1", True)
    block = viem.report["block"]
    assert {name: block[name] for name in ("hash", "parentHash", "stateRoot", "logsBloom", "miner")} == {
        name: expected[name] for name in ("hash", "parentHash", "stateRoot", "logsBloom", "miner")
    }
    for name in ("number", "timestamp", "gasUsed", "gasLimit", "baseFeePerGas"):
        assert int(block[name]) == int(expected[name], 16), name
    assert [found["hash"] for found in block["transactions"]] == [found["hash"] for found in expected["transactions"]]
    assert viem.report.number("latest block") >= viem.report.number("block number")


def test_ethers_reads_a_whole_block(ethers: Ran, node: Node) -> None:
    expected = node.ask("eth_getBlockByNumber", "0x1", True)
    block = ethers.report["block"]
    assert (block["hash"], block["number"], block["parentHash"]) == (expected["hash"], 1, expected["parentHash"])
    assert block["transactions"] == [found["hash"] for found in expected["transactions"]]


def test_fees_are_the_nodes(viem: Ran, ethers: Ran, node: Node) -> None:
    history = node.ask("eth_feeHistory", "0x2", "0x3", [25, 75])
    found = viem.report["fee history"]
    assert [int(fee) for fee in found["baseFeePerGas"]] == [int(fee, 16) for fee in history["baseFeePerGas"]]
    assert found["gasUsedRatio"] == history["gasUsedRatio"]
    assert [[int(part) for part in row] for row in found["reward"]] == [
        [int(part, 16) for part in row] for row in history["reward"]
    ]
    assert int(viem.report["fees"]["maxFeePerGas"]) > 0
    assert viem.report.number("gas price") > 0
    assert int(ethers.report["fees"]["maxFeePerGas"]) > int(ethers.report["fees"]["maxPriorityFeePerGas"]) > 0


def test_a_sent_transaction_lands_and_is_seen(client: Ran, node: Node) -> None:
    found = client.report["transaction"]
    receipt = node.ask("eth_getTransactionReceipt", found["hash"])
    assert receipt["status"] == "0x1"
    assert found["receipt"]["blockHash"] == receipt["blockHash"]
    assert int(found["receipt"]["blockNumber"]) == int(receipt["blockNumber"], 16)
    assert int(found["receipt"]["gasUsed"]) == int(receipt["gasUsed"], 16)
    assert int(found["balance"]) == 12345
    assert int(node.ask("eth_getBalance", client.given["receiver"], receipt["blockNumber"]), 16) == 12345


def test_logs_and_state_after_a_receipt_include_it(client: Ran, node: Node) -> None:
    found = client.report["mint"]
    number = hex(int(found["blockNumber"]))
    asked = {"address": client.given["token"], "fromBlock": number, "toBlock": number, "topics": [TRANSFER]}
    expected = [log for log in node.ask("eth_getLogs", asked) if log["transactionHash"] == found["hash"]]
    assert len(expected) == 1
    assert int(found["balance"]) == 77
    logs = [log for log in found["logs"] if log.get("transactionHash", log.get("hash")) == found["hash"]]
    assert len(logs) == 1
    assert int(logs[0].get("logIndex", logs[0].get("index"))) == int(expected[0]["logIndex"], 16)


def test_viem_reads_the_same_logs_by_block_hash(viem: Ran) -> None:
    found = viem.report["mint"]
    assert found["byHash"] == found["logs"]
    assert found["logs"][0]["args"]["receiver"] == viem.given["receiver"]


def test_ethers_listens_by_polling(ethers: Ran) -> None:
    assert ethers.report["mint"]["seen"] == ["77"]


def test_viem_uses_filters(viem: Ran, node: Node) -> None:
    minted = viem.report["mint"]
    assert [change["transactionHash"] for change in viem.report["event filter"]] == [minted["hash"]]
    assert [log["args"]["value"] for log in viem.report["filter logs"]] == ["77"]
    hashes = viem.report["block filter"]
    assert len(hashes) >= 2
    assert node.ask("eth_getBlockByNumber", hex(int(minted["blockNumber"])), False)["hash"] in hashes
    assert viem.report["filters gone"] == [True, True, True]


def test_viem_reads_contracts_and_several_at_once(viem: Ran, development: Development) -> None:
    token = development.document["tokens"][0]
    assert viem.report["read contract"] == {"symbol": token["symbol"], "decimals": token["decimals"]}
    symbol, balance, failed = viem.report["multicall"]
    assert (symbol["result"], balance["result"]) == (token["symbol"], "77")
    assert failed["status"] == "failure"


def test_a_hundred_calls_in_one_batch(client: Ran) -> None:
    answers = client.report["batch"]
    assert [int(answer) for answer in answers] == [10_000 * ETHER, 0] * 50


def test_the_reason_of_a_revert_is_told(client: Ran) -> None:
    assert client.report["reason"]["reason"] == "ERC20: transfer amount exceeds balance"


def test_a_custom_error_is_decoded(client: Ran, node: Node) -> None:
    found = client.report["custom error"]
    assert found["name"] == "SenderAddressResult"
    data = "0x" + keccak(text="getAddress(address,uint256)")[:4].hex()
    owner = Account.from_key(client.given["private_key"]).address
    data += encode(["address", "uint256"], [owner, 5]).hex()
    expected = node.ask("eth_call", {"to": client.given["factory"], "data": data}, "latest")
    assert int(found["args"][0], 16) == int(expected, 16)


def test_permissionless_finds_the_address_of_a_smart_account(viem: Ran) -> None:
    found = viem.report["smart account"]
    assert found["sender"] == found["account"] == viem.report["custom error"]["args"][0]


def test_an_estimate_of_a_call_that_reverts_is_a_revert(viem: Ran, ethers: Ran) -> None:
    for ran in (viem, ethers):
        assert ran.report["reverting gas estimate"]["reason"] == "ERC20: transfer amount exceeds balance"


def test_errors_have_the_meaning_that_clients_look_for(viem: Ran, ethers: Ran) -> None:
    assert viem.report["unknown method"] == {"name": "MethodNotFoundRpcError", "code": -32601}
    assert ethers.report["unknown method"] == "UNSUPPORTED_OPERATION"
    assert ethers.report["nonce too low"] == "NONCE_EXPIRED"
    assert viem.report["wrong key"] == {"name": "HttpRequestError", "status": 401}
