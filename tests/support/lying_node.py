"""A proxy in front of a real node that alters some of its answers, over real HTTP on loopback.

For the one fault that a real node cannot be made to show: a wrong answer that looks right. A test gives a function that
changes results; what it leaves alone comes from the real node byte for byte.
"""

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

import aiohttp
from aiohttp import web

from tests.support.faulty_node import FaultyNode

# The method, its params and the true result; returns the result to give.
Lie: TypeAlias = Callable[[str, list[Any], Any], Any]


def honest(_method: str, _params: list[Any], result: Any) -> Any:
    """Alters nothing."""
    return result


class LyingNode(FaultyNode):
    """Passes calls on to the node at `url` and gives its results as `lie` changes them."""

    def __init__(self, url: str, lie: Lie = honest) -> None:
        super().__init__(self._pass_on)
        self.lie = lie
        # Whether it serves eth_getBlockReceipts, which the development chain does not have.
        self.has_block_receipts = False
        self._node = url
        self._session: aiohttp.ClientSession | None = None

    async def _pass_on(self, _: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["method"] == "eth_getBlockReceipts" and self.has_block_receipts:
            result = self.lie(call["method"], call["params"], await self.block_receipts(call["params"][0]))
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})
        text = await self._ask(call)
        reply = json.loads(text)
        if "result" in reply:
            changed = self.lie(call["method"], call.get("params", []), json.loads(text)["result"])
            if changed != reply["result"]:
                text = json.dumps({**reply, "result": changed}).encode()
        return web.Response(body=text, content_type="application/json")

    async def block_receipts(self, block: str) -> Any:
        """What eth_getBlockReceipts would say, from the receipts one by one."""
        method = "eth_getBlockByHash" if len(block) == 66 else "eth_getBlockByNumber"
        found = await self._result(method, block, False)
        return [await self._result("eth_getTransactionReceipt", name) for name in found["transactions"]]

    async def _result(self, method: str, *params: Any) -> Any:
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return json.loads(await self._ask(call))["result"]

    async def _ask(self, call: dict[str, Any]) -> bytes:
        assert self._session is not None
        async with self._session.post(self._node, json=call) as answer:
            return await answer.read()

    async def __aenter__(self) -> "LyingNode":
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if self._session is not None:
            await self._session.close()
