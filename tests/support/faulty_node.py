"""A node that misbehaves on purpose, over real HTTP on loopback.

For the faults that a real node cannot be made to show: HTML, truncated or oversized bodies, wrong ids, stalls, resets,
and error texts of other implementations. A test gives a function that answers each call; everything normal is tested
against a real node.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.test_utils import TestServer

from capstan.chain.models import NetworkSpec, UpstreamSpec

Answer: TypeAlias = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

STALL_SECONDS = 30.0


class FaultyNode:
    """Answers calls as the test says and remembers them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []
        self._called = asyncio.Condition()
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{tail:.*}", self._handle)
        self._server = TestServer(application)

    @property
    def url(self) -> str:
        return str(self._server.make_url("/"))

    @property
    def methods(self) -> list[str]:
        return [call["method"] for call in self.calls]

    def spec(self, name: str = "faulty", **changes: Any) -> UpstreamSpec:
        return UpstreamSpec(name=name, url=self.url, **changes)

    async def wait_for_calls(self, count: int) -> None:
        """Wait until so many calls have arrived."""
        async with asyncio.timeout(10), self._called:
            await self._called.wait_for(lambda: len(self.calls) >= count)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = json.loads(await request.read())
        async with self._called:
            self.calls.append(call)
            self._called.notify_all()
        return await self.answer(request, call)

    async def __aenter__(self) -> "FaultyNode":
        await self._server.start_server(host="127.0.0.1")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()


def network_spec(*upstreams: UpstreamSpec, **changes: Any) -> NetworkSpec:
    """An EVM network with these upstreams."""
    defaults: dict[str, Any] = {"chain": "ethereum", "network": "devnet", "family": "evm", "block_time_ms": 1000}
    return NetworkSpec(**{**defaults, **changes}, upstreams=upstreams)


def results(result: Any) -> Answer:
    """Answers every call with this result."""

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})

    return answer


def by_method(table: dict[str, Any]) -> Answer:
    """Answers by method: with a result, or with an `{"error": …}` member."""

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        found = table.get(call["method"], {"error": {"code": -32601, "message": "the method does not exist"}})
        member = found if isinstance(found, dict) and "error" in found else {"result": found}
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], **member})

    return answer


def errors(code: int, message: str, data: Any = None, *, status: int = 200) -> Answer:
    """Answers every call with this error object."""

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "error": error}, status=status)

    return answer


def text(body: str | bytes, *, status: int = 200, content_type: str = "application/json") -> Answer:
    """Answers every call with this body, whatever it is."""

    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        data = body.encode() if isinstance(body, str) else body
        return web.Response(body=data, status=status, content_type=content_type)

    return answer


async def stalls(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    """Takes the call and says nothing."""
    await asyncio.sleep(STALL_SECONDS)
    return web.Response()


async def stalls_in_the_body(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Begins an answer and never ends it."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc":"2.0","id":1,"result":"0x')
    await asyncio.sleep(STALL_SECONDS)
    return response


async def resets(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Takes the call and cuts the connection."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def breaks_off(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Announces more than it sends, then cuts the connection."""
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc":"2.0","id":1,"result":"0x12"}')
    assert request.transport is not None
    request.transport.close()
    return response
