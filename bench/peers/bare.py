"""The practical ceiling of a Python server: asyncio.Protocol with httptools on uvloop, one JSON-RPC call from memory.

`python -m bench.peers.bare PORT` answers every POST with a fixed result (a header, when asked for a block) and the
rate-limit headers. `python -m
bench.peers.bare PORT UPSTREAM_PORT` passes the body on to an upstream over pooled connections and returns its answer.
It checks nothing, counts nothing and keeps no log. Used as the upstream node of the benchmarks, too.
"""

import asyncio
import sys
from collections import deque
from typing import Any

import httptools
import msgspec
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
RATE = b"\r\nx-ratelimit-limit: 0\r\nx-ratelimit-remaining: 0\r\nx-ratelimit-reset: 0\r\n\r\n"


class Call(msgspec.Struct):
    """The envelope of a call."""

    method: str
    id: msgspec.Raw = msgspec.Raw(b"null")


DECODER = msgspec.json.Decoder(Call)
# So that whoever follows the chain has a head, and keeps answers as it does in front of a real node.
HEADER = b'{"number":"0x64","hash":"0x%064x","parentHash":"0x%064x","timestamp":"0x5"}' % (100, 99)


class Bare(asyncio.Protocol):
    """One client connection."""

    pool: "Pool | None" = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.pool is not None:
            self.pool.send(self.body, self.transport)
            return
        call = DECODER.decode(self.body)
        result = HEADER if call.method == "eth_getBlockByNumber" else b'"0x1"'
        reply = b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (bytes(call.id), result)
        self.transport.write(HEAD + str(len(reply)).encode() + RATE + reply)


class Upstream(asyncio.Protocol):
    """One connection to the upstream; one request at a time."""

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.client: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.pool.free.append(self)
        self.pool.drain()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        client, self.client = self.client, None
        if not client.is_closing():
            client.write(HEAD + str(len(self.body)).encode() + RATE + self.body)
        self.pool.free.append(self)
        self.pool.drain()


class Pool:
    """Connections to the upstream."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: deque[Upstream] = deque()
        self.waiting: deque[tuple[bytes, Any]] = deque()

    async def open(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            await loop.create_connection(lambda: Upstream(self), "127.0.0.1", self.port)

    def send(self, body: bytes, client: Any) -> None:
        self.waiting.append((body, client))
        self.drain()

    def drain(self) -> None:
        while self.free and self.waiting:
            body, client = self.waiting.popleft()
            upstream = self.free.popleft()
            upstream.client = client
            upstream.transport.write(
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )


async def main() -> None:
    """Serve until killed."""
    port = int(sys.argv[1])
    if len(sys.argv) > 2:
        pool = Pool(int(sys.argv[2]))
        await pool.open(64)
        Bare.pool = pool
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
