"""Reorganisations of depth 1 to 32 under the running service while clients read: afterwards no read is stale.

A read is stale when the service has announced the new head, and a later read still tells of the old branch. The
property is checked with two nodes whose chain a test writes, one of which may switch late, and with a real node.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.node import Node
from tests.support.raw_node import Exchange, raw_nodes
from tests.support.scripted_chain import RICH, TOKEN, Chain, ScriptedNode, scripted_nodes
from tests.support.servers import wait_until

FIRST_BLOCKS = 70
# They read all the time while the chain is switched.
READERS = 1
PAUSE_SECONDS = 0.02
ANNOUNCED_SECONDS = 15.0

Call = dict[str, Any]


def calls_about(old: Chain, new: Chain) -> list[Call]:
    """Reads of the head, of the blocks that were replaced, and of what was in them."""
    depth = sum(1 for one, two in zip(old, new, strict=False) if one != two)
    # The first that was replaced, one in the middle, the last, and the last that was not.
    first = len(old) - depth
    numbers = sorted({first - 1, first, first + depth // 2, len(old) - 1, len(new) - 1})
    asked: list[tuple[str, list[Any]]] = [
        ("eth_getBlockByNumber", ["latest", False]),
        ("eth_getBalance", [RICH, "latest"]),
        ("eth_call", [{"to": TOKEN, "data": "0x"}, "latest"]),
        ("eth_getLogs", [{"fromBlock": hex(first - 2), "toBlock": "latest", "address": TOKEN}]),
        ("eth_getLogs", [{"fromBlock": hex(first), "toBlock": hex(len(old) - 1)}]),
    ]
    for number in numbers:
        asked += [
            ("eth_getBlockByNumber", [hex(number), False]),
            ("eth_getBalance", [RICH, hex(number)]),
            ("eth_getBlockReceipts", [hex(number)]),
        ]
        for chain in (old, new):
            if number < len(chain):
                block = chain[number]
                asked += [
                    ("eth_getTransactionReceipt", [block.transaction_hash]),
                    ("eth_getTransactionByHash", [block.transaction_hash]),
                    ("eth_getBlockByHash", [block.hash, False]),
                ]
        if number < len(new):
            # Not of the old block: whoever names it gets its logs from a node that still has it, and they are right.
            asked.append(("eth_getLogs", [{"blockHash": new[number].hash}]))
    return [
        {"jsonrpc": "2.0", "id": place, "method": method, "params": params}
        for place, (method, params) in enumerate(asked)
    ]


class Reader(threading.Thread):
    """Reads the same things again and again, and remembers what it was told since a given moment."""

    def __init__(self, gateway: Gateway, calls: list[Call]) -> None:
        super().__init__(daemon=True)
        self._client = httpx.Client(headers=gateway.headers, timeout=30, trust_env=False)
        self._url = gateway.url
        self._calls = calls
        self._ended = threading.Event()
        self.told: list[tuple[float, Any]] = []
        self.rounds = 0

    def run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            began = time.monotonic()
            self.told.append((began, self._client.post(self._url, json=self._calls).json()))
            self.rounds += 1

    def finish(self) -> None:
        self._ended.set()
        self.join(30)
        self._client.close()


class Setting:
    """Two nodes behind one service, both at the same chain between the steps."""

    def __init__(self, gateway: Gateway, nodes: list[ScriptedNode]) -> None:
        self.gateway = gateway
        self.nodes = nodes
        self._branches = 0

    @property
    def chain(self) -> Chain:
        return self.nodes[0].chain

    def reorganisations(self) -> float:
        return self.gateway.metric("capstan_head_reorg_depth_count") or 0.0

    def wait_for(self, chain: Chain, reorganisations: float = 0.0) -> None:
        """Wait until the service announces this head, and has seen so many reorganisations."""

        def announced() -> bool:
            text = self.gateway.metrics()
            seen = self.gateway.metric("capstan_head_reorg_depth_count", text=text) or 0.0
            return (
                seen >= reorganisations and self.gateway.metric("capstan_head_number", text=text) == chain.head.number
            )

        wait_until(announced, seconds=ANNOUNCED_SECONDS)
        assert self.gateway.node.ask("eth_blockNumber") == hex(chain.head.number)

    def reorganise(self, depth: int, extra: int, late: bool) -> None:
        """Replace `depth` blocks by so many and `extra`; the second node follows at once, or only at the end."""
        self._branches += 1
        old = self.chain
        # As long as another node stands on the old branch, the new one must be clearly ahead to be believed.
        new = old.fork(depth, depth + (max(extra, 2) if late else extra), self._branches)
        calls = calls_about(old, new)
        # Whatever can be kept is kept.
        for _ in range(2):
            self.check(calls, self.nodes[0])
        seen = self.reorganisations()
        readers = [Reader(self.gateway, calls) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        try:
            wait_until(lambda: all(reader.rounds for reader in readers), seconds=20)
            for node in self.nodes[: 1 if late else 2]:
                node.chain = new
            self.wait_for(new, seen + 1)
            announced = time.monotonic()
            for _ in range(2):
                self.check(calls, self.nodes[0])
            rounds = [reader.rounds for reader in readers]
            wait_until(
                lambda: all(reader.rounds > before for reader, before in zip(readers, rounds, strict=True)), seconds=20
            )
        finally:
            for reader in readers:
                reader.finish()
        expected = [self.nodes[0].reply(call) for call in calls]
        for reader in readers:
            for began, told in reader.told:
                if began > announced:
                    self.compare(calls, told, expected)
        self.nodes[1].chain = new
        self.check(calls, self.nodes[0])

    def check(self, calls: list[Call], node: ScriptedNode) -> None:
        told = self.gateway.node.reply(calls)
        self.compare(calls, told, [node.reply(call) for call in calls])

    def compare(self, calls: list[Call], told: list[Any], expected: list[Any]) -> None:
        by_id = {answer["id"]: answer for answer in told}
        wrong = [
            f"{call['method']} {json.dumps(call['params'])}: {json.dumps(by_id[call['id']])[:200]}"
            for call, right in zip(calls, expected, strict=True)
            if by_id[call["id"]] != right
        ]
        assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with scripted_nodes(Chain.of(FIRST_BLOCKS), 2) as nodes:
        upstreams = [{"name": f"node-{place}", "url": node.url} for place, node in enumerate(nodes)]
        # The shorter the time between blocks, the sooner the service looks for the next one.
        with serving(tmp_path_factory.mktemp("reorgs"), upstreams, block_time_ms=400) as gateway:
            setting = Setting(gateway, nodes)
            setting.wait_for(nodes[0].chain)
            yield setting


def steps(late: bool) -> st.SearchStrategy[list[tuple[int, int, bool]]]:
    """Some reorganisations in a row: depth, by how much the new branch is longer, whether the second node is late."""
    return st.lists(st.tuples(st.integers(1, 32), st.integers(0, 3), st.just(late)), min_size=1, max_size=3)


_CHECK = settings(max_examples=2, deadline=None, derandomize=True, database=None)


def run(setting: Setting, script: list[tuple[int, int, bool]]) -> None:
    for depth, extra, late in script:
        setting.reorganise(depth, extra, late)


@_CHECK
@given(script=steps(late=False))
@example(script=[(depth, 1, False) for depth in range(1, 33)])
def test_after_a_reorganisation_no_read_is_stale(setting: Setting, script: list[tuple[int, int, bool]]) -> None:
    run(setting, script)


@_CHECK
@given(script=steps(late=True))
@example(script=[(depth, 2, True) for depth in range(1, 33, 4)])
def test_no_read_is_stale_while_another_node_is_on_the_old_branch(
    setting: Setting, script: list[tuple[int, int, bool]]
) -> None:
    run(setting, script)


def test_who_was_told_of_a_new_head_is_not_told_of_the_blocks_it_replaced(tmp_path: Path) -> None:
    """The service looks for heads rarely here, so that a client sees the new head in an answer before it does."""
    old = Chain.of(FIRST_BLOCKS)
    new = old.fork(5, 6, branch=1)
    with (
        scripted_nodes(old, 1) as (node,),
        serving(tmp_path, [node.url], block_time_ms=12_000) as gateway,
    ):
        wait_until(lambda: gateway.metric("capstan_head_number") == old.head.number, seconds=20)
        calls = calls_about(old, new)
        for _ in range(2):
            assert gateway.node.reply(calls) == [node.reply(call) for call in calls]
        node.chain = new
        # With whole transactions nobody has asked for it yet.
        assert gateway.node.ask("eth_getBlockByNumber", "latest", True)["hash"] == new.head.hash
        assert gateway.node.reply(calls) == [node.reply(call) for call in calls]


class RealChain:
    """A real node, whose blocks are taken back with snapshots."""

    def __init__(self, devnet: EvmDevnet) -> None:
        self.node = Node(devnet.url)
        self.token = devnet.deployment.tokens[0].address
        self.sender = devnet.deployment.accounts[0].address
        self._amounts = iter(range(1, 1_000_000))

    def mine(self, blocks: int) -> list[str]:
        """Mine blocks that pay and mint an amount of their own each. Returns the transactions."""
        found = []
        for _ in range(blocks):
            amount = next(self._amounts)
            mint = "0x40c10f19" + RICH[2:].rjust(64, "0") + f"{amount:064x}"
            common = {"from": self.sender, "gas": hex(200_000)}
            found.append(self.node.ask("eth_sendTransaction", {**common, "to": RICH, "value": hex(amount)}))
            found.append(self.node.ask("eth_sendTransaction", {**common, "to": self.token, "data": mint}))
            self.node.ask("evm_mine")
        return found

    def head(self) -> Any:
        return self.node.ask("eth_getBlockByNumber", "latest", False)

    def calls(self, first: int, last: int, hashes: list[str], transactions: list[str]) -> list[Call]:
        """Reads of the head, of these blocks, and of these transactions."""
        supply = {"to": self.token, "data": "0x18160ddd"}
        asked: list[tuple[str, list[Any]]] = [
            ("eth_getBlockByNumber", ["latest", True]),
            ("eth_getBalance", [RICH, "latest"]),
            ("eth_call", [supply, "latest"]),
            ("eth_getTransactionCount", [self.sender, "latest"]),
            ("eth_getLogs", [{"fromBlock": hex(first), "toBlock": "latest", "address": self.token}]),
            *(("eth_getBlockByNumber", [hex(number), False]) for number in range(first, last + 1, 5)),
            *(("eth_getBalance", [RICH, hex(number)]) for number in range(first, last + 1, 5)),
            *(("eth_call", [supply, hex(number)]) for number in range(first, last + 1, 5)),
            *(("eth_getBlockByHash", [block_hash, False]) for block_hash in hashes),
            *(("eth_getTransactionReceipt", [each]) for each in transactions),
            *(("eth_getTransactionByHash", [each]) for each in transactions),
        ]
        return [
            {"jsonrpc": "2.0", "id": place, "method": method, "params": params}
            for place, (method, params) in enumerate(asked)
        ]


async def without_finality(exchange: Exchange) -> None:
    """The real node, but it does not know the tags: of its newest block it says that it is final."""
    call = exchange.call
    if call["method"] == "eth_getBlockByNumber" and call["params"][0] in ("finalized", "safe"):
        error = {"code": -32602, "message": "unknown block tag"}
        await exchange.send(json.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error}).encode())
        return
    await exchange.send(await exchange.honest())


def test_reorganisations_of_a_real_node_leave_no_stale_read(quiet_devnet: EvmDevnet, tmp_path: Path) -> None:
    chain = RealChain(quiet_devnet)
    with (
        raw_nodes(quiet_devnet.url, {"node": without_finality}) as nodes,
        serving(tmp_path, [nodes["node"].url]) as gateway,
    ):

        def announced() -> bool:
            return gateway.metric("capstan_head_number") == int(chain.head()["number"], 16)

        for place, depth in enumerate((1, 5, 16, 32)):
            first = int(chain.head()["number"], 16)
            snapshot = chain.node.ask("evm_snapshot")
            old = chain.mine(depth)
            hashes = [chain.head()["hash"]]
            calls = chain.calls(first, first + depth + 1, hashes, [old[0], old[-1]])
            wait_until(announced, seconds=ANNOUNCED_SECONDS)
            for _ in range(2):
                assert gateway.node.reply(calls) == chain.node.reply(calls)
            assert chain.node.ask("evm_revert", snapshot)
            # Blocks of the same second would otherwise have the same hash again.
            chain.node.ask("hardhat_setCoinbase", f"0x{place + 1:040x}")
            new = chain.mine(depth + 1)
            wait_until(announced, seconds=ANNOUNCED_SECONDS)
            calls += chain.calls(first, first + depth + 1, [chain.head()["hash"]], [new[0], new[-1]])
            calls = [{**call, "id": number} for number, call in enumerate(calls)]
            for _ in range(2):
                assert gateway.node.reply(calls) == chain.node.reply(calls)
