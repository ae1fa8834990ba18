"""What may be kept, for every class of methods: from the call, from the chain, and from the answer."""

from typing import Any

import pytest
from msgspec import Raw

from capstan.chain.models import Family
from capstan.rpc.cache.models import Binding, Kind, Life, NoHeads, Policy, Shape
from capstan.rpc.cache.policy import after, ask, classify, judge
from capstan.rpc.cache.rules import RULES
from capstan.rpc.methods import Kind as MethodKind
from capstan.rpc.methods import look_up
from tests.support.faulty_node import network_spec
from tests.unit.rpc.cache.chain import Chain, params, raw

ADDRESS = "0x" + "a1" * 20
CHAIN = Chain(()).extended(100, finalized=60)
UNKNOWN_HASH = "0x" + "77" * 32


def policy(method: str, *arguments: Any, heads: Any = CHAIN, family: Family = "evm") -> Policy:
    return classify(family, method, params(*arguments), heads)


@pytest.mark.parametrize(
    ("method", "arguments", "kind"),
    [
        ("eth_chainId", [], Kind.PERMANENT),
        ("net_version", [], Kind.PERMANENT),
        ("web3_sha3", ["0x68656c6c6f"], Kind.PERMANENT),
        ("eth_blockNumber", [], Kind.AT_HEAD),
        ("eth_gasPrice", [], Kind.AT_HEAD),
        ("eth_getBalance", [ADDRESS, "latest"], Kind.AT_HEAD),
        ("eth_getBalance", [ADDRESS, "safe"], Kind.AT_HEAD),
        ("eth_getBalance", [ADDRESS, "finalized"], Kind.AT_HEAD),
        ("eth_getBalance", [ADDRESS, "earliest"], Kind.AT_HEAD),
        ("eth_getBalance", [ADDRESS], Kind.AT_HEAD),
        ("eth_getBlockByNumber", ["finalized", False], Kind.AT_HEAD),
        ("eth_call", [{"to": ADDRESS}], Kind.AT_HEAD),
        ("eth_estimateGas", [{"to": ADDRESS}], Kind.UNTIL_HEAD),
        ("eth_getBalance", [ADDRESS, "0x10"], Kind.AT_BLOCK),
        ("eth_getBalance", [ADDRESS, {"blockNumber": "0x10"}], Kind.AT_BLOCK),
        ("eth_getBalance", [ADDRESS, {"blockHash": UNKNOWN_HASH}], Kind.NEVER),
        ("eth_getBlockByNumber", ["0x63", True], Kind.AT_BLOCK),
        ("eth_getBlockByNumber", ["0x64", True], Kind.UNTIL_HEAD),
        ("debug_traceBlockByNumber", ["0x10"], Kind.AT_BLOCK),
        ("eth_getBlockByHash", [UNKNOWN_HASH, True], Kind.BY_HASH),
        ("eth_getBlockTransactionCountByHash", [UNKNOWN_HASH], Kind.NEVER),
        ("debug_traceBlockByHash", [UNKNOWN_HASH], Kind.NEVER),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], Kind.BY_HASH),
        ("trace_transaction", [UNKNOWN_HASH], Kind.BY_HASH),
        ("eth_getLogs", [{"blockHash": UNKNOWN_HASH}], Kind.BY_HASH),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x2"}], Kind.AT_BLOCK),
        ("eth_getLogs", [{"fromBlock": "0x1"}], Kind.AT_HEAD),
        ("eth_getLogs", [{}], Kind.AT_HEAD),
        ("eth_getLogs", [{"fromBlock": "0x2", "toBlock": "0x1"}], Kind.NEVER),
        ("eth_getLogs", [{"fromBlock": "0x2", "toBlock": "pending"}], Kind.NEVER),
        ("eth_getLogs", [{"fromBlock": "0x2", "limit": 5}], Kind.NEVER),
        ("eth_getBalance", [ADDRESS, "pending"], Kind.NEVER),
        ("eth_getTransactionCount", [ADDRESS, "pending"], Kind.NEVER),
        ("eth_feeHistory", ["0x4", "pending", []], Kind.NEVER),
        ("eth_syncing", [], Kind.NEVER),
        ("eth_newFilter", [{}], Kind.NEVER),
        ("eth_getFilterChanges", ["0x1"], Kind.NEVER),
        ("eth_sendRawTransaction", ["0x00"], Kind.NEVER),
        ("debug_traceTransaction", [UNKNOWN_HASH], Kind.NEVER),
        ("txpool_content", [], Kind.NEVER),
        ("linea_estimateGas", [{}], Kind.NEVER),
        ("getSlot", [], Kind.NEVER),
    ],
)
def test_the_class_of_a_call(method: str, arguments: list[Any], kind: Kind) -> None:
    assert policy(method, *arguments).kind is kind


@pytest.mark.parametrize(
    ("method", "arguments", "kind"),
    [
        ("getGenesisHash", [], Kind.PERMANENT),
        ("getBlock", [5], Kind.BY_HASH),
        ("getBlock", [5, {"commitment": "confirmed"}], Kind.AT_HEAD),
        ("getTransaction", ["sig", {"encoding": "json"}], Kind.BY_HASH),
        ("getTransaction", ["sig", "json"], Kind.BY_HASH),
        ("getTransaction", ["sig", {"commitment": "confirmed"}], Kind.AT_HEAD),
        ("getBlockTime", [5], Kind.AT_BLOCK),
        ("getBlockTime", [70], Kind.AT_HEAD),
        ("getBlocks", [5, 10], Kind.AT_BLOCK),
        ("getBlocks", [5, 70], Kind.AT_HEAD),
        ("getLatestBlockhash", [], Kind.AT_HEAD),
        ("getLatestBlockhash", [{"commitment": "processed"}], Kind.NEVER),
        ("getAccountInfo", ["key", {"commitment": "recent"}], Kind.NEVER),
        ("getSignatureStatuses", [["sig"]], Kind.NEVER),
        ("sendTransaction", ["tx"], Kind.NEVER),
        ("simulateTransaction", ["tx"], Kind.NEVER),
        ("getHealth", [], Kind.NEVER),
        ("eth_chainId", [], Kind.NEVER),
    ],
)
def test_the_class_of_a_solana_call(method: str, arguments: list[Any], kind: Kind) -> None:
    assert policy(method, *arguments, family="solana").kind is kind


@pytest.mark.parametrize("family", ["evm", "solana"])
def test_every_method_with_a_rule_is_a_read_of_the_gateway(family: Family) -> None:
    spec = network_spec(family=family, method_groups=frozenset({"debug", "trace", "txpool"}))
    assert [name for name in RULES[family] if look_up(spec, name).kind is not MethodKind.READ] == []


def test_without_heads_only_what_never_changes_is_kept() -> None:
    calls: list[tuple[str, list[Any]]] = [
        ("eth_blockNumber", []),
        ("eth_getBalance", [ADDRESS, "0x1"]),
        ("eth_getBalance", [ADDRESS, "latest"]),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH]),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x2"}]),
    ]
    for method, arguments in calls:
        assert policy(method, *arguments, heads=NoHeads()).kind is Kind.NEVER
    assert policy("eth_chainId", heads=NoHeads()).kind is Kind.PERMANENT
    # A slot is short enough to go by time.
    assert policy("getSlot", heads=NoHeads(), family="solana").kind is Kind.AT_HEAD


def bound(method: str, arguments: list[Any], result: Any, heads: Any = CHAIN, family: Family = "evm") -> Binding | None:
    return after(policy(method, *arguments, heads=heads, family=family), raw(result), heads)


def block(number: int, block_hash: str | None = None) -> dict[str, Any]:
    return {"hash": block_hash or CHAIN.hashes[number].upper().replace("0X", "0x"), "number": hex(number), "x": [1]}


def item(number: int, block_hash: str | None = None) -> dict[str, Any]:
    return {"blockHash": block_hash or CHAIN.hashes[number], "blockNumber": hex(number), "logs": []}


PENDING = {"blockHash": None, "blockNumber": None, "hash": UNKNOWN_HASH}
FINAL, BLOCK, HEAD, MOMENT = Life.FINAL, Life.BLOCK, Life.HEAD, Life.MOMENT


@pytest.mark.parametrize(
    ("method", "arguments", "result", "life", "number"),
    [
        ("eth_chainId", [], "0x1", FINAL, None),
        ("eth_blockNumber", [], "0x63", HEAD, None),
        ("eth_blockNumber", [], "0x64", HEAD, None),  # the node is ahead of us
        ("eth_getBlockByNumber", ["latest", False], block(99), HEAD, None),
        ("eth_getBlockByNumber", ["finalized", False], block(60), HEAD, None),
        ("eth_getBlockByNumber", ["0x3c", False], block(60), FINAL, 60),
        ("eth_getBlockByNumber", ["0x3d", False], block(61), BLOCK, 61),
        ("eth_getBlockByNumber", ["0x3c", False], None, MOMENT, None),
        ("eth_getBlockByNumber", ["0x70", False], None, MOMENT, None),
        ("eth_getBlockReceipts", ["0x3d"], [item(61), item(61)], BLOCK, 61),
        ("eth_getBlockReceipts", ["0x3d"], [], HEAD, None),
        ("eth_getBlockReceipts", ["0x3c"], [], FINAL, 60),
        ("trace_block", ["0x3d"], [{"blockNumber": 61, "blockHash": CHAIN.hashes[61]}], BLOCK, 61),
        ("eth_getBalance", [ADDRESS, "0x3c"], "0x0", FINAL, 60),
        # By number, and the answer does not tell of which branch it is.
        ("eth_getBalance", [ADDRESS, "0x3d"], "0x0", HEAD, None),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], item(60), FINAL, 60),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], item(61), BLOCK, 61),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], item(100, UNKNOWN_HASH), HEAD, None),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], None, MOMENT, None),
        ("eth_getTransactionByHash", [UNKNOWN_HASH], PENDING, MOMENT, None),
        ("trace_transaction", [UNKNOWN_HASH], [], MOMENT, None),
        ("eth_getBlockByHash", [CHAIN.hashes[61], False], block(61), BLOCK, 61),
        ("eth_getLogs", [{"blockHash": CHAIN.hashes[60]}], [item(60)], FINAL, 60),
        ("eth_getLogs", [{"blockHash": UNKNOWN_HASH}], [], MOMENT, None),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x3c"}], [item(5)], FINAL, 60),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x3d"}], [item(5)], HEAD, None),
    ],
)
def test_what_an_answer_is_bound_to(
    method: str, arguments: list[Any], result: Any, life: Life, number: int | None
) -> None:
    assert bound(method, arguments, result) == Binding(life, number)


@pytest.mark.parametrize(
    ("method", "arguments", "result"),
    [
        ("eth_blockNumber", [], "0x62"),  # from a node that is behind
        ("eth_getBlockByNumber", ["latest", False], block(98)),
        ("eth_getBlockByNumber", ["latest", False], block(99, UNKNOWN_HASH)),
        ("eth_getBlockByNumber", ["0x3d", False], block(61, UNKNOWN_HASH)),  # from another branch
        ("eth_getBlockByNumber", ["0x3d", False], block(62)),  # not what was asked for
        ("eth_getBlockByHash", [UNKNOWN_HASH, False], block(61)),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], item(61, UNKNOWN_HASH)),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], "what?"),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH], {"blockHash": UNKNOWN_HASH, "blockNumber": "x"}),
        ("eth_chainId", [], None),
        ("eth_sendRawTransaction", ["0x00"], UNKNOWN_HASH),
    ],
)
def test_doubtful_answers_are_not_kept(method: str, arguments: list[Any], result: Any) -> None:
    assert bound(method, arguments, result) is None


def test_a_block_known_by_its_hash_binds_answers_that_do_not_name_it() -> None:
    number_of = {CHAIN.hashes[61]: 61, CHAIN.hashes[60]: 60}
    for number, life in ((61, BLOCK), (60, FINAL)):
        question = ask("n", "evm", "eth_call", params({"to": ADDRESS}, {"blockHash": CHAIN.hashes[number]}))
        judged = judge(question, CHAIN, number_of)
        assert judged.kind is Kind.AT_BLOCK
        assert after(judged, Raw(b'"0x"'), CHAIN) == Binding(life, number)


def test_an_uncle_is_not_taken_for_the_block_it_is_in() -> None:
    assert policy("eth_getUncleByBlockNumberAndIndex", "0x3c", "0x0").shape is Shape.OPAQUE


@pytest.mark.parametrize(
    ("method", "arguments", "result", "life"),
    [
        ("getBlock", [5], {"blockhash": "h", "blockTime": 1700000000}, FINAL),
        ("getBlock", [5], {"blockhash": "h", "blockTime": None}, MOMENT),
        ("getTransaction", ["sig"], {"slot": 5, "blockTime": 1700000000}, FINAL),
        ("getTransaction", ["sig"], None, MOMENT),
        ("getTransaction", ["sig", {"commitment": "confirmed"}], {"slot": 5, "blockTime": 1700000000}, HEAD),
        ("getBlockTime", [5], 1700000000, FINAL),
        ("getBlockTime", [5], None, MOMENT),
        ("getLatestBlockhash", [], {"context": {"slot": 5}}, HEAD),
    ],
)
def test_what_a_solana_answer_is_bound_to(method: str, arguments: list[Any], result: Any, life: Life) -> None:
    found = bound(method, arguments, result, family="solana")
    assert found is not None
    assert found.life is life
