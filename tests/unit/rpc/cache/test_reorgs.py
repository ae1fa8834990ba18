"""Whatever happens to the chain, nobody is given an answer from a branch that was left before they asked.

A node switches branches, the tracker follows later and may skip states, and answers arrive late and out of order. Every
read must be right for some state of the node between the tracker's state when it was asked and the end of the read.
"""

import asyncio
import json
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from capstan.core.clock import ManualClock
from capstan.core.hexes import to_quantity
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.cache.models import NetworkOptions
from capstan.rpc.logs import LogReader, LogSettings
from tests.unit.rpc.cache.chain import Chain, Heads, digest, params, raw

NETWORK = "ethereum/test"
TRANSACTIONS = [digest("transaction", number) for number in range(12)]
CONTRACT = "0x" + "ab" * 20


def places(chain: Chain) -> dict[str, int]:
    """In which block each transaction is: another one on every branch, and in some states none."""
    found: dict[str, int] = {}
    for number, block_hash in enumerate(chain.hashes):
        for transaction in contents(block_hash):
            found.setdefault(transaction, number)
    return found


@lru_cache(100_000)
def contents(block_hash: str) -> list[str]:
    return [transaction for transaction in TRANSACTIONS if int(digest(block_hash, transaction), 16) % 23 == 0]


def answer(chain: Chain, method: str, arguments: list[Any]) -> Any:
    """What a node in this state says."""
    if method == "eth_blockNumber":
        return to_quantity(len(chain.hashes) - 1)
    if method in ("eth_getTransactionReceipt", "eth_getTransactionByHash"):
        number = places(chain).get(arguments[0])
        if number is None:
            return None
        return {"hash": arguments[0], "blockNumber": to_quantity(number), "blockHash": chain.hashes[number]}
    if method == "eth_getLogs":
        first, last = (resolve(chain, arguments[0][side]) for side in ("fromBlock", "toBlock"))
        assert first is not None
        assert last is not None
        blocks = range(first, min(last, len(chain.hashes) - 1) + 1)
        return [{"blockNumber": to_quantity(number), "data": chain.hashes[number]} for number in blocks]
    number = resolve(chain, arguments[-1] if method == "eth_getBalance" else arguments[0])
    if number is None or number >= len(chain.hashes):
        return None
    if method == "eth_getBalance":
        return digest("balance", chain.hashes[number])
    return {"number": to_quantity(number), "hash": chain.hashes[number]}


def resolve(chain: Chain, block: Any) -> int | None:
    if isinstance(block, dict):
        block = block["blockHash"]
    if block == "latest":
        return len(chain.hashes) - 1
    if block == "finalized":
        return chain.finalized_number
    if len(block) == 66:
        return chain.hashes.index(block) if block in chain.hashes else None
    return int(block, 16)


class Scenario:
    """One run, driven by a random generator."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.cache = RpcCache(ManualClock())
        self.cache.configure(NETWORK, NetworkOptions(head_seconds=1e9, moment_seconds=1e9))
        settings = LogSettings(chunk_blocks=4, span_blocks=9)
        self.logs = LogReader(self.cache, ManualClock(), settings)
        # Every state of the node; the tracker is at one of them.
        self.states = [Chain((), 0).extended(40, seed="first", finalized=3)]
        self.seen = 0
        self.heads = Heads(self.states[0])
        self.held: list[Callable[[], None]] = []
        self.reads: list[asyncio.Task[None]] = []
        self.questions: list[tuple[str, list[Any]]] = []

    @property
    def node(self) -> Chain:
        return self.states[-1]

    def switch(self) -> None:
        """The node changes branch, or goes on."""
        final = self.node.finalized_number or 0
        deepest = min(32, len(self.node.hashes) - 1 - final)
        drop = self.chance.choice([0, 0, self.chance.randint(0, deepest)])
        length = self.chance.randint(1, 4) if drop == 0 else self.chance.randint(max(1, drop - 2), drop + 3)
        chain = self.node.extended(length, drop=drop, seed=len(self.states))
        furthest = max(final, len(chain.hashes) - 34)
        finalized = self.chance.randint(final, furthest) if self.chance.random() < 0.3 else final
        self.states.append(Chain(chain.hashes, finalized))

    def follow(self) -> None:
        """The tracker hears of it, perhaps not of the latest state."""
        self.seen = self.chance.randint(self.seen, len(self.states) - 1)
        self.cache.apply(NETWORK, self.heads.move(self.states[self.seen]))

    def question(self) -> tuple[str, list[Any]]:
        """One of a few that are asked again and again."""
        if len(self.questions) < 5 or self.chance.random() < 0.1:
            self.questions = [*self.questions[-4:], self.new_question()]
        return self.chance.choice(self.questions)

    def new_question(self) -> tuple[str, list[Any]]:
        chance = self.chance
        states = self.states[-3:]
        number = to_quantity(len(self.node.hashes) - chance.randint(0, 6))
        some_hash = chance.choice(chance.choice(states).hashes[-6:])
        block = chance.choice([number, number, "latest", "finalized", {"blockHash": some_hash}])
        first = chance.randint(0, len(self.node.hashes) - 1)
        last = chance.choice([to_quantity(first + chance.randint(0, 30)), "latest"])
        questions: list[tuple[str, list[Any]]] = [
            ("eth_blockNumber", []),
            ("eth_getBlockByNumber", [chance.choice([number, "latest", "finalized"]), False]),
            ("eth_getBlockByHash", [some_hash, False]),
            ("eth_getBalance", [CONTRACT, block]),
            ("eth_getTransactionReceipt", [chance.choice(TRANSACTIONS)]),
            ("eth_getTransactionByHash", [chance.choice(TRANSACTIONS)]),
            ("eth_getLogs", [{"fromBlock": to_quantity(first), "toBlock": last, "address": CONTRACT}]),
        ]
        return chance.choice(questions)

    async def ask_node(self, method: str, text: bytes) -> Raw:
        """The node looks at its chain now, or when the answer leaves, and the answer takes its time."""
        arguments = json.loads(text)
        asked = self.node
        delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.chance.random() < 0.7:
            self.held.append(lambda: None if delivered.done() else delivered.set_result(None))
            await delivered
        chain = asked if self.chance.random() < 0.5 else self.node
        return raw(answer(chain, method, arguments))

    async def read(self, method: str, arguments: list[Any]) -> None:
        since = self.seen
        text = params(*arguments)
        found = self.cache.lookup_now(NETWORK, "evm", method, text, self.heads)
        if isinstance(found, bytes):
            result: bytes | Raw = found
        else:

            async def call() -> Raw:
                if method != "eth_getLogs":
                    return await self.ask_node(method, text)
                logs = await self.logs.get_logs(NETWORK, text, self.heads, lambda part: self.ask_node(method, part))
                return logs.result

            result, _ = await self.cache.fetch(found, call, 30.0)
        states = self.states[since:]
        if method == "eth_getLogs":
            check_logs(bytes(result), states, arguments)
            return
        possible = [bytes(raw(answer(chain, method, arguments))) for chain in states]
        assert bytes(result) in possible, f"{method} {arguments}: stale"

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.chance.random()
            if step < 0.12:
                self.switch()
            elif step < 0.24:
                self.follow()
            elif step < 0.4 and self.held:
                self.held.pop(self.chance.randrange(len(self.held)))()
            else:
                self.reads.append(asyncio.create_task(self.read(*self.question())))
            for _ in range(self.chance.randint(0, 6)):
                await asyncio.sleep(0)
        while not all(read.done() for read in self.reads):
            for release in self.held:
                release()
            self.held.clear()
            await asyncio.sleep(0)
        await asyncio.gather(*self.reads)
        await self.cache.close()


def check_logs(result: bytes, states: list[Chain], arguments: list[Any]) -> None:
    """A range may be read in parts at several moments; each log must be right for one of them, and none may miss."""
    logs = json.loads(result)
    allowed = {(log["blockNumber"], log["data"]) for chain in states for log in answer(chain, "eth_getLogs", arguments)}
    assert {(log["blockNumber"], log["data"]) for log in logs} <= allowed, "stale logs"
    numbers = [int(log["blockNumber"], 16) for log in logs]
    assert numbers == sorted(numbers)
    least = min(len(answer(chain, "eth_getLogs", arguments)) for chain in states)
    assert len(numbers) >= least


@settings(derandomize=True, deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_no_answer_from_a_branch_that_was_left_before_the_question(seed: int) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            await Scenario(random.Random(seed)).run(150)

    asyncio.run(run())


@pytest.mark.parametrize("depth", range(1, 33))
async def test_after_a_reorg_of_any_depth_every_answer_is_of_the_new_branch(depth: int) -> None:
    cache = RpcCache(ManualClock())
    old = Chain((), 0).extended(50, seed="old", finalized=5)
    new = old.extended(depth + 1, drop=depth, seed="new")
    heads = Heads(old)
    cache.apply(NETWORK, Heads(Chain(())).move(old))
    questions: list[tuple[str, list[Any]]] = [("eth_blockNumber", []), ("eth_getBalance", [CONTRACT, "latest"])]
    for number in range(len(old.hashes) - 40, len(old.hashes)):
        block = to_quantity(number)
        questions += [("eth_getBlockByNumber", [block, True]), ("eth_getBalance", [CONTRACT, block])]
        questions += [("eth_getLogs", [{"fromBlock": block, "toBlock": block}])]
    questions += [("eth_getTransactionReceipt", [transaction]) for transaction in TRANSACTIONS]
    chain = old

    async def ask(method: str, arguments: list[Any]) -> tuple[bytes, bool]:
        found = cache.lookup_now(NETWORK, "evm", method, params(*arguments), heads)
        if isinstance(found, bytes):
            return found, True

        async def call() -> Raw:
            return raw(answer(chain, method, arguments))

        return bytes((await cache.fetch(found, call, 5.0))[0]), False

    for question in questions:
        await ask(*question)
    hits = [(await ask(*question))[1] for question in questions]
    assert all(hits)
    chain = new
    cache.apply(NETWORK, heads.move(new))
    survived = 0
    for question in questions:
        result, hit = await ask(*question)
        assert result == bytes(raw(answer(new, *question))), question
        survived += hit
    # Blocks below the fork were not touched: their entries must have stayed.
    assert survived >= 40 - depth
    assert cache.memory.statistics.dropped >= depth
