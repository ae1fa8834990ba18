"""A node that misbehaves on purpose, over real HTTP on loopback.

For the faults that a real node cannot be made to show: HTML, truncated or oversized bodies, wrong ids, stalls, resets,
and error texts of other implementations. A test gives a function that answers each call; everything normal is tested
against a real node.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from types import TracebackType
from typing import Any, TypeAlias

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.pool import UpstreamPool
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock, SystemClock

Answer: TypeAlias = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

STALL_SECONDS = 30.0


class FaultyNode:
    """Answers calls as the test says and remembers them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []
        self.open_requests = 0
        self._called = asyncio.Condition()
        self._port = 0
        self._server = self._make_server()

    def _make_server(self) -> TestServer:
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{tail:.*}", self._handle)
        return TestServer(application, port=self._port or None)

    async def stop(self) -> None:
        """Go away: nobody listens any more, and what is open is cut."""
        await self._server.close()

    async def start_again(self) -> None:
        """Come back at the same address."""
        self._server = self._make_server()
        await self._server.start_server(host="127.0.0.1")

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
        self.open_requests += 1
        try:
            return await self.answer(request, call)
        finally:
            self.open_requests -= 1

    async def __aenter__(self) -> "FaultyNode":
        await self._server.start_server(host="127.0.0.1")
        assert self._server.port
        self._port = self._server.port
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def network_spec(*upstreams: UpstreamSpec, in_order: bool = True, **changes: Any) -> NetworkSpec:
    """An EVM network with these upstreams. `in_order` puts each into a tier of its own, so that the first comes first.

    Without it they share the calls, and chance decides which one is asked.
    """
    if in_order:
        upstreams = tuple(msgspec.structs.replace(spec, tier=place) for place, spec in enumerate(upstreams))
    defaults: dict[str, Any] = {"chain": "ethereum", "network": "devnet", "family": "evm", "block_time_ms": 1000}
    return NetworkSpec(**{**defaults, **changes}, upstreams=upstreams)


class Setting:
    """Faulty nodes behind one pool. The clock is the pool's, unless that runs in real time."""

    def __init__(self, pool: UpstreamPool, nodes: list[FaultyNode], clock: ManualClock) -> None:
        self.pool = pool
        self.nodes = nodes
        self.clock = clock

    @property
    def counts(self) -> list[int]:
        return [len(node.calls) for node in self.nodes]


@asynccontextmanager
async def pool_of(
    *answers: Answer,
    timeout_seconds: float = 5.0,
    real_time: bool = False,
    in_order: bool = True,
    upstream: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Setting]:
    """Upstreams that answer so, asked in this order unless told otherwise. `upstream` changes all their specs."""
    clock = ManualClock()
    registry = ChainRegistry(open_session(), SystemClock() if real_time else clock, random=Random(7))
    nodes = [FaultyNode(answer) for answer in answers]
    try:
        for node in nodes:
            await node.__aenter__()
        common = {"timeout_seconds": timeout_seconds, "hedge": False, **(upstream or {})}
        specs = [node.spec(f"node-{place}", **common) for place, node in enumerate(nodes)]
        registry.replace([network_spec(*specs, in_order=in_order, **changes)])
        async with asyncio.timeout(20):
            yield Setting(registry.get("ethereum", "devnet").pool, nodes, clock)
    finally:
        await registry.close()
        for node in nodes:
            await node.__aexit__(None, None, None)


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


def held(gate: asyncio.Event, answer: Answer) -> Answer:
    """Answers so, once the gate is open."""

    async def waits(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        await asyncio.wait_for(gate.wait(), STALL_SECONDS)
        return await answer(request, call)

    return waits


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
