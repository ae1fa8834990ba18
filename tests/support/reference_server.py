"""Serves the reference page of the sample document the way the service does, and a small API for its forms to call.

Under the same Content-Security-Policy as the service, so that a test notices what the policy would block. It remembers
the calls that reach the API.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from capstan.server.reference import render_reference, static_file
from tests.support.reference_document import sample_document

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# 2^53 + 1 is the first integer that a browser's own JSON parser would change.
ANSWER = b'{"total":9007199254740993,"tokens":[],"name":"a \\"b\\" {c}","list":[1,{"x":null}]}'


class Call(msgspec.Struct, frozen=True):
    """One call that reached the API."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str


class ReferenceServer:
    """A running server: its address and what it was asked."""

    def __init__(self) -> None:
        self.origin = ""
        self.document: dict[str, Any] = sample_document()
        self.calls: list[Call] = []

    async def page(self, request: web.Request) -> web.Response:
        text = render_reference({**self.document, "servers": [{"url": self.origin}]})
        return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": POLICY})

    async def asset(self, request: web.Request) -> web.Response:
        found = static_file(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found[0], headers={"Content-Type": found[1], "Content-Security-Policy": POLICY})

    async def api(self, request: web.Request) -> web.Response:
        call = Call(request.method, request.raw_path, dict(request.headers), await request.text())
        self.calls.append(call)
        status = 200 if call.headers.get("X-API-Key") == "svc_test_good" else 401
        headers = {"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-Request-Id": "req_1"}
        return web.Response(body=ANSWER, status=status, content_type="application/json", headers=headers)


@asynccontextmanager
async def running_reference() -> AsyncIterator[ReferenceServer]:
    """A server on a free port of this machine, until the block ends."""
    server = ReferenceServer()
    app = web.Application()
    app.router.add_get("/docs", server.page)
    app.router.add_get("/docs/{name}", server.asset)
    app.router.add_route("*", "/v1/{rest:.*}", server.api)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.origin = f"http://{host}:{port}"
        yield server
    finally:
        await runner.cleanup()
