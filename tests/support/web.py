"""A web server on loopback that serves metadata well and badly, and remembers what it was asked for."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
SVG = b"<?xml version='1.0'?>\n<!-- drawn by hand -->\n<svg xmlns='http://www.w3.org/2000/svg'/>"
MP4 = b"\x00\x00\x00\x18ftypmp42" + bytes(32)
MEBIBYTE = 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MetadataServer:
    """Serves what the test puts at a path; the built-in bad paths are under `/bad/`."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        # Paths that redirect, and where to. With `redirect`, every other path does.
        self.hops: dict[str, str] = {}
        self.redirect = ""
        self.asked: list[str] = []
        self.sent_bytes = 0
        # While it is closed, documents are held back, as they were when they were asked for.
        self.gate = asyncio.Event()
        self.gate.set()
        self._handlers: dict[str, Handler] = {
            "/bad/loop": self._loop,
            "/bad/endless": self._endless,
            "/bad/slow": self._slow,
            "/bad/error": self._error,
            "/bad/html": self._html,
        }
        application = web.Application()
        application.router.add_get("/{tail:.*}", self._handle)
        self._server = TestServer(application)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return str(self._server.make_url("")).rstrip("/")

    async def __aenter__(self) -> "MetadataServer":
        await self._server.start_server(host="127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        self.asked.append(path)
        handler = self._handlers.get(path)
        if handler is not None:
            return await handler(request)
        onwards = self.hops.get(path) or self.redirect
        if onwards:
            raise web.HTTPFound(onwards)
        found = self.documents.get(path)
        await self.gate.wait()
        if found is None:
            return web.Response(status=404, text="not here")
        if isinstance(found, tuple):
            body, content_type = found
            return web.Response(body=body, headers={"Content-Type": content_type})
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        return web.Response(body=body, headers={"Content-Type": "application/octet-stream"})

    async def _loop(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/bad/loop")

    async def _error(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text='{"name": "not to be believed"}')

    async def _html(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html><body>Just a moment...</body></html>", content_type="text/html")

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        """A gigabyte of JSON, as far as anybody reads it."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"name": "')
        for _ in range(1024):
            try:
                await response.write(b"A" * MEBIBYTE)
            except ConnectionError:
                break
            self.sent_bytes += MEBIBYTE
        return response

    async def _slow(self, request: web.Request) -> web.StreamResponse:
        """A byte now and then, for ever."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(600):
            try:
                await response.write(b" ")
            except ConnectionError:
                break
            await asyncio.sleep(0.05)
        return response
