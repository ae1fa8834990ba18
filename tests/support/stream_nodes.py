"""Nodes in memory with whole blocks, for the tests of the canonical stream.

They stand where the client of an upstream stands, behind a real pool and a real head tracker. A real node cannot be
made to forget logs, to answer late or to change its chain at a chosen moment. Blocks carry transactions, receipts and
logs whose bloom filters are right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw
from prometheus_client import CollectorRegistry

from capstan.chain.errors import ChainError, NodeError, NodeUnable, UpstreamUnreachable
from capstan.chain.follower.follower import Follower, FollowerOptions
from capstan.chain.follower.metrics import StreamMetrics
from capstan.chain.follower.models import Applied, Block, Delta
from capstan.chain.follower.pending import PendingOptions, PendingTransactions
from capstan.chain.follower.reader import BlockReader, ReaderOptions
from capstan.chain.heads.source import HeadOptions
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.member import PooledUpstream
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.pool import UpstreamPool
from capstan.core.clock import Clock, ManualClock
from capstan.core.hexes import keccak256
from capstan.core.jsonrpc import METHOD_NOT_FOUND, ErrorObject

QUICK_READING = ReaderOptions(pause=0.001, call_timeout=5.0)
QUICK_STREAM = FollowerOptions(retry_seconds=0.005, linger_seconds=0.0)
QUICK_HEADS = HeadOptions(finality_tags=False)


class Made:
    """One block of a scripted chain."""

    def __init__(self, number: int, branch: int, parent: Made | None) -> None:
        self.number = number
        self.branch = branch
        self.parent = parent
        self.hash = _hash("block", number, branch)
        self.parent_hash = parent.hash if parent is not None else _hash("block", number - 1, 0)
        # Some blocks are empty, some have transactions without logs.
        self.transactions = [self._transaction(index) for index in range((number * 7 + branch) % 4)]
        self.logs: list[dict[str, Any]] = []
        for index, transaction in enumerate(self.transactions):
            for _ in range((number + index + branch) % 3):
                self.logs.append(self._log(transaction, index))

    @cached_property
    def bloom(self) -> int:
        bits = 0
        for log in self.logs:
            for value in (log["address"], *log["topics"]):
                digest = keccak256(bytes.fromhex(value[2:]))
                for start in (0, 2, 4):
                    bits |= 1 << (int.from_bytes(digest[start : start + 2]) % 2048)
        return bits

    def json(self, *, full: bool) -> dict[str, Any]:
        return {
            "number": hex(self.number),
            "hash": self.hash,
            "parentHash": self.parent_hash,
            "timestamp": hex(1_700_000_000 + self.number),
            "gasUsed": "0x5208",
            "gasLimit": "0x1c9c380",
            "baseFeePerGas": "0x7",
            "logsBloom": f"0x{self.bloom:0512x}",
            "size": "0x220",
            "totalDifficulty": "0x0",
            "uncles": [],
            "withdrawals": [],
            "transactions": self.transactions if full else [item["hash"] for item in self.transactions],
        }

    def receipts(self) -> list[dict[str, Any]]:
        return [self.receipt(index) for index in range(len(self.transactions))]

    def receipt(self, index: int) -> dict[str, Any]:
        own = [log for log in self.logs if log["transactionIndex"] == hex(index)]
        return {
            "blockHash": self.hash,
            "transactionHash": self.transactions[index]["hash"],
            "transactionIndex": hex(index),
            "status": "0x1",
            "logs": own,
        }

    def _transaction(self, index: int) -> dict[str, Any]:
        return {
            "hash": _hash("transaction", self.number, self.branch, index),
            "blockHash": self.hash,
            "transactionIndex": hex(index),
        }

    def _log(self, transaction: dict[str, Any], index: int) -> dict[str, Any]:
        position = len(self.logs)
        return {
            "address": "0x" + _hash("address", position)[-40:],
            "topics": [_hash("topic", position), _hash("topic", self.number)],
            "data": hex(self.number),
            "blockNumber": hex(self.number),
            "blockHash": self.hash,
            "transactionHash": transaction["hash"],
            "transactionIndex": hex(index),
            "logIndex": hex(position),
            "removed": False,
        }


def _hash(*parts: object) -> str:
    return "0x" + keccak256(repr(parts).encode()).hex()


def grow(chain: list[Made], length: int, *, branch: int = 0) -> list[Made]:
    """The chain with so many blocks more."""
    grown = list(chain)
    for _ in range(length):
        parent = grown[-1] if grown else None
        grown.append(Made(parent.number + 1 if parent else 0, branch, parent))
    return grown


class StreamNode:
    """A node with a chain of its own. Answers what it has, unless told otherwise."""

    def __init__(self, name: str, chain: list[Made]) -> None:
        self.name = name
        self.spec = UpstreamSpec(name=name, url="http://127.0.0.1:1", hedge=False)
        self.known: dict[str, Made] = {}
        self.chain: list[Made] = []
        self.fault: ChainError | None = None
        # How often a block that is new here is denied before it can be had.
        self.late = 0
        # How often the logs of a block are told as none.
        self.forgets_logs = 0
        self.lacks: set[str] = set()
        self.calls: list[tuple[str, Any]] = []
        self._denied: dict[tuple[str, str], int] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.adopt(chain)

    def adopt(self, chain: list[Made]) -> None:
        """This is its chain now; what it knew before can still be asked for by hash."""
        self.chain = chain
        for block in chain[-64:]:
            self.known[block.hash] = block
        if not self.known:
            return
        for block in chain:
            self.known.setdefault(block.hash, block)

    def forget_orphans(self) -> None:
        """Blocks that are not on its chain are gone, as on a development node after evm_revert."""
        self.known = {block.hash: block for block in self.chain}

    def fail(self) -> None:
        self.fault = UpstreamUnreachable(self.name, "cannot connect")

    def heal(self) -> None:
        self.fault = None
        self.late = self.forgets_logs = 0
        self._flowing.set()

    def stall(self) -> None:
        self._flowing.clear()

    def count(self, method: str) -> int:
        return sum(1 for called, _ in self.calls if called == method)

    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Raw:
        arguments = msgspec.json.decode(params)
        self.calls.append((method, arguments))
        # A real node answers later, so others get their turn.
        await asyncio.sleep(0)
        await self._flowing.wait()
        if self.fault is not None:
            raise self.fault
        if method in self.lacks:
            raise NodeUnable(ErrorObject(METHOD_NOT_FOUND, f"the method {method} does not exist"), Raw(b"{}"))
        return Raw(msgspec.json.encode(self._answer(method, arguments)))

    def retire(self) -> None:
        return

    async def close(self) -> None:
        return

    def _answer(self, method: str, arguments: Any) -> Any:
        if method == "eth_getBlockByNumber":
            if arguments[0] == "latest":
                return self.chain[-1].json(full=False) if self.chain else None
            number = int(arguments[0], 16)
            return self.chain[number].json(full=arguments[1]) if number < len(self.chain) else None
        if method == "eth_getBlockByHash":
            block = self._found(method, arguments[0])
            return None if block is None else block.json(full=arguments[1])
        if method == "eth_getLogs":
            return self._logs(arguments[0]["blockHash"])
        if method == "eth_getBlockReceipts":
            block = self._found(method, arguments[0])
            return None if block is None else block.receipts()
        if method == "eth_getTransactionReceipt":
            return self._receipt(arguments[0])
        raise AssertionError(f"{method} is not expected")

    def _found(self, method: str, block_hash: str) -> Made | None:
        denied = self._denied.get((method, block_hash), 0)
        if denied < self.late:
            self._denied[method, block_hash] = denied + 1
            return None
        return self.known.get(block_hash)

    def _logs(self, block_hash: str) -> Any:
        block = self._found("eth_getLogs", block_hash)
        if block is None:
            raise NodeError(ErrorObject(-32602, "blockHash cannot be found"), Raw(b"{}"))
        forgotten = self._denied.get(("logs", block_hash), 0)
        if forgotten < self.forgets_logs:
            self._denied["logs", block_hash] = forgotten + 1
            return []
        return block.logs

    def _receipt(self, transaction_hash: str) -> Any:
        for block in self.known.values():
            for index, transaction in enumerate(block.transactions):
                if transaction["hash"] == transaction_hash:
                    return block.receipt(index)
        return None


def stream_spec(**changes: Any) -> NetworkSpec:
    fields: dict[str, Any] = {"chain": "ethereum", "network": "devnet", "family": "evm", "block_time_ms": 1000}
    upstreams = (UpstreamSpec(name="unused", url="http://127.0.0.1:1"),)
    return NetworkSpec(**{**fields, **changes}, upstreams=upstreams)


class World:
    """Some nodes, a pool, a tracker that asks when it is told to, and a follower."""

    def __init__(
        self,
        *nodes: StreamNode,
        spec: NetworkSpec | None = None,
        heads: HeadOptions = QUICK_HEADS,
        options: FollowerOptions = QUICK_STREAM,
        reading: ReaderOptions = QUICK_READING,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.nodes = nodes
        self.spec = spec or stream_spec()
        self.members = [PooledUpstream(node, self.clock) for node in nodes]
        self.pool = UpstreamPool(self.spec.name, self.members, deadline_seconds=5.0, clock=self.clock)
        self.tracker = HeadTracker(self.spec, self.members, self.clock, options=heads)
        self.registry = CollectorRegistry()
        self.metrics = StreamMetrics(self.registry)
        self.reader = BlockReader(self.spec.name, lambda: self.pool, self.clock, self.metrics, reading)
        self.follower = Follower(
            self.tracker,
            self.reader,
            PendingTransactions(self.spec.name, lambda: self.pool, PendingOptions()),
            self.clock,
            self.metrics,
            options,
        )

    async def poll(self, *, times: int = 1, after: float = 1.0) -> None:
        """Let time pass and ask every node for its head."""
        for _ in range(times):
            if isinstance(self.clock, ManualClock):
                self.clock.advance(after)
            await self.tracker.poll()

    def metric(self, name: str, **labels: str) -> float | None:
        """What the metrics say of the network."""
        return self.registry.get_sample_value(name, {"network": self.spec.name, **labels})

    async def settle(self, *, seconds: float = 60.0) -> None:
        """Ask until the stream stands on the announced head."""
        await until(self._settled, seconds=seconds)

    async def _settled(self) -> bool:
        await self.poll()
        latest, position = self.tracker.latest, self.follower.position
        return latest is not None and position is not None and position.hash == latest.hash

    async def close(self) -> None:
        await self.follower.close()
        await self.tracker.stop()


async def until(condition: Callable[[], Any], *, seconds: float = 60.0, what: str = "the condition") -> None:
    """Wait for a condition, plain or to be awaited, with a deadline."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds:g} seconds in vain for {what}"
        await asyncio.sleep(0.002)


class Walker:
    """A consumer that holds every delta against the rules of the stream.

    What it finds is raised to the follower, which goes on regardless, and again when `hashes` is read.
    """

    def __init__(self, *, joins_later: bool = False) -> None:
        self.blocks: list[Block] = []
        self.deltas: list[Delta] = []
        # Reverts of what was applied before it joined are none of its business.
        self._joins_later = joins_later
        self._problem: AssertionError | None = None

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        try:
            self._take(delta)
        except AssertionError as problem:
            self._problem = self._problem or problem
            raise

    def _take(self, delta: Delta) -> None:
        block = delta.block
        if isinstance(delta, Applied):
            if self.blocks:
                assert block.parent_hash == self.blocks[-1].hash, "not the child of the tip"
                assert block.number == self.blocks[-1].number + 1
            self.blocks.append(block)
        elif self.blocks:
            assert self.blocks.pop().hash == block.hash, "not the tip"
        else:
            assert self._joins_later, "reverted what was never applied"

    @property
    def hashes(self) -> list[str]:
        if self._problem is not None:
            raise self._problem
        return [block.hash for block in self.blocks]
