"""Pending transactions of upstreams that must be asked."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from capstan.chain.errors import NodeError, UpstreamUnreachable
from capstan.chain.follower.models import PendingTransaction
from capstan.chain.follower.pending import PendingOptions, PendingTransactions
from capstan.chain.member import PooledUpstream
from capstan.chain.models import UpstreamSpec
from capstan.chain.pool import UpstreamPool
from capstan.core.clock import SystemClock
from capstan.core.jsonrpc import METHOD_NOT_FOUND, ErrorObject
from tests.support.stream_nodes import until

QUICK = PendingOptions(poll_seconds=0.005, look_seconds=0.01, first_pause=0.005)


class MempoolNode:
    """A node with a mempool, with filters or without."""

    def __init__(self, name: str, *, filters: bool = True) -> None:
        self.name = name
        self.spec = UpstreamSpec(name=name, url="http://127.0.0.1:1", hedge=False)
        self.mempool: list[str] = []
        self.calls: list[str] = []
        self.dead = False
        self._has_filters = filters
        self._filters: dict[str, int] = {}

    def lose_filters(self) -> None:
        self._filters.clear()

    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Raw:
        self.calls.append(method)
        if self.dead:
            raise UpstreamUnreachable(self.name, "cannot connect")
        return Raw(msgspec.json.encode(self._answer(method, msgspec.json.decode(params))))

    def _answer(self, method: str, arguments: Any) -> Any:
        if method == "eth_getBlockByNumber":
            return {"number": None, "transactions": [{"hash": name, "from": "0x1"} for name in self.mempool]}
        if method == "eth_getTransactionByHash":
            return {"hash": arguments[0]}
        if not self._has_filters:
            raise NodeError(ErrorObject(METHOD_NOT_FOUND, "no filters"), Raw(b"{}"))
        if method == "eth_newPendingTransactionFilter":
            number = hex(len(self.calls))
            self._filters[number] = len(self.mempool)
            return number
        if arguments[0] not in self._filters:
            raise NodeError(ErrorObject(-32000, "filter not found"), Raw(b"{}"))
        if method == "eth_uninstallFilter":
            del self._filters[arguments[0]]
            return True
        new, self._filters[arguments[0]] = self.mempool[self._filters[arguments[0]] :], len(self.mempool)
        return new

    def retire(self) -> None:
        return

    async def close(self) -> None:
        return


def pending_of(*nodes: MempoolNode) -> PendingTransactions:
    clock = SystemClock()
    members = [PooledUpstream(node, clock) for node in nodes]
    pool = UpstreamPool("ethereum/devnet", members, deadline_seconds=5.0, clock=clock)
    return PendingTransactions("ethereum/devnet", lambda: pool, QUICK)


async def test_a_filter_that_the_node_has_lost_is_made_again() -> None:
    node = MempoolNode("one")
    pending = pending_of(node)
    heard: list[PendingTransaction] = []
    unsubscribe = pending.subscribe(heard.append, False)
    await until(lambda: node.calls.count("eth_getFilterChanges") > 0)
    node.mempool.append("0x1")
    await until(lambda: len(heard) == 1)
    node.lose_filters()
    await until(lambda: node.calls.count("eth_newPendingTransactionFilter") == 2)
    node.mempool.append("0x2")
    await until(lambda: len(heard) == 2)
    assert [item.hash for item in heard] == ["0x1", "0x2"]
    assert "eth_getBlockByNumber" not in node.calls
    unsubscribe()
    await until(lambda: node.calls[-1] == "eth_uninstallFilter")
    await pending.close()


async def test_without_filters_the_pending_block_is_read_with_whole_transactions() -> None:
    node = MempoolNode("one", filters=False)
    pending = pending_of(node)
    heard: list[PendingTransaction] = []
    pending.subscribe(heard.append, True)
    node.mempool += ["0x1", "0x2"]
    await until(lambda: len(heard) == 2)
    assert [msgspec.json.decode(item.transaction or b"null") for item in heard] == [
        {"hash": "0x1", "from": "0x1"},
        {"hash": "0x2", "from": "0x1"},
    ]
    await pending.close()


async def test_another_upstream_is_asked_when_one_dies() -> None:
    one, two = MempoolNode("one"), MempoolNode("two")
    pending = pending_of(one, two)
    heard: list[PendingTransaction] = []
    pending.subscribe(heard.append, True)
    await until(lambda: "eth_getFilterChanges" in one.calls)
    assert not two.calls
    one.dead = True
    await until(lambda: "eth_getFilterChanges" in two.calls)
    two.mempool.append("0x1")
    await until(lambda: len(heard) == 1)
    assert heard[0].transaction is not None
    await pending.close()


async def test_nothing_is_asked_while_nobody_listens() -> None:
    node = MempoolNode("one")
    pending = pending_of(node)
    assert node.calls == []
    unsubscribe = pending.subscribe(lambda _told: None, False)
    await until(lambda: "eth_getFilterChanges" in node.calls)
    unsubscribe()
    await pending.close()
    assert node.calls[-1] == "eth_uninstallFilter"
