"""Test fixtures around the real EVM development chain.

A pytest plugin: name it in `pytest_plugins`. `evm_devnet` gives one started and deployed node per test session; tests
share it, so they use accounts of their own and never assume that nothing else happened on the chain. The node is driven
by an event loop in a thread of its own, so that synchronous and asynchronous tests can both use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

import pytest
from eth_account import Account

from capstan.devnet.deploy import deploy_all
from capstan.devnet.evm import CHAIN_ID, EvmNode
from capstan.devnet.install import NodeProject, ensure_node_project
from capstan.devnet.models import Deployment, DevAccount
from capstan.devnet.rpc import NodeRpc

Result = TypeVar("Result")

CALL_TIMEOUT_SECONDS = 30.0
START_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.05
# The time between blocks of a chain that is not to move by itself.
NEVER = 3600.0


class LoopThread:
    """An event loop in a thread. `run` blocks the caller until the coroutine is done, with a limit."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evm-devnet", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_SECONDS)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result], timeout: float = CALL_TIMEOUT_SECONDS) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    async def run_async(self, work: Coroutine[Any, Any, Result], timeout: float = CALL_TIMEOUT_SECONDS) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout)


class EvmDevnet:
    """The started and deployed development chain, with helpers for tests."""

    def __init__(self, node: EvmNode, deployment: Deployment, rpc: NodeRpc, thread: LoopThread) -> None:
        self.node = node
        self.deployment = deployment
        self.url = node.url
        self.websocket_url = node.websocket_url
        self._rpc = rpc
        self._thread = thread

    def call(self, method: str, *params: object) -> Any:
        """The result of one JSON-RPC call. Blocks."""
        return self._thread.run(self._rpc.call(method, *params))

    async def call_async(self, method: str, *params: object) -> Any:
        """The same for asynchronous tests."""
        return await self._thread.run_async(self._rpc.call(method, *params))

    def block_number(self) -> int:
        return int(self.call("eth_blockNumber"), 16)

    def mine(self, blocks: int = 1) -> int:
        """Mines at once, without waiting for the block time, and returns the new block number."""
        for _ in range(blocks):
            self.call("evm_mine")
        return self.block_number()

    async def mine_async(self, blocks: int = 1) -> int:
        for _ in range(blocks):
            await self.call_async("evm_mine")
        return int(await self.call_async("eth_blockNumber"), 16)

    def wait_for_next_block(self, timeout: float = 10.0) -> int:
        """Waits for a block that the chain mines by itself."""
        before = self.block_number()
        wait_until(lambda: self.block_number() > before, timeout, "a new block")
        return self.block_number()

    def send(
        self, account: DevAccount, to: str | None, *, data: bytes | str = b"", value: int = 0, gas: int = 5_000_000
    ) -> dict[str, Any]:
        """Signs and sends a transaction, mines it, and returns the receipt, also of a failed one."""
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": CHAIN_ID,
            "nonce": int(self.call("eth_getTransactionCount", account.address, "pending"), 16),
            "value": value,
            "data": data,
            "gas": gas,
            "maxFeePerGas": 20 * 10**9,
            "maxPriorityFeePerGas": 10**9,
        }
        if to is not None:
            transaction["to"] = to
        signed = Account.sign_transaction(transaction, account.private_key)
        return self.mine_transaction(self.call("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex()))

    def mine_transaction(self, transaction_hash: str) -> dict[str, Any]:
        """Mines until the transaction has a receipt, and returns that."""
        for _ in range(10):
            receipt: dict[str, Any] | None = self.call("eth_getTransactionReceipt", transaction_hash)
            if receipt is not None:
                return receipt
            self.call("evm_mine")
        raise AssertionError(f"{transaction_hash} was not mined in ten blocks")


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Waits for a condition, with a deadline. Blocks."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} seconds in vain for {what}")
        pause.wait(POLL_SECONDS)


@pytest.fixture(scope="session")
def node_project() -> NodeProject:
    """The installed Node packages; installs them on the first run."""
    return ensure_node_project(print)


@contextlib.contextmanager
def running_devnet(project: NodeProject, *, block_time: float = 1.0) -> Iterator[EvmDevnet]:
    """A development chain, started and deployed, for as long as the block lasts."""
    with LoopThread() as thread:
        node = EvmNode(project, block_time=block_time)
        thread.run(node.start(), START_TIMEOUT_SECONDS)
        try:
            deployment = thread.run(deploy_all(node.url, print, project=project), START_TIMEOUT_SECONDS)
            rpc = thread.run(NodeRpc(node.url).__aenter__())
            try:
                yield EvmDevnet(node, deployment, rpc, thread)
            finally:
                thread.run(rpc.__aexit__(None, None, None))
        finally:
            thread.run(node.stop())


@pytest.fixture(scope="session")
def evm_devnet(node_project: NodeProject) -> Iterator[EvmDevnet]:
    """One development chain for the whole session, started and deployed."""
    with running_devnet(node_project) as devnet:
        yield devnet


@pytest.fixture(scope="module")
def quiet_devnet(node_project: NodeProject) -> Iterator[EvmDevnet]:
    """A development chain of one test file's own, which moves only when a test moves it."""
    with running_devnet(node_project, block_time=NEVER) as devnet:
        yield devnet
