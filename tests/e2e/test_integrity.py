"""Three upstreams in front of one real chain, of which one lies, behind the real service.

Each way to lie has a network of its own, all served by one process: the liar is the upstream of the first tier, so that
it is always asked first. No wrong answer may reach the client where `quorum` or `verify` is on.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest

from tests.support.devnet import EvmDevnet, LoopThread
from tests.support.http import assert_error
from tests.support.lying_node import Lie, LyingNode, honest
from tests.support.servers import free_port, wait_until
from tests.support.service import Service, run_json, variables
from tests.unit.rpc.integrity import lies

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
REPEATS = 5

LIES: dict[str, Lie] = {
    "balances": lies.about("eth_getBalance", lambda _: "0xffff"),
    "calls": lies.about("eth_call", lambda _: "0x" + "00" * 31 + "01"),
    "dropped": lies.about("eth_getLogs", lies.without_logs),
    "amounts": lies.about("eth_getLogs", lies.with_other_amount),
    "invented": lies.about("eth_getLogs", lies.with_log_of_nobody),
    "blocks": lies.in_every_block(lies.with_field("stateRoot", "0x" + "ab" * 32)),
    "receipts": lies.about("eth_getTransactionReceipt", lies.failed),
    "hidden": lies.together(
        lies.about("eth_getLogs", lies.without_logs),
        lies.in_every_block(lies.cut_short("logsBloom", "0x" + "00" * 256)),
    ),
    "mixed": lies.in_every_block(lies.of_mixed_transactions),
    "cut": lies.in_every_block(lies.cut_short()),
    "kinds": lies.in_every_block(lies.of_unknown_type),
}
# Lies that nothing proves to be such: they are passed over every time, and nobody is blamed.
UNPROVABLE = ("cut", "kinds")
QUORUM = {"eth_getBalance": {"agree": 2, "of": 3}, "eth_call": {"agree": 2, "of": 3}}
# Further networks: the first lie again, three upstreams that never agree, a liar that is believed, and upstreams that
# give the receipts of a block at once, the first of them in a form that proves nothing or not at all.
EXPLAINED, UNDECIDED, TRUSTING = "explained", "undecided", "trusting"
BLOCK_RECEIPTS: dict[str, Lie] = {
    "odd": lies.about("eth_getBlockReceipts", lambda receipts: [lies.unknown(receipt) for receipt in receipts]),
    "absent": lies.about("eth_getBlockReceipts", lambda _: None),
}


class Lab:
    """The service, and what is asked of it."""

    def __init__(self, service: Service, key: str, devnet: EvmDevnet, metrics: str) -> None:
        self.service = service
        self._client = httpx.Client(headers={"X-API-Key": key, "X-Explain": "1"}, timeout=30)
        self._devnet = devnet
        self._metrics = metrics

    def close(self) -> None:
        self._client.close()

    def knows_head(self, network: str) -> bool:
        return self.metric("capstan_head_number", f'network="lab/{network}"') > 0

    def send(self, network: str, method: str, *params: Any) -> httpx.Response:
        return self.post(network, {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})

    def post(self, network: str, body: Any) -> httpx.Response:
        return self._client.post(f"{self.service.base_url}/rpc/lab/{network}", json=body)

    def ask(self, network: str, method: str, *params: Any) -> tuple[Any, list[dict[str, Any]]]:
        """The result, and the attempts that led to it."""
        answer = self.send(network, method, *params)
        assert answer.status_code == 200, answer.text
        explained = answer.headers.get("x-explain")
        return answer.json()["result"], json.loads(explained) if explained else []

    def true(self, method: str, *params: Any) -> Any:
        """What the chain says itself."""
        return self._devnet.call(method, *params)

    def metric(self, name: str, *labels: str) -> float:
        """The value of a metric, by some of its labels; 0 when it is not there."""
        text = self._client.get(self._metrics).text
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in labels))


@pytest.fixture(scope="module")
def lab(evm_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One service for all tests here, and proxies that run in a thread of their own."""
    directory = tmp_path_factory.mktemp("lab")
    data = ["--data-dir", str(directory / "data")]
    key = run_json("keys", "create", "--plan", "enterprise", *data)["key"]
    port = free_port()
    with ExitStack() as stack:
        thread = stack.enter_context(LoopThread())

        def proxy(lie: Lie) -> LyingNode:
            node = LyingNode(evm_devnet.url, lie)
            thread.run(node.__aenter__())
            stack.callback(lambda: thread.run(node.__aexit__(None, None, None)))
            return node

        truthful = [proxy(honest), proxy(honest)]
        nodes = {name: [proxy(lie), *truthful] for name, lie in LIES.items()}
        nodes[EXPLAINED] = [proxy(LIES["balances"]), *truthful]
        nodes[UNDECIDED] = [proxy(lies.about("eth_getBalance", lambda _, wrong=n: hex(wrong))) for n in (1, 2, 3)]
        complete = [proxy(honest), proxy(honest)]
        nodes |= {name: [proxy(lie), *complete] for name, lie in BLOCK_RECEIPTS.items()}
        for node in (node for name in BLOCK_RECEIPTS for node in nodes[name]):
            node.has_block_receipts = True
        nodes[TRUSTING] = [proxy(lies.together(*LIES.values()))]
        settings: dict[str, Any] = {"server.metrics_port": port, "cache.disk_bytes": 0}
        for name, places in nodes.items():
            for setting, value in _network(places, checked=name != TRUSTING).items():
                settings[f"networks.lab_{name}.{setting}"] = value
        service = Service(data, variables(settings), directory)
        stack.callback(service.kill)
        found = Lab(service, key, evm_devnet, f"http://127.0.0.1:{port}/metrics")
        stack.callback(found.close)
        for network in nodes:
            wait_until(partial(found.knows_head, network))
        yield found


def _network(nodes: list[LyingNode], *, checked: bool) -> dict[str, Any]:
    """A network of these nodes. The first one, which lies, is of the first tier."""
    names = ("liar", "honest-0", "honest-1")
    upstreams = [
        {"url": node.url, "name": name, "tier": min(place, 1)}
        for place, (node, name) in enumerate(zip(nodes, names, strict=False))
    ]
    facts = {"chain_id": 31337, "kind": "testnet", "family": "evm", "block_time_ms": 1000, "upstreams": upstreams}
    return {**facts, "verify": True, "quorum": QUORUM} if checked else facts


def test_no_wrong_answer_reaches_the_client(lab: Lab, evm_devnet: EvmDevnet) -> None:
    token = evm_devnet.deployment.tokens[0].address
    owner = evm_devnet.deployment.accounts[0].address
    transfers = {"fromBlock": "0x0", "toBlock": "latest", "address": token, "topics": [TRANSFER]}
    # The tokens are minted when the chain is deployed, in one of its first blocks.
    log = (lab.true("eth_getLogs", transfers))[0]
    transfers["toBlock"] = log["blockNumber"]
    supply = {"to": token, "data": "0x18160ddd"}
    asked: dict[str, list[tuple[str, list[Any]]]] = {
        "balances": [("eth_getBalance", [owner, "0x3"]), ("eth_getBalance", ["0x" + "11" * 20, "latest"])],
        "calls": [("eth_call", [supply, log["blockNumber"]]), ("eth_call", [supply])],
        "dropped": [("eth_getLogs", [transfers]), ("eth_getLogs", [{"blockHash": log["blockHash"]}])],
        "amounts": [("eth_getLogs", [transfers])],
        "invented": [("eth_getLogs", [transfers])],
        "blocks": [
            ("eth_getBlockByNumber", [log["blockNumber"], True]),
            ("eth_getBlockByHash", [log["blockHash"], False]),
        ],
        "receipts": [("eth_getTransactionReceipt", [log["transactionHash"]])],
        "hidden": [("eth_getLogs", [transfers]), ("eth_getLogs", [{"blockHash": log["blockHash"]}])],
        "mixed": [("eth_getBlockByNumber", [log["blockNumber"], True])],
        "cut": [
            ("eth_getBlockByNumber", [log["blockNumber"], False]),
            ("eth_getBlockByHash", [log["blockHash"], True]),
        ],
        "kinds": [("eth_getBlockByHash", [log["blockHash"], True])],
    }
    assert asked.keys() == LIES.keys()
    for network, questions in asked.items():
        for method, params in questions:
            truth = lab.true(method, *params)
            for _ in range(REPEATS):
                result, attempts = lab.ask(network, method, *params)
                assert result == truth, (network, method)
                answered = [one["upstream"] for one in attempts if one["outcome"] in ("ok", "agrees")]
                assert "liar" not in answered, attempts
        caught = lab.metric("capstan_upstream_lies_total", f'network="lab/{network}"', 'upstream="liar"') >= 1
        distrusted = lab.metric("capstan_upstream_distrusted", f'network="lab/{network}"', 'upstream="liar"') == 1
        assert caught == distrusted == (network not in UNPROVABLE), network
        assert lab.metric("capstan_upstream_lies_total", f'network="lab/{network}"', 'upstream="honest') == 0
    assert lab.metric("capstan_integrity_disagreements_total", 'network="lab/balances"') >= 1
    assert lab.metric("capstan_integrity_refuted_total", 'network="lab/dropped"') >= 1
    said = [entry for entry in lab.service.log if entry["event"] == "integrity.disagreement"]
    assert said
    assert said[0]["answers"]["liar"] == '"0xffff"'
    assert sorted(said[0]["agreed"]) == ["honest-0", "honest-1"]


@pytest.mark.parametrize("network", BLOCK_RECEIPTS)
def test_receipts_of_a_block_that_prove_nothing_do_not_reach_the_client(
    lab: Lab, evm_devnet: EvmDevnet, network: str
) -> None:
    transfers = {"fromBlock": "0x0", "toBlock": "latest", "address": evm_devnet.deployment.tokens[0].address}
    number = lab.true("eth_getLogs", transfers)[0]["blockNumber"]
    block = lab.true("eth_getBlockByNumber", number, False)
    truth = [lab.true("eth_getTransactionReceipt", transaction) for transaction in block["transactions"]]
    for name in (number, block["hash"]):
        result, attempts = lab.ask(network, "eth_getBlockReceipts", name)
        assert result == truth
        assert [one["upstream"] for one in attempts if one["outcome"] == "ok"] != ["liar"], attempts
    assert lab.metric("capstan_upstream_lies_total", f'network="lab/{network}"') == 0


def test_the_vote_is_explained_and_the_liar_then_passed_over(lab: Lab) -> None:
    _, attempts = lab.ask(EXPLAINED, "eth_getBalance", "0x" + "22" * 20, "0x3")
    outcomes = {one["upstream"]: one["outcome"] for one in attempts}
    assert outcomes == {"liar": "outvoted", "honest-0": "agrees", "honest-1": "agrees"}
    _, attempts = lab.ask(EXPLAINED, "eth_getBalance", "0x" + "33" * 20, "0x3")
    assert {one["upstream"] for one in attempts} == {"honest-0", "honest-1"}
    # Reads that nobody checks go elsewhere too.
    _, attempts = lab.ask(EXPLAINED, "eth_getCode", "0x" + "33" * 20, "latest")
    assert all(one["upstream"] != "liar" for one in attempts)


def test_without_agreement_the_client_gets_an_error_that_says_so(lab: Lab) -> None:
    """All three give another answer."""
    answer = lab.send(UNDECIDED, "eth_getBalance", "0x" + "44" * 20, "latest")
    message = assert_error(answer, 502, "upstream_error")
    assert "disagree about eth_getBalance" in message
    batch = [{"jsonrpc": "2.0", "id": 7, "method": "eth_getBalance", "params": ["0x" + "45" * 20, "latest"]}]
    (item,) = (lab.post(UNDECIDED, batch)).json()
    assert (item["id"], item["error"]["code"]) == (7, -32603)
    assert "disagree" in item["error"]["message"]


def test_without_checks_the_answer_of_a_liar_is_passed_on_and_nothing_else_is_claimed(lab: Lab) -> None:
    result, attempts = lab.ask(TRUSTING, "eth_getBalance", "0x" + "11" * 20, "latest")
    assert result == "0xffff"
    assert [(one["upstream"], one["outcome"]) for one in attempts] == [("liar", "ok")]
    assert lab.metric("capstan_integrity_proved_total", f'network="lab/{TRUSTING}"') == 0
    assert lab.metric("capstan_upstream_lies_total", f'network="lab/{TRUSTING}"') == 0
