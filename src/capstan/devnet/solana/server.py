"""The node's network side: HTTP JSON-RPC and WebSocket subscriptions on one port, subscriptions again on the port above
it (where Solana clients look by default), and the clock that moves the slots.

`__main__` runs it in a process of its own. All work on the ledger happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial

from aiohttp import WSCloseCode, WSMsgType, web

from capstan.devnet.solana.dispatch import Dispatcher
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods import METHODS
from capstan.devnet.solana.pubsub import Hub, Session
from capstan.devnet.solana.settings import NodeSettings

SOCKET_PING_SECONDS = 30
SOCKET_CLOSE_SECONDS = 2
SHUTDOWN_SECONDS = 2
PORT_ATTEMPTS = 50

_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Allow-Methods": "POST, GET, OPTIONS",
}


class PortUnavailable(RuntimeError):
    """The port asked for, or the one above it, cannot be used."""


def bind_ports(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Two listening sockets on neighbouring ports. Port 0 looks for a free pair."""
    for _ in range(1 if port else PORT_ATTEMPTS):
        first = _listen(host, port)
        try:
            return first, _listen(host, first.getsockname()[1] + 1)
        except (PortUnavailable, OverflowError):
            first.close()
            if port:
                raise
    raise PortUnavailable(f"no two neighbouring free ports on {host} after {PORT_ATTEMPTS} attempts")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise PortUnavailable(f"cannot listen on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


class NodeServer:
    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._ledger = Ledger(settings)
        self._hub = Hub(self._ledger, settings)
        bound = {name: partial(handler, self._ledger) for name, handler in METHODS.items()}
        self._dispatcher = Dispatcher(bound, settings.max_batch)
        self._sockets: set[web.WebSocketResponse] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Serves while the block runs; gives the port of the HTTP side."""
        http_socket, pubsub_socket = bind_ports(self._settings.host, self._settings.port)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(http_socket.close)
            stack.callback(pubsub_socket.close)
            await self._start(stack, self._http_application(), http_socket)
            await self._start(stack, self._pubsub_application(), pubsub_socket)
            yield http_socket.getsockname()[1]

    async def keep_time(self) -> None:
        """Moves the slots, for ever. A late slot is not made up for by hurrying the next ones."""
        loop = asyncio.get_running_loop()
        interval = self._settings.slot_milliseconds / 1000
        due = loop.time() + interval
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._ledger.advance()
            due = max(due + interval, loop.time())

    async def _start(
        self, stack: contextlib.AsyncExitStack, application: web.Application, listener: socket.socket
    ) -> None:
        application.on_shutdown.append(self._close_sockets)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()

    def _http_application(self) -> web.Application:
        application = web.Application(client_max_size=self._settings.max_body_bytes)
        application.router.add_post("/", self._post)
        application.router.add_get("/", self._socket)
        application.router.add_get("/health", self._health)
        application.router.add_options("/", self._options)
        return application

    def _pubsub_application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/", self._socket)
        return application

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok", headers=_CORS)

    async def _options(self, _: web.Request) -> web.Response:
        return web.Response(headers=_CORS)

    async def _post(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return web.Response(
                status=415,
                text="Supplied content type is not allowed. Content-Type: application/json is required\n",
                headers=_CORS,
            )
        reply = self._dispatcher.handle(await request.read())
        return web.Response(body=reply or b"", content_type="application/json", headers=_CORS)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse(
            heartbeat=SOCKET_PING_SECONDS,
            timeout=SOCKET_CLOSE_SECONDS,
            max_msg_size=self._settings.max_socket_message_bytes,
        )
        if not response.can_prepare(request):
            return web.Response(status=405, text="Used HTTP Method is not allowed. POST or OPTIONS is required\n")
        if len(self._sockets) >= self._settings.max_sockets:
            return web.Response(status=503, text="This node serves no more sockets at once\n")
        self._sockets.add(response)
        try:
            await response.prepare(request)
            await _Conversation(response, self._hub, self._settings.max_queue_per_socket).run()
        finally:
            self._sockets.discard(response)
        return response

    async def _close_sockets(self, _: web.Application) -> None:
        closing = [
            response.close(code=WSCloseCode.GOING_AWAY, message=b"the node is stopping") for response in self._sockets
        ]
        await asyncio.gather(*closing, return_exceptions=True)


class _Conversation:
    """One WebSocket: reads requests, writes replies and notifications through a bounded queue."""

    def __init__(self, response: web.WebSocketResponse, hub: Hub, max_queue: int) -> None:
        self._response = response
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(max_queue)
        self._session = Session(hub, self._push)
        self._overflowed = asyncio.Event()

    async def run(self) -> None:
        tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._overflowed.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._session.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._overflowed.is_set():
            await self._drop_slow_client()

    def _push(self, message: bytes) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self._overflowed.set()

    async def _read(self) -> None:
        async for message in self._response:
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                self._session.receive(message.data)

    async def _write(self) -> None:
        while True:
            message = await self._queue.get()
            await self._response.send_str(message.decode())

    async def _drop_slow_client(self) -> None:
        """The close frame may be stuck behind what the client does not read, hence the limit."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(SOCKET_CLOSE_SECONDS):
                await self._response.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too slow: messages were lost")
