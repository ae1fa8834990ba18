"""Nodes in memory for the tests of head tracking: each has a chain of its own and answers as it is told to.

They stand where a pool's member stands. A real node cannot be made to lie, to lag or to stall at a chosen moment.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Raw

from capstan.chain.errors import ChainError, NodeError, UpstreamUnreachable
from capstan.chain.heads.headers import ChainChange, Header
from capstan.chain.heads.metrics import HeadMetrics
from capstan.chain.heads.source import HeadOptions
from capstan.chain.heads.tracker import HeadTracker
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.core.clock import ManualClock
from capstan.core.jsonrpc import ErrorObject


def chain_of(start: int, length: int, *, branch: int = 0, on: Header | None = None) -> list[Header]:
    """Linked headers; the first is a child of `on`. Branches have different hashes."""
    headers: list[Header] = []
    for number in range(start, start + length):
        below = headers[-1] if headers else on
        parent = below.hash if below is not None else _hash(max(number - 1, 0), 0)
        headers.append(Header(number, _hash(number, branch), parent, 1_700_000_000 + number))
    return headers


def _hash(number: int, branch: int) -> str:
    return f"0x{branch:032x}{number:032x}"


class HeadNode:
    """A node with a chain. `fault` is raised instead of an answer; `stalled` keeps all answers back."""

    def __init__(self, name: str, blocks: list[Header] | None = None) -> None:
        self.name = name
        self.blocks = list(blocks or [])
        self.fault: ChainError | None = None
        self.serves_blocks = True
        self.finalized: Header | None = None
        self.safe: Header | None = None
        self.knows_tags = True
        self.slots = {"processed": 0, "confirmed": 0, "finalized": 0}
        self.calls: list[tuple[str, Any]] = []
        self.noted: list[int] = []
        self._flowing = asyncio.Event()
        self._flowing.set()

    @property
    def upstream(self) -> HeadNode:
        return self

    def note_head(self, number: int) -> None:
        self.noted.append(number)

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def fail(self) -> None:
        self.fault = UpstreamUnreachable(self.name, "cannot connect")

    def reorganise(self, at: int, blocks: list[Header]) -> None:
        """Replace everything above block `at`."""
        self.blocks = [header for header in self.blocks if header.number <= at] + blocks

    def count(self, method: str) -> int:
        return sum(1 for called, _ in self.calls if called == method)

    async def poll(self, method: str, params: bytes, *, timeout: float) -> Raw:
        return await self.call(method, params, timeout=timeout)

    async def call(self, method: str, params: bytes, *, timeout: float) -> Raw:
        arguments = msgspec.json.decode(params)
        self.calls.append((method, arguments))
        # A real node answers later, so others get their turn.
        await asyncio.sleep(0)
        await self._flowing.wait()
        if self.fault is not None:
            raise self.fault
        return Raw(msgspec.json.encode(self._answer(method, arguments)))

    def _answer(self, method: str, arguments: Any) -> Any:
        if method == "getSlot":
            return self.slots[arguments[0]["commitment"]]
        if method == "getBlockHeight":
            return self.slots[arguments[0]["commitment"]] - 10
        assert arguments[1] is False
        return self._block(method, arguments[0])

    def _block(self, method: str, which: str) -> dict[str, str] | None:
        if which in ("finalized", "safe") and not self.knows_tags:
            raise NodeError(ErrorObject(-32602, "unknown block tag"), Raw(b"{}"))
        header: Header | None
        if which == "latest":
            header = self.blocks[-1] if self.blocks else None
        elif which in ("finalized", "safe"):
            header = self.finalized if which == "finalized" else self.safe
        elif not self.serves_blocks:
            header = None
        elif method == "eth_getBlockByHash":
            header = next((block for block in self.blocks if block.hash == which), None)
        else:
            header = next((block for block in self.blocks if block.number == int(which, 16)), None)
        return None if header is None else _as_json(header)


def _as_json(header: Header) -> dict[str, str]:
    return {
        "number": hex(header.number),
        "hash": header.hash,
        "parentHash": header.parent_hash,
        "timestamp": hex(header.timestamp),
        "gasUsed": "0x0",
    }


def evm_spec(*, block_time_ms: int = 1000, **changes: Any) -> NetworkSpec:
    fields: dict[str, Any] = {"chain": "ethereum", "network": "devnet", "family": "evm", **changes}
    upstreams = (UpstreamSpec(name="unused", url="http://127.0.0.1:1"),)
    return NetworkSpec(**fields, upstreams=upstreams, block_time_ms=block_time_ms)


class Tracked:
    """A tracker with its nodes, its clock and a consumer that replays the changes."""

    def __init__(
        self,
        *nodes: HeadNode,
        spec: NetworkSpec | None = None,
        options: HeadOptions | None = None,
        metrics: HeadMetrics | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.nodes = nodes
        self.tracker = HeadTracker(spec or evm_spec(), nodes, self.clock, options=options, metrics=metrics)
        self.changes: list[ChainChange] = []
        self.replayed: list[Header] = []
        self.numbers: list[int] = []
        self.tracker.subscribe(self._take)

    async def poll(self, *nodes: HeadNode, after: float = 0.1) -> int | None:
        """Let time pass, then ask these nodes, or all of them, and give the announced number."""
        self.clock.advance(after)
        async with asyncio.timeout(10):
            for node in nodes:
                await self.tracker.poll_one(node)
            if not nodes:
                await self.tracker.poll()
        return self.tracker.number

    def _take(self, change: ChainChange) -> None:
        self.changes.append(change)
        if change.restarted:
            self.replayed.clear()
        for header in change.reverted:
            if self.replayed:
                assert self.replayed.pop() == header
        for header in change.applied:
            assert header not in self.replayed
            assert not self.replayed or self.replayed[-1].hash == header.parent_hash
            self.replayed.append(header)
        assert self.tracker.latest is not None
        assert self.replayed[-1] == self.tracker.latest
        self.numbers.append(self.tracker.latest.number)
