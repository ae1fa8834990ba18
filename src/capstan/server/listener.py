"""Runs uvicorn on a socket of ours, with our protocol class and our signal handling.

The command line calls `serve_until_stopped`. The first SIGINT or SIGTERM stops accepting and lets requests in flight
finish within the grace period; a second one ends them. SIGHUP calls the reload hook. The process then exits by itself,
so that whoever started it can tell a clean stop (exit code 0) from a crash.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import uvicorn

from capstan.server.protocol import CapstanProtocol, sweep


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, which re-raise the signal after a clean stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


async def serve_until_stopped(
    app: Any,
    listener: socket.socket,
    protocol: type[CapstanProtocol],
    *,
    keep_alive_seconds: int,
    grace_seconds: int,
    on_started: Callable[[], Awaitable[None]] | None = None,
    on_reload: Callable[[], Awaitable[None]] | None = None,
    on_stopping: Callable[[], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until a signal, or until `stop` is set."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws=protocol.surroundings.sockets,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=keep_alive_seconds,
        timeout_graceful_shutdown=grace_seconds,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def begin_stop() -> None:
        if on_stopping is not None:
            on_stopping()
        if server.should_exit:
            server.force_exit = True
        server.should_exit = True

    def reload() -> None:
        if on_reload is not None:
            task = loop.create_task(_run(on_reload))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    with _signals(loop, {signal.SIGINT: begin_stop, signal.SIGTERM: begin_stop, signal.SIGHUP: reload}):
        protocol.surroundings.encoder.use_defaults(server.server_state)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        sweeping = asyncio.create_task(sweep(server.server_state.connections))
        watcher = asyncio.create_task(_stop_when(stop, begin_stop)) if stop is not None else None
        started = asyncio.create_task(server.ready.wait())
        await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if on_started is not None and not serving.done():
            await on_started()
        await serving
        sweeping.cancel()
        if watcher is not None:
            watcher.cancel()


async def _run(hook: Callable[[], Awaitable[None]]) -> None:
    await hook()


async def _stop_when(stop: asyncio.Event, begin_stop: Callable[[], None]) -> None:
    await stop.wait()
    begin_stop()


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, handlers: dict[signal.Signals, Callable[[], None]]
) -> Generator[None, None, None]:
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
