"""Every standard method of the node, through the running service and directly: the same bytes.

The chain is this file's own and stands still, so that both are asked about the same head. What the service answers on
purpose in its own way is tested here as well: ids of filters, `eth_accounts`, and a transaction that is sent twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from eth_account import Account

from capstan.devnet.evm import CHAIN_ID
from capstan.rpc import methods
from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.http import assert_error
from tests.support.node import Node
from tests.support.servers import wait_until

NOBODY = "0x" + "11" * 20
NO_HASH = "0x" + "22" * 32
# The accounts this file sends from. The chain is its own.
SENDER, WAITING, SECOND = 0, 1, 2


class Raws(msgspec.Struct):
    """A reply whose result or error is kept as the bytes it came as."""

    id: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()

    def told(self) -> tuple[bytes, bytes]:
        return bytes(self.result), bytes(self.error)


class Pair:
    """A node and the service in front of it."""

    def __init__(self, devnet: EvmDevnet, gateway: Gateway) -> None:
        self.devnet = devnet
        self.gateway = gateway
        self.node = Node(devnet.url)
        owner = devnet.deployment.accounts[SENDER]
        token = devnet.deployment.tokens[0].address
        mint = "0x40c10f19" + owner.address[2:].rjust(64, "0") + f"{7:064x}"
        receipt = devnet.send(owner, token, data=mint)
        # One transaction stays in the mempool.
        self.waiting = self.node.ask("eth_sendRawTransaction", self.signed(WAITING))
        self.names = {
            "owner": owner.address,
            "token": token,
            "transaction": receipt["transactionHash"],
            "block": receipt["blockNumber"],
            "hash": receipt["blockHash"],
            "waiting": self.waiting,
        }

    def signed(self, account: int, value: int = 1) -> str:
        """A raw transfer of the account's first nonce."""
        fields = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": 0,
            "to": NOBODY,
            "value": value,
            "gas": 21_000,
            "maxFeePerGas": 20 * 10**9,
            "maxPriorityFeePerGas": 10**9,
        }
        key = self.devnet.deployment.accounts[account].private_key
        return f"0x{Account.sign_transaction(fields, key).raw_transaction.hex()}"

    def params(self, template: Any) -> Any:
        """The params with the names of this chain filled in."""
        if isinstance(template, str):
            return self.names[template[1:]] if template.startswith("$") else template
        if isinstance(template, list):
            return [self.params(part) for part in template]
        if isinstance(template, dict):
            return {name: self.params(part) for name, part in template.items()}
        return template


@pytest.fixture(scope="module")
def pair(quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with serving(tmp_path_factory.mktemp("equal"), [quiet_devnet.url]) as gateway:
        pair = Pair(quiet_devnet, gateway)
        # The head that the service knows is the one that the mint made.
        wanted = pair.names["block"]
        wait_until(lambda: gateway.node.ask("eth_blockNumber") == wanted, seconds=20)
        yield pair


_SUPPLY = {"to": "$token", "data": "0x18160ddd"}
_BAD_CALL = {"to": "$token", "data": "0xdeadbeef"}
_PAY = {"from": "$owner", "to": NOBODY, "value": "0x1"}
_TOO_MUCH = {"from": NOBODY, "to": "$token", "data": "0xa9059cbb" + NOBODY[2:].rjust(64, "0") + f"{10**30:064x}"}

# The params of every read, one row for each way to ask. "$name" stands for a name of the chain; see `Pair.names`.
READS: dict[str, list[list[Any]]] = {
    "eth_baseFee": [[]],
    "eth_blobBaseFee": [[]],
    "eth_blockNumber": [[]],
    "eth_call": [
        [_SUPPLY, "latest"],
        [_SUPPLY, "$block"],
        [_SUPPLY, {"blockHash": "$hash"}],
        [_SUPPLY, "pending"],
        [_SUPPLY, "earliest"],
        [_SUPPLY],
        [_SUPPLY, "latest", {"$token": {"code": "0x602a60005260206000f3"}}],
        [_BAD_CALL, "latest"],
        [_TOO_MUCH, "latest"],
        [{"to": "$token", "data": "0xzz"}, "latest"],
        [_SUPPLY, "0xffffff"],
    ],
    "eth_callMany": [[[{"transactions": [_SUPPLY]}], {"blockNumber": "latest"}]],
    "eth_capabilities": [[]],
    "eth_chainId": [[]],
    "eth_coinbase": [[]],
    "eth_config": [[]],
    "eth_createAccessList": [[_SUPPLY, "latest"]],
    "eth_estimateGas": [[_PAY], [_PAY, "latest"], [_PAY, "$block"], [_PAY, "pending"], [_BAD_CALL], [_TOO_MUCH]],
    "eth_feeHistory": [["0x2", "$block", [25, 75]], ["0x1", "latest", []], ["0x4", "0xffffff", []], ["0x2", "$block"]],
    "eth_gasPrice": [[]],
    "eth_getAccount": [["$owner", "latest"]],
    "eth_getAccountInfo": [["$owner", "latest"]],
    "eth_getBalance": [
        ["$owner", "latest"],
        ["$owner", "$block"],
        ["$owner", "earliest"],
        ["$owner", "pending"],
        ["$owner", "safe"],
        ["$owner", "finalized"],
        ["$owner", {"blockHash": "$hash"}],
        ["$owner", {"blockNumber": "$block"}],
        ["$owner"],
        [NOBODY, "0xffffff"],
        ["not an address", "latest"],
        ["$owner", "0x"],
        [],
    ],
    "eth_getBlockAccessList": [["latest"]],
    "eth_getBlockByHash": [["$hash", True], ["$hash", False], [NO_HASH, False], ["0x12", False]],
    "eth_getBlockByNumber": [
        ["$block", True],
        ["$block", False],
        ["latest", True],
        ["latest", False],
        ["earliest", False],
        ["safe", False],
        ["finalized", False],
        ["0xffffff", False],
        ["$block"],
        [1, False],
    ],
    "eth_getBlockReceipts": [["$block"], ["$hash"]],
    "eth_getBlockTransactionCountByHash": [["$hash"], [NO_HASH]],
    "eth_getBlockTransactionCountByNumber": [["$block"], ["latest"], ["0xffffff"]],
    "eth_getCode": [["$token", "latest"], ["$token", "$block"], [NOBODY, "latest"], ["$token", "0x0"]],
    "eth_getHeaderByHash": [["$hash"]],
    "eth_getHeaderByNumber": [["$block"]],
    "eth_getLogs": [
        [{"fromBlock": "0x0", "toBlock": "latest"}],
        [{"fromBlock": "0x0", "toBlock": "$block", "address": "$token"}],
        [{"fromBlock": "$block", "toBlock": "$block"}],
        [{"fromBlock": "earliest", "toBlock": "latest", "address": [NOBODY]}],
        [{"blockHash": "$hash"}],
        [{"blockHash": NO_HASH}],
        [{"fromBlock": "0x1", "toBlock": "0x2", "topics": [None, [NO_HASH]]}],
        [{"fromBlock": "$block", "toBlock": "0x0"}],
        [{"fromBlock": "0x0", "toBlock": "0x1fff"}],
        [{}],
        [{"fromBlock": "nonsense"}],
    ],
    "eth_getProof": [["$token", ["0x0"], "latest"]],
    "eth_getRawTransactionByBlockHashAndIndex": [["$hash", "0x0"]],
    "eth_getRawTransactionByBlockNumberAndIndex": [["$block", "0x0"]],
    "eth_getRawTransactionByHash": [["$transaction"]],
    "eth_getStorageAt": [["$token", "0x0", "latest"], ["$token", "0x3", "$block"], [NOBODY, "0x0", "latest"]],
    "eth_getStorageValues": [[{"$token": ["0x0"]}, "latest"]],
    "eth_getTransactionByBlockHashAndIndex": [["$hash", "0x0"], ["$hash", "0x9"], [NO_HASH, "0x0"]],
    "eth_getTransactionByBlockNumberAndIndex": [["$block", "0x0"], ["latest", "0x9"], ["0xffffff", "0x0"]],
    "eth_getTransactionByHash": [["$transaction"], ["$waiting"], [NO_HASH], ["0x12"]],
    "eth_getTransactionBySenderAndNonce": [["$owner", "0x0"]],
    "eth_getTransactionCount": [["$owner", "latest"], ["$owner", "pending"], ["$owner", "$block"], [NOBODY, "0x0"]],
    "eth_getTransactionReceipt": [["$transaction"], ["$waiting"], [NO_HASH]],
    "eth_getUncleByBlockHashAndIndex": [["$hash", "0x0"]],
    "eth_getUncleByBlockNumberAndIndex": [["$block", "0x0"]],
    "eth_getUncleCountByBlockHash": [["$hash"]],
    "eth_getUncleCountByBlockNumber": [["$block"]],
    "eth_hashrate": [[]],
    "eth_maxPriorityFeePerGas": [[]],
    "eth_mining": [[]],
    "eth_protocolVersion": [[]],
    "eth_simulateV1": [[{"blockStateCalls": [{"calls": [_SUPPLY]}]}, "latest"]],
    "eth_syncing": [[]],
    "net_listening": [[]],
    "net_peerCount": [[]],
    "net_version": [[]],
    "web3_clientVersion": [[]],
    "web3_sha3": [["0x1234"], ["0x"], ["1234"]],
}
FILTERS = {
    "eth_newFilter",
    "eth_newBlockFilter",
    "eth_newPendingTransactionFilter",
    "eth_getFilterChanges",
    "eth_getFilterLogs",
    "eth_uninstallFilter",
}


def bodies(pair: Pair, method: str) -> list[bytes]:
    """The calls of one method. Names may stand for keys as well."""
    found = []
    for row in READS[method]:
        params = json.dumps(pair.params(row)).replace("$token", pair.names["token"])
        found.append(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params.encode()))
    return found


def test_every_read_that_the_gateway_knows_is_compared() -> None:
    known = set(methods._EVM_READS.split()) | set(methods._EVM_READS_ONCE.split())
    assert known == set(READS) | FILTERS


@pytest.mark.parametrize("method", READS)
def test_an_answer_is_byte_for_byte_the_nodes(method: str, pair: Pair) -> None:
    for body in bodies(pair, method):
        expected = msgspec.json.decode(pair.node.send(body), type=Raws).told()
        # The second time the answer may come from memory.
        for _ in range(2):
            assert msgspec.json.decode(pair.gateway.node.send(body), type=Raws).told() == expected, body


def test_in_batches_of_a_hundred_the_answers_are_the_same_bytes(pair: Pair) -> None:
    calls = [body for method in READS for body in bodies(pair, method)]
    expected = [msgspec.json.decode(pair.node.send(body), type=Raws).told() for body in calls]
    numbered = [body.replace(b'"id":1', b'"id":%d' % place, 1) for place, body in enumerate(calls)]
    found: dict[int, tuple[bytes, bytes]] = {}
    for start in range(0, len(numbered), 100):
        answers = pair.gateway.node.send(b"[" + b",".join(numbered[start : start + 100]) + b"]")
        for answer in msgspec.json.decode(answers, type=list[Raws]):
            found[int(bytes(answer.id))] = answer.told()
    assert [found[place] for place in range(len(calls))] == expected


def test_filters_tell_what_the_nodes_own_tell(pair: Pair) -> None:
    makers: list[tuple[str, list[Any]]] = [
        ("eth_newBlockFilter", []),
        ("eth_newPendingTransactionFilter", []),
        ("eth_newFilter", [{"address": pair.names["token"]}]),
        ("eth_newFilter", [{"address": NOBODY}]),
    ]
    ours = [pair.gateway.node.ask(method, *params) for method, params in makers]
    theirs = [pair.node.ask(method, *params) for method, params in makers]
    owner = pair.devnet.deployment.accounts[SENDER]
    pair.devnet.send(owner, pair.names["token"], data="0x40c10f19" + owner.address[2:].rjust(64, "0") + f"{1:064x}")
    for (method, _), mine, direct in zip(makers, ours, theirs, strict=True):
        if method == "eth_newFilter":
            assert pair.gateway.node.ask("eth_getFilterLogs", mine) == pair.node.ask("eth_getFilterLogs", direct)
        assert pair.gateway.node.ask("eth_getFilterChanges", mine) == pair.node.ask("eth_getFilterChanges", direct)
        assert pair.gateway.node.ask("eth_uninstallFilter", mine) is True
        assert pair.gateway.node.ask("eth_uninstallFilter", mine) is False


def test_accounts_are_never_the_nodes(pair: Pair) -> None:
    assert pair.node.ask("eth_accounts")
    assert pair.gateway.node.ask("eth_accounts") == []


@pytest.mark.parametrize("raw", ["0x00", "0x", "nonsense", None])
def test_a_transaction_that_is_none_gets_the_nodes_error(raw: Any, pair: Pair) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_sendRawTransaction", "params": [raw]}).encode()
    assert pair.gateway.node.send(body) == pair.node.send(body)


def test_a_sent_transaction_has_its_hash_and_a_used_nonce_the_nodes_error(pair: Pair) -> None:
    raw = pair.signed(SECOND)
    sent = pair.gateway.node.ask("eth_sendRawTransaction", raw)
    pair.devnet.mine_transaction(sent)
    assert pair.node.ask("eth_getTransactionByHash", sent)["hash"] == sent
    assert pair.gateway.node.ask("eth_sendRawTransaction", raw) == sent
    other = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendRawTransaction", "params": [pair.signed(SECOND, value=2)]}
    assert pair.gateway.node.reply(other) == pair.node.reply(other)
    assert "error" in pair.node.reply(other)


# Ids as clients choose them, and as strange as JSON allows.
IDS = [
    b"0",
    b"-7",
    b"1.50",
    b"1e3",
    b"-0.0",
    b"123456789012345678901234567890123456789",
    b"null",
    b'""',
    b'"text"',
    b'"\\u00e9\\u0000 \\n \\" \\\\ \\/"',
    '"\u00e9 \U0001f600"'.encode(),
]


@pytest.mark.parametrize("identity", IDS)
def test_an_id_is_echoed_byte_for_byte(identity: bytes, pair: Pair) -> None:
    for call in (b'"method":"eth_chainId"', b'"method":"eth_getBalance","params":[1]', b'"method":"eth_nonsense"'):
        body = b'{"jsonrpc":"2.0","id":%b,%b}' % (identity, call)
        (single, batched) = (pair.gateway.node.send(sent) for sent in (body, b"[" + body + b"]"))
        assert bytes(msgspec.json.decode(single, type=Raws).id) == identity
        assert [bytes(reply.id) for reply in msgspec.json.decode(batched, type=list[Raws])] == [identity]


def test_a_mixed_batch_of_a_hundred_answers_each_in_its_place_and_notifications_not_at_all(pair: Pair) -> None:
    owner = pair.names["owner"]
    kinds: list[tuple[str, list[Any], str]] = [
        ("eth_chainId", [], "result"),
        ("eth_getBalance", [owner, "0x0"], "result"),
        ("eth_getBalance", ["nonsense", "latest"], "error"),
        ("eth_nonsense", [], "error"),
        ("eth_call", [{"to": pair.names["token"], "data": "0xdeadbeef"}, "latest"], "error"),
        ("eth_getLogs", [{"fromBlock": "0x0", "toBlock": "0x2"}], "result"),
    ]
    batch: list[dict[str, Any]] = []
    wanted: dict[str, tuple[bytes, bytes]] = {}
    for place in range(100):
        method, params, _ = kinds[place % len(kinds)]
        call = {"jsonrpc": "2.0", "method": method, "params": params}
        if place % 5:
            name = f"call {place}"
            alone = pair.node if method != "eth_nonsense" else pair.gateway.node
            wanted[name] = msgspec.json.decode(alone.send(json.dumps({**call, "id": 1}).encode()), type=Raws).told()
            call["id"] = name
        batch.append(call)
    answers = msgspec.json.decode(pair.gateway.node.send(json.dumps(batch).encode()), type=list[Raws])
    assert len(answers) == len(wanted) == 80
    assert {json.loads(bytes(answer.id)): answer.told() for answer in answers} == wanted


def test_notifications_alone_get_no_body(pair: Pair) -> None:
    call = b'{"jsonrpc":"2.0","method":"eth_chainId"}'
    for body in (call, b"[" + b",".join([call] * 100) + b"]"):
        answer = pair.gateway.post(body)
        assert (answer.status_code, answer.content) == (204, b"")


def test_a_batch_of_a_hundred_and_one_is_refused(pair: Pair) -> None:
    call = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}'
    assert "100" in assert_error(pair.gateway.post(b"[" + b",".join([call] * 101) + b"]"), 400, "invalid_request")
