"""The node's process: `python -m capstan.devnet.solana`. Writes one JSON line with its port to standard output when it
is ready, and nothing else there. Ends on SIGTERM, SIGINT, or when standard input closes, so it dies with its parent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading

from capstan.devnet.solana.server import NodeServer, PortUnavailable
from capstan.devnet.solana.settings import NodeSettings


def main() -> int:
    settings = _settings(sys.argv[1:])
    try:
        return asyncio.run(_run(settings))
    except PortUnavailable as error:
        sys.stderr.write(f"capstan solana: {error}\n")
        return 1


def _settings(arguments: list[str]) -> NodeSettings:
    defaults = NodeSettings()
    parser = argparse.ArgumentParser(
        prog="python -m capstan.devnet.solana", description="A Solana JSON-RPC node for development."
    )
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=defaults.port, help="0 picks a free one; port+1 is used too")
    parser.add_argument("--slot-milliseconds", type=int, default=defaults.slot_milliseconds)
    parser.add_argument(
        "--finality-slots", type=int, default=defaults.finality_slots, help="blocks on top that make a block final"
    )
    given = parser.parse_args(arguments)
    if given.slot_milliseconds < 1 or given.finality_slots < 0:
        parser.error("--slot-milliseconds must be at least 1, and --finality-slots at least 0")
    return NodeSettings(
        host=given.host,
        port=given.port,
        slot_milliseconds=given.slot_milliseconds,
        finality_slots=given.finality_slots,
    )


async def _run(settings: NodeSettings) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    threading.Thread(target=_watch_input, args=(loop, stopping), daemon=True).start()
    server = NodeServer(settings)
    async with server.serving() as port:
        _announce(port)
        clock = asyncio.create_task(server.keep_time())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({clock, stopped}, return_when=asyncio.FIRST_COMPLETED)
        failure = clock.exception() if clock.done() else None
        clock.cancel()
        stopped.cancel()
    if failure is not None:
        raise failure  # slots have stopped: better no node than one that stands still
    return 0


def _announce(port: int) -> None:
    sys.stdout.write(json.dumps({"port": port, "ws_port": port + 1, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()


def _watch_input(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Blocks until standard input is closed. A thread, because input may be a file or terminal, not only a pipe."""
    with contextlib.suppress(OSError):  # no standard input at all is the same as a closed one
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop may have ended in the meantime, which is what this asks for
        loop.call_soon_threadsafe(_stop_for_input, stopping)


def _stop_for_input(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        return
    stopping.set()
    # After a parent that was killed, standard error is gone too; saying so must not keep the node alive.
    with contextlib.suppress(OSError):
        sys.stderr.write("capstan solana: standard input is closed, stopping\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
