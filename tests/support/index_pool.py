"""A scripted upstream for the history of the index: it answers from given blocks and refuses like providers do."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.follower.models import Block
from capstan.chain.pool import UpstreamPool
from capstan.core.jsonrpc import ErrorObject


class ScriptedPool:
    """The pool of a network whose chain is a list of blocks."""

    def __init__(self, chain: Sequence[Block]) -> None:
        self.chain = list(chain)
        # Blocks that are on no chain any more, but still known by their hash.
        self.stale: list[Block] = []
        self.calls: list[tuple[str, Any]] = []
        self.most_blocks: int | None = None
        self.most_logs: int | None = None
        # How refusals are worded; `{blocks}` is the most blocks.
        self.wording = "block range is too wide"
        self.failures = 0
        self.before: Callable[[str, Any], Awaitable[None]] | None = None
        self.gate: asyncio.Event | None = None
        self.spoil: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda logs: logs

    @property
    def pool(self) -> UpstreamPool:
        return cast(UpstreamPool, self)

    async def call(self, method: str, params: bytes, **_options: Any) -> Raw:
        (*arguments,) = msgspec.json.decode(params)
        self.calls.append((method, arguments[0]))
        if self.before is not None:
            await self.before(method, arguments[0])
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise EveryUpstreamFailed("every upstream failed")
        if method == "eth_getBlockByHash":
            return Raw(msgspec.json.encode(self._header(arguments[0])))
        assert method == "eth_getLogs"
        return Raw(msgspec.json.encode(self.spoil(self._logs(arguments[0]))))

    def _header(self, block_hash: str) -> dict[str, Any] | None:
        for block in (*self.chain, *self.stale):
            if block.hash == block_hash:
                return {
                    "number": hex(block.number),
                    "hash": block.hash,
                    "parentHash": block.parent_hash,
                    "timestamp": hex(block.timestamp),
                }
        return None

    def _logs(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        if "blockHash" in query:
            blocks = [block for block in (*self.chain, *self.stale) if block.hash == query["blockHash"]]
            if not blocks:
                raise _node_error("unknown block")
        else:
            first, last = int(query["fromBlock"], 16), int(query["toBlock"], 16)
            if self.most_blocks is not None and last - first + 1 > self.most_blocks:
                raise _node_error(self.wording.format(blocks=self.most_blocks))
            blocks = [block for block in self.chain if first <= block.number <= last]
        found = [
            msgspec.json.decode(log.raw) for block in blocks for log in block.logs or () if _matches(log.topics, query)
        ]
        addresses = query.get("address")
        if addresses is not None:
            wanted = [addresses] if isinstance(addresses, str) else addresses
            found = [log for log in found if log["address"] in wanted]
        if self.most_logs is not None and len(found) > self.most_logs:
            raise _node_error(f"query returned more than {self.most_logs} results")
        return found


def _matches(topics: Sequence[str], query: dict[str, Any]) -> bool:
    for place, wanted in enumerate(query.get("topics", [])):
        if wanted is None:
            continue
        options = [wanted] if isinstance(wanted, str) else wanted
        if place >= len(topics) or topics[place] not in options:
            return False
    return True


def _node_error(message: str) -> NodeError:
    error = ErrorObject(-32000, message)
    return NodeError(error, Raw(msgspec.json.encode({"code": error.code, "message": message})))
