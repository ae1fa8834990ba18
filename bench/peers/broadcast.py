"""The baseline of bench/feed.py: a bare broadcast loop of the `websockets` library, without keys, limits or filters.

Run as a process of its own. It prints its port, then obeys the lines on its standard input: `heads COUNT INTERVAL`
sends so many messages to every client, `quit` ends it. After each it prints the CPU seconds it took.
"""

import asyncio
import sys
import time
from collections.abc import Callable

import uvloop
import websockets
from websockets.asyncio.server import ServerConnection, broadcast, serve

from bench.peers.feed_messages import header


async def obey(send: Callable[[int], None]) -> None:
    """Read the lines and do what they say."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    number = 0
    while line := (await reader.readline()).decode().split():
        if line[0] == "quit":
            return
        count, interval = int(line[1]), float(line[2])
        began = time.process_time()
        for _ in range(count):
            number += 1
            send(number)
            await asyncio.sleep(interval)
        print(time.process_time() - began, flush=True)


async def main() -> None:
    """Serve until told to quit."""
    connections: set[ServerConnection] = set()

    async def handle(connection: ServerConnection) -> None:
        connections.add(connection)
        try:
            async for _ in connection:
                await connection.send('{"id":1,"result":"0x1"}')
        except websockets.ConnectionClosed:
            return
        finally:
            connections.discard(connection)

    def send(number: int) -> None:
        text = b'{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"0x%032x","result":%b}}'
        broadcast(connections, (text % (number, header(number))).decode())

    async with serve(handle, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await obey(send)


if __name__ == "__main__":
    uvloop.run(main())
