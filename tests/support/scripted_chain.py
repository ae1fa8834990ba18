"""A chain that a test writes block by block, and nodes over HTTP that have it: for reorganisations at a chosen moment.

Every block holds one transaction, which pays the account `RICH` an amount that no other block of any branch pays, and
one log. Balances, receipts and logs thus tell which branch they are from. A node's chain is replaced in one step, which
no real node can be made to do; reorganisations of a real node are tested as well.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from tests.support.devnet import LoopThread
from tests.support.raw_node import Exchange, RawNode

RICH = "0x" + "11" * 20
TOKEN = "0x" + "22" * 20
TOPIC = "0x" + "33" * 32
CHAIN_ID = 31337
_GENESIS_TIME = 1_700_000_000


REVERTS = "0xdeadbeef"
"""A call with this data reverts."""


class Unknown(Exception):
    """The node has no such block."""


class Reverted(Exception):
    """The call was made and failed."""


class Block(msgspec.Struct, frozen=True):
    """One block. `branch` makes it another one than the block of the same number elsewhere."""

    number: int
    branch: int
    parent_hash: str

    @property
    def hash(self) -> str:
        return _digest("block", self.branch, self.number)

    @property
    def transaction_hash(self) -> str:
        return _digest("transaction", self.branch, self.number)

    @property
    def amount(self) -> int:
        return self.branch * 1_000 + self.number + 1

    def header(self) -> dict[str, Any]:
        return {
            "number": hex(self.number),
            "hash": self.hash,
            "parentHash": self.parent_hash,
            "timestamp": hex(_GENESIS_TIME + self.number),
            "gasUsed": "0x5208",
            "gasLimit": "0x1c9c380",
            "baseFeePerGas": "0x1",
            # Every log may be in it.
            "logsBloom": "0x" + "ff" * 256,
            "transactions": [self.transaction_hash],
        }

    def log(self) -> dict[str, Any]:
        return {
            "address": TOKEN,
            "topics": [TOPIC],
            "data": f"0x{self.amount:064x}",
            "blockNumber": hex(self.number),
            "blockHash": self.hash,
            "transactionHash": self.transaction_hash,
            "transactionIndex": "0x0",
            "logIndex": "0x0",
            "removed": False,
        }

    def transaction(self) -> dict[str, Any]:
        return {
            "hash": self.transaction_hash,
            "blockHash": self.hash,
            "blockNumber": hex(self.number),
            "transactionIndex": "0x0",
            "value": hex(self.amount),
        }

    def receipt(self) -> dict[str, Any]:
        return {
            "transactionHash": self.transaction_hash,
            "blockHash": self.hash,
            "blockNumber": hex(self.number),
            "transactionIndex": "0x0",
            "status": "0x1",
            "logs": [self.log()],
        }


def _digest(*parts: object) -> str:
    return "0x" + sha256(repr(parts).encode()).hexdigest()


class Chain(tuple[Block, ...]):
    """Linked blocks from the first on. Chains do not change; `extend` and `fork` make new ones."""

    @classmethod
    def of(cls, length: int) -> "Chain":
        return cls().extend(length, branch=0)

    @property
    def head(self) -> Block:
        return self[-1]

    def extend(self, length: int, branch: int) -> "Chain":
        blocks = list(self)
        for _ in range(length):
            parent = blocks[-1].hash if blocks else "0x" + "00" * 32
            blocks.append(Block(len(blocks), branch, parent))
        return Chain(blocks)

    def fork(self, depth: int, length: int, branch: int) -> "Chain":
        """Without its last `depth` blocks, and with `length` others."""
        return Chain(self[:-depth]).extend(length, branch)

    def balance(self, number: int) -> int:
        return sum(block.amount for block in self[: number + 1])


class ScriptedNode:
    """A node that has a chain; assign another to `chain` and it has that."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.server = RawNode(self._serve, "")

    @property
    def url(self) -> str:
        return self.server.url

    async def _serve(self, exchange: Exchange) -> None:
        call = exchange.call
        answer = [self.reply(one) for one in call] if isinstance(call, list) else self.reply(call)
        await exchange.send(json.dumps(answer).encode())

    def reply(self, call: dict[str, Any]) -> dict[str, Any]:
        """The reply to a call."""
        try:
            member: dict[str, Any] = {"result": self._answer(call["method"], call.get("params", []))}
        except Unknown as error:
            member = {"error": {"code": -32000, "message": str(error)}}
        except Reverted:
            member = {"error": {"code": 3, "message": "execution reverted", "data": "0x"}}
        except KeyError:
            member = {"error": {"code": -32601, "message": "the method does not exist"}}
        return {"jsonrpc": "2.0", "id": call["id"], **member}

    def _answer(self, method: str, params: Sequence[Any]) -> Any:
        chain = self.chain
        if method == "eth_chainId":
            return hex(CHAIN_ID)
        if method == "eth_blockNumber":
            return hex(chain.head.number)
        if method == "eth_call" and params[0].get("data") == REVERTS:
            raise Reverted
        if method in ("eth_getBalance", "eth_call"):
            amount = chain.balance(self._number(params[1]))
            return hex(amount) if method == "eth_getBalance" else f"0x{amount:064x}"
        if method == "eth_getLogs":
            return [block.log() for block in self._blocks(params[0])]
        render: dict[str, Callable[[Block], Any]] = {
            "eth_getBlockByNumber": Block.header,
            "eth_getBlockByHash": Block.header,
            "eth_getTransactionByHash": Block.transaction,
            "eth_getTransactionReceipt": Block.receipt,
            "eth_getBlockReceipts": lambda found: [found.receipt()],
        }
        told = render[method]
        block = self._find(method, params[0])
        return None if block is None else told(block)

    def _find(self, method: str, which: str) -> Block | None:
        if method == "eth_getBlockByNumber" or (method == "eth_getBlockReceipts" and len(which) < 66):
            try:
                return self.chain[self._number(which)]
            except Unknown:
                if which in ("finalized", "safe"):
                    raise
                return None
        by_hash = "transaction_hash" if method.startswith("eth_getTransaction") else "hash"
        return next((block for block in self.chain if getattr(block, by_hash) == which), None)

    def _blocks(self, asked: dict[str, Any]) -> list[Block]:
        if "blockHash" in asked:
            found = next((block for block in self.chain if block.hash == asked["blockHash"]), None)
            if found is None:
                raise Unknown("unknown block")
            return [found]
        first = self._number(asked.get("fromBlock", "latest"), known=False)
        last = self._number(asked.get("toBlock", "latest"), known=False)
        return list(self.chain[first : last + 1])

    def _number(self, which: Any, *, known: bool = True) -> int:
        if which == "latest":
            return self.chain.head.number
        if not isinstance(which, str) or not which.startswith("0x"):
            raise Unknown(f"unknown block tag {which}")
        number = int(which, 16)
        if known and number > self.chain.head.number:
            raise Unknown("header not found")
        return number


@contextlib.contextmanager
def scripted_nodes(chain: Chain, count: int) -> Iterator[list[ScriptedNode]]:
    """So many nodes that begin with this chain."""
    with LoopThread() as thread:
        nodes = [ScriptedNode(chain) for _ in range(count)]
        for node in nodes:
            thread.run(node.server.start())
        try:
            yield nodes
        finally:
            thread.run(_stop(nodes))


async def _stop(nodes: list[ScriptedNode]) -> None:
    await asyncio.gather(*(node.server.stop() for node in nodes))
