"""The clients of bench/feed.py: many sockets in one process that do as little as they can with what they receive.

`python -m bench.peers.feed_clients URL HEADS LOGS MESSAGES` connects, subscribes, prints `ready`, and when it has
received so many messages prints the times from sending to receiving in milliseconds: count, median, p99, largest. It
then waits for the next line on its standard input, which is the next number of messages, or `quit`.
"""

import asyncio
import json
import re
import sys
import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import uvloop

from bench.peers.feed_messages import address_of

_SENT_AT = re.compile(rb'"sentAt":(\d+),')
_LONGEST_MATCH = 32
_SECONDS = 120.0


class Client(asyncio.Protocol):
    """One socket: the handshake, a call to subscribe, then the times of what comes."""

    def __init__(self, tally: "Tally", target: str, params: list[object]) -> None:
        self._tally = tally
        self._target = target
        self._params = params
        self._open = self._subscribed = False
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        head = (
            f"GET {self._target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self._subscribed:
            buffer, end = self._rest + data, 0
            for found in _SENT_AT.finditer(buffer):
                self._tally.add(now - int(found[1]))
                end = found.end()
            # What may be the beginning of a match that the next piece completes.
            self._rest = buffer[end:][-_LONGEST_MATCH:]
            return
        if not self._open:
            if not data.startswith(b"HTTP/1.1 101"):
                raise SystemExit(f"refused: {data[:300]!r}")
            self._open = True
            call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": self._params}).encode()
            # Masked with zeros, which leave it as it is.
            self.transport.write(bytes((0x81, 0x80 | 126)) + len(call).to_bytes(2) + bytes(4) + call)
            return
        if b'"result":"0x' in data:
            self._subscribed = True
            self._tally.subscribed += 1
            self._tally.changed.set()


class Tally:
    """The times of all clients."""

    def __init__(self) -> None:
        self.subscribed = 0
        self.times: list[int] = []
        self.changed = asyncio.Event()

    def add(self, nanoseconds: int) -> None:
        self.times.append(nanoseconds)
        if not self.changed.is_set():
            self.changed.set()

    async def wait(self, subscribed: int, messages: int) -> None:
        async with asyncio.timeout(_SECONDS):
            while self.subscribed < subscribed or len(self.times) < messages:
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0.01)


async def main() -> None:
    """Connect and count."""
    url = urlsplit(sys.argv[1])
    heads, logs = int(sys.argv[2]), int(sys.argv[3])
    tally = Tally()
    loop = asyncio.get_running_loop()
    wanted: list[list[object]] = [["newHeads"]] * heads
    wanted += [["logs", {"address": address_of(client)}] for client in range(logs)]
    target = f"{url.path}?{url.query}"
    for place, params in enumerate(wanted):
        await loop.create_connection(partial(Client, tally, target, params), "127.0.0.1", url.port or 80)
        if place % 100 == 99:
            await tally.wait(place - 50, 0)
    await tally.wait(len(wanted), 0)
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while (line := (await reader.readline()).decode().strip()) not in ("", "quit"):
        await tally.wait(0, int(line))
        times = sorted(tally.times)
        tally.times.clear()
        figures = (times[len(times) // 2], times[len(times) * 99 // 100], times[-1])
        print(len(times), *(round(figure / 1e6, 2) for figure in figures), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
