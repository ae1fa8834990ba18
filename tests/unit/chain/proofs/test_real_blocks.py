"""Headers, receipts and transactions of a real node's blocks give the hashes and roots that the node says they have.

The blocks are those of the development chain: the deployment of its contracts, and one block that this file fills with
transactions of every type the node takes.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from eth_account import Account
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capstan.chain.proofs.bloom import bloom_of
from capstan.chain.proofs.header import header_hash
from capstan.chain.proofs.receipts import receipts_root
from capstan.chain.proofs.transactions import encode_transaction, transactions_root, withdrawals_root
from capstan.core.hexes import keccak256, parse_data, to_data
from capstan.devnet.evm import CHAIN_ID
from tests.support.devnet import EvmDevnet

# The account this file sends from; no other test may.
SENDER = 19
BLOCKS = 5
# The key of an account that nobody uses.
AUTHORITY = "0x" + "5a" * 32
TRANSFER = "a9059cbb"

Block = tuple[dict[str, Any], list[dict[str, Any]]]


def transactions(devnet: EvmDevnet, nonce: int) -> Iterator[dict[str, Any]]:
    """Unsigned transactions of types 0, 1, 2 and 4; more than 128 of them, so that keys have two lengths."""
    token = devnet.deployment.tokens[0].address
    account = devnet.deployment.accounts[SENDER]
    data = "0x" + TRANSFER + account.address[2:].lower().rjust(64, "0") + "0" * 64
    common = {"chainId": CHAIN_ID, "to": token, "value": 0, "gas": 90_000, "data": data}
    fees = {"maxFeePerGas": 20 * 10**9, "maxPriorityFeePerGas": 10**9}
    access = [{"address": token, "storageKeys": ["0x" + "00" * 31 + "07"]}]
    yield {**common, "nonce": nonce, "gasPrice": 20 * 10**9}
    yield {**common, "nonce": nonce + 1, "gasPrice": 20 * 10**9, "accessList": access, "type": 1}
    yield {**common, "nonce": nonce + 2, **fees, "accessList": access, "type": 2}
    signed = Account.sign_authorization({"chainId": CHAIN_ID, "address": token, "nonce": 0}, AUTHORITY)
    yield {**common, **fees, "nonce": nonce + 3, "gas": 200_000, "authorizationList": [signed], "type": 4}
    for place in range(4, 140):
        yield {**common, "to": account.address, "data": "0x", "gas": 60_000, "nonce": nonce + place, **fees, "type": 2}


@pytest.fixture(scope="module")
def full_blocks(evm_devnet: EvmDevnet) -> list[int]:
    """The numbers of the blocks with all of these: one, unless the chain mined one by itself in between."""
    account = evm_devnet.deployment.accounts[SENDER]
    nonce = int(evm_devnet.call("eth_getTransactionCount", account.address, "pending"), 16)
    hashes = []
    for transaction in transactions(evm_devnet, nonce):
        signed = Account.sign_transaction(transaction, account.private_key)
        hashes.append(evm_devnet.call("eth_sendRawTransaction", to_data(bytes(signed.raw_transaction))))
    evm_devnet.mine_transaction(hashes[-1])
    receipts = [evm_devnet.call("eth_getTransactionReceipt", name) for name in hashes]
    return sorted({int(receipt["blockNumber"], 16) for receipt in receipts})


def read(devnet: EvmDevnet, number: int) -> Block:
    block = devnet.call("eth_getBlockByNumber", hex(number), True)
    receipts = [devnet.call("eth_getTransactionReceipt", item["hash"]) for item in block["transactions"]]
    return block, receipts


@pytest.fixture(scope="module")
def blocks(evm_devnet: EvmDevnet, full_blocks: list[int]) -> list[Block]:
    """The first blocks and the full ones."""
    return [read(evm_devnet, number) for number in (*range(BLOCKS), *full_blocks)]


def test_the_blocks_have_transactions_of_every_type_and_logs(blocks: list[Block]) -> None:
    kinds = {item["type"] for block, _ in blocks for item in block["transactions"]}
    assert {"0x0", "0x1", "0x2", "0x4"} <= kinds
    assert any(receipt["logs"] for _, receipts in blocks for receipt in receipts)
    assert max(len(receipts) for _, receipts in blocks) > 16


def test_hash_of_every_header_is_the_blocks_hash(blocks: list[Block]) -> None:
    for block, _ in blocks:
        assert to_data(header_hash(block)) == block["hash"]


def test_root_of_the_receipts_is_the_headers(blocks: list[Block]) -> None:
    for block, receipts in blocks:
        assert to_data(receipts_root(receipts)) == block["receiptsRoot"], block["number"]


def test_root_and_hashes_of_the_transactions_are_the_headers(blocks: list[Block]) -> None:
    # The genesis block of this node has the hash of nothing where the root of an empty trie belongs.
    for block, _ in blocks[1:]:
        for item in block["transactions"]:
            assert to_data(keccak256(encode_transaction(item))) == item["hash"]
        assert to_data(transactions_root(block["transactions"])) == block["transactionsRoot"]
        if "withdrawalsRoot" in block:
            assert to_data(withdrawals_root(block["withdrawals"])) == block["withdrawalsRoot"]


def test_bloom_of_the_logs_is_the_headers(blocks: list[Block]) -> None:
    for block, receipts in blocks:
        items = [
            parse_data(item)
            for receipt in receipts
            for log in receipt["logs"]
            for item in (log["address"], *log["topics"])
        ]
        assert bloom_of(items) == int(block["logsBloom"], 16)


HEADER_FIELDS = [
    "parentHash",
    "sha3Uncles",
    "miner",
    "stateRoot",
    "transactionsRoot",
    "receiptsRoot",
    "logsBloom",
    "difficulty",
    "number",
    "gasLimit",
    "gasUsed",
    "timestamp",
    "mixHash",
    "nonce",
    "baseFeePerGas",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_any_altered_header_field_changes_the_hash(blocks: list[Block], data: st.DataObject) -> None:
    block = dict(data.draw(st.sampled_from(blocks))[0])
    field = data.draw(st.sampled_from(HEADER_FIELDS))
    digits = block[field][2:]
    place = data.draw(st.integers(0, len(digits) - 1))
    digit = data.draw(st.sampled_from([one for one in "123456789abcdef" if one != digits[place].lower()]))
    block[field] = "0x" + digits[:place] + digit + digits[place + 1 :]
    assert to_data(header_hash(block)) != block["hash"]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=25
)
@given(st.data())
def test_any_altered_receipt_changes_the_root(blocks: list[Block], data: st.DataObject) -> None:
    block, receipts = data.draw(st.sampled_from([pair for pair in blocks if pair[1]]))
    place = data.draw(st.integers(0, len(receipts) - 1))
    changed = dict(receipts[place])
    what = data.draw(st.sampled_from(["status", "gas", "log", "drop"]))
    if what == "status":
        changed["status"] = "0x0" if changed["status"] == "0x1" else "0x1"
    elif what == "gas":
        changed["cumulativeGasUsed"] = hex(int(changed["cumulativeGasUsed"], 16) + 1)
    elif what == "log":
        invented = {"address": "0x" + "12" * 20, "topics": [], "data": "0x"}
        changed["logs"] = [*changed["logs"], invented]
    altered = [*receipts[:place], *([] if what == "drop" else [changed]), *receipts[place + 1 :]]
    assert to_data(receipts_root(altered)) != block["receiptsRoot"]
