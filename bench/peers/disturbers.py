"""Clients that nobody wants, for bench/feed.py: half-open, silent, slow and sending garbage.

`python -m bench.peers.disturbers PORT TARGET HALF_OPEN OTHERS` connects them, prints `ready` with the number of those
half-open, and goes on until it is ended. A half-open one sends the beginning of a request. A silent one subscribes to
nothing; a slow one subscribes and never reads. One that sends garbage breaks the protocol once a second and comes back.
"""

import asyncio
import random
import sys

import uvloop

_HOST = "127.0.0.1"
_AT_ONCE = 100
_PAUSE_SECONDS = 1.0
_SUBSCRIBE = b'{"id":1,"method":"eth_subscribe","params":["newHeads"]}'


def _frame(payload: bytes) -> bytes:
    """A text message, masked with zeros."""
    return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload


class Half(asyncio.Protocol):
    """A client that never finishes its request."""

    def __init__(self, kept: set["Half"]) -> None:
        self._kept = kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(b"GET /v1/ws/ethereum/sepolia HTTP/1.1\r\nHost:")  # type: ignore[attr-defined] # a Transport
        self._kept.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept.discard(self)


async def open_socket(port: int, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket after its handshake."""
    reader, writer = await asyncio.open_connection(_HOST, port)
    head = (
        f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    writer.write(head.encode())
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def garbage(port: int, target: str) -> None:
    """Send what is no JSON, then what is no WebSocket, and come back."""
    # They do not all come in the same moment.
    await asyncio.sleep(random.random() * _PAUSE_SECONDS)
    while True:
        _, writer = await open_socket(port, target)
        writer.write(_frame(b"{") * 5 + b"\xff" * 64)
        await asyncio.sleep(_PAUSE_SECONDS)
        writer.close()


async def main() -> None:
    """Connect them all and stay."""
    port, target, half_open, others = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    loop = asyncio.get_running_loop()
    kept: set[Half] = set()
    for begin in range(0, half_open, _AT_ONCE):
        count = min(_AT_ONCE, half_open - begin)
        await asyncio.gather(*(loop.create_connection(lambda: Half(kept), _HOST, port) for _ in range(count)))
    sockets = []
    for number in range(others * 2):
        reader, writer = await open_socket(port, target)
        if number % 2:
            writer.write(_frame(_SUBSCRIBE))
            writer.transport.pause_reading()  # type: ignore[attr-defined] # a Transport: the slow half reads nothing
        sockets.append((reader, writer))
    tasks = [asyncio.create_task(garbage(port, target)) for _ in range(others)]
    print("ready", len(kept), flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    uvloop.run(main())
