"""A node that answers with any bytes at all: what no HTTP library would send.

For upstreams that break the rules of HTTP or of JSON-RPC in the middle of an answer. Each has a behaviour: a function
that is given the call and the connection and writes what it likes. It runs in a thread of its own, so that tests of the
whole service may use it from fixtures that several tests share.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import Any, TypeAlias

import aiohttp

from tests.support.devnet import LoopThread

_STALL_SECONDS = 30.0
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HTML = b"<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>"
MEGABYTE = 1_000_000


class Exchange:
    """One call, and the connection on which it is to be answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Any, node: str) -> None:
        self.reader = reader
        self.writer = writer
        self.call = call
        self._node = node

    async def honest(self) -> bytes:
        """What the real node says: the body of its answer."""
        async with aiohttp.ClientSession() as session, session.post(self._node, json=self.call) as answer:
            return await answer.read()

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, body: bytes, *, status: str = "200 OK", kind: str = "application/json", more: int = 0) -> None:
        """A whole answer that claims to be `more` bytes longer than it is."""
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body) + more}\r\n\r\n"
        await self.write(head.encode() + body)

    async def stall(self) -> None:
        """Say nothing more until the other side gives up."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.reader.read(), _STALL_SECONDS)

    def cut(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


Behaviour: TypeAlias = Callable[[Exchange], Awaitable[None]]


async def stalls_in_the_body(exchange: Exchange) -> None:
    """Half of the answer."""
    body = await exchange.honest()
    await exchange.send(body[: len(body) // 2], more=len(body) - len(body) // 2)
    await exchange.stall()


async def stalls_in_a_chunk(exchange: Exchange) -> None:
    """Half of the answer, in chunks without a length."""
    await exchange.write(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n" + (await exchange.honest())[:16]
    )
    await exchange.stall()


async def says_nothing(exchange: Exchange) -> None:
    """Takes the call."""
    await exchange.stall()


async def sends_html(exchange: Exchange) -> None:
    """A page, with the status of success."""
    await exchange.send(_HTML, kind="text/html")


async def sends_html_error(exchange: Exchange) -> None:
    """A page, as a proxy in front of a dead node sends it."""
    await exchange.send(_HTML, status="502 Bad Gateway", kind="text/html")


async def answers_another(exchange: Exchange) -> None:
    """The answer to another call."""
    answer = json.loads(await exchange.honest())
    answer["id"] = str(answer["id"]) + "0"
    await exchange.send(json.dumps(answer).encode())


async def answers_nobody(exchange: Exchange) -> None:
    """An answer without the id of the call."""
    answer = json.loads(await exchange.honest())
    await exchange.send(json.dumps({**answer, "id": None}).encode())


async def truncates(exchange: Exchange) -> None:
    """JSON that ends too soon, in an answer that is complete as HTTP."""
    await exchange.send((await exchange.honest())[:-3])


async def claims_too_much(exchange: Exchange) -> None:
    """Closes before the length that it named."""
    await exchange.send(await exchange.honest(), more=100)
    exchange.writer.close()


async def claims_too_little(exchange: Exchange) -> None:
    """Names a length that cuts the answer; the rest follows, in the place of the next answer."""
    body = await exchange.honest()
    await exchange.send(body, more=-(len(body) // 2))


async def floods(exchange: Exchange) -> None:
    """Fifty megabytes that are no JSON."""
    await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (50 * MEGABYTE))
    piece = b"0" * (MEGABYTE // 10)
    for _ in range(500):
        await exchange.write(piece)


async def floods_the_head(exchange: Exchange) -> None:
    """Headers without end."""
    await exchange.write(b"HTTP/1.1 200 OK\r\n")
    for place in range(50 * MEGABYTE // 10_000):
        await exchange.write(b"X-Header-%d: %b\r\n" % (place, b"a" * 10_000))


def closes_at_random(seed: int) -> Behaviour:
    """Honest half of the time; otherwise cut off before, in or after the head."""
    random = Random(seed)

    async def behave(exchange: Exchange) -> None:
        body = await exchange.honest()
        if random.random() < 0.5:
            await exchange.send(body)
            return
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        await exchange.write(answer[: random.randrange(len(answer))])
        exchange.cut()

    return behave


BEHAVIOURS: Mapping[str, Behaviour] = {
    "stall": says_nothing,
    "stall-in-the-body": stalls_in_the_body,
    "stall-in-a-chunk": stalls_in_a_chunk,
    "html": sends_html,
    "html-error": sends_html_error,
    "wrong-id": answers_another,
    "no-id": answers_nobody,
    "truncated": truncates,
    "length-too-long": claims_too_much,
    "length-too-short": claims_too_little,
    "closes-at-random": closes_at_random(7),
    "fifty-megabytes": floods,
    "endless-head": floods_the_head,
}


class RawNode:
    """A server with one behaviour."""

    def __init__(self, behaviour: Behaviour, node_url: str) -> None:
        self.calls = 0
        self.url = ""
        self._behaviour = behaviour
        self._node_url = node_url
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                assert length is not None
                call = json.loads(await reader.readexactly(int(length[1])))
                self.calls += 1
                await self._behaviour(Exchange(reader, writer, call, self._node_url))
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@contextlib.contextmanager
def raw_nodes(node_url: str, behaviours: Mapping[str, Behaviour] = BEHAVIOURS) -> Iterator[dict[str, RawNode]]:
    """A node of each behaviour; `node_url` is the real node whose answers they spoil."""
    with LoopThread() as thread:
        nodes = {name: RawNode(behaviour, node_url) for name, behaviour in behaviours.items()}
        for node in nodes.values():
            thread.run(node.start())
        try:
            yield nodes
        finally:
            for node in nodes.values():
                thread.run(node.stop())
