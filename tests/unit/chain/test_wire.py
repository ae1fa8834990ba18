"""The HTTP client of upstreams, against servers that behave well and badly on a real socket."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from capstan.chain.wire import WireClient, WireError, WireOptions

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, **options: object) -> AsyncIterator[WireClient]:
    """A client of a server that treats each connection with `handler`."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = WireClient(WireOptions(url=f"http://127.0.0.1:{port}/path?x=1", **options))  # type: ignore[arg-type] # tests
    try:
        async with asyncio.timeout(20):
            yield client
    finally:
        await client.close()
        server.close()
        for writer in writers:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


def answer(body: bytes, *headers: bytes) -> bytes:
    """A plain 200."""
    extra = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        _, body = await read_request(reader)
        writer.write(answer(body))


async def test_bodies_come_back_and_connections_are_used_again() -> None:
    connections = 0

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await echo(reader, writer)

    async with serving(counting) as client:
        for number in range(20):
            got = await client.post(b"%d" % number, 5, repeatable=True)
            assert (got.status, got.body) == (200, b"%d" % number)
    assert connections == 1


async def test_many_at_once_stay_within_the_connections_and_each_gets_its_own() -> None:
    open_now = most = 0

    async def slow_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await echo(reader, writer)

    async with serving(slow_echo, connections=4) as client:
        answers = await asyncio.gather(*(client.post(b"%d" % n, 10, repeatable=True) for n in range(200)))
    assert [got.body for got in answers] == [b"%d" % n for n in range(200)]
    assert most <= 4


async def test_the_request_carries_path_host_and_headers() -> None:
    heads: list[bytes] = []

    async def noting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        heads.append(head)
        writer.write(answer(body))

    async with serving(noting, headers=(("Authorization", "Bearer x"),)) as client:
        await client.post(b"{}", 5, repeatable=True)
    assert heads[0].startswith(b"POST /path?x=1 HTTP/1.1\r\n")
    assert b"Authorization: Bearer x\r\n" in heads[0]
    assert b"Host: 127.0.0.1:" in heads[0]


async def test_chunked_and_compressed_answers_are_read() -> None:
    async def packed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        body = gzip.compress(b"x" * 100_000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 7):
            piece = body[start : start + 7]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")

    async with serving(packed, gzip=True) as client:
        assert (await client.post(b"{}", 5, repeatable=True)).body == b"x" * 100_000


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_over_the_limit_is_refused_however_it_comes(packed: bool) -> None:
    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        body = b"x" * 2_000_000
        writer.write(answer(gzip.compress(body), b"Content-Encoding: gzip") if packed else answer(body))

    async with serving(large, max_response_bytes=1_000_000, gzip=packed) as client:
        with pytest.raises(WireError) as caught:
            await client.post(b"{}", 5, repeatable=True)
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (b"garbage\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "malformed"),
        (b"", "disconnect"),
        (answer(b"not gzip", b"Content-Encoding: gzip"), "malformed"),
    ],
)
async def test_a_broken_answer_is_an_error(response: bytes, kind: str) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(response)
        await writer.drain()
        writer.close()

    async with serving(broken) as client:
        with pytest.raises(WireError) as caught:
            await client.post(b"{}", 5, repeatable=False)
    assert caught.value.kind == kind
    assert caught.value.maybe_delivered


async def test_no_answer_in_time_is_a_timeout_and_the_next_call_is_fresh() -> None:
    calls = 0

    async def stalls_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        _, body = await read_request(reader)
        if calls == 1:
            await asyncio.sleep(30)
        writer.write(answer(body))

    async with serving(stalls_once) as client:
        with pytest.raises(WireError) as caught:
            await client.post(b"1", 0.2, repeatable=True)
        assert caught.value.kind == "timeout"
        assert (await client.post(b"2", 5, repeatable=True)).body == b"2"


async def test_nobody_there_is_known_not_to_be_delivered() -> None:
    async with serving(echo) as client:
        port = client.options.url.split(":")[2].split("/")[0]
    gone = WireClient(WireOptions(url=f"http://127.0.0.1:{port}/"))
    try:
        with pytest.raises(WireError) as caught:
            await gone.post(b"{}", 5, repeatable=True)
    finally:
        await gone.close()
    assert caught.value.kind == "connect"
    assert not caught.value.maybe_delivered


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_connection_closed_while_idle_costs_a_repeatable_call_nothing(repeatable: bool) -> None:
    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        writer.write(answer(body))
        # Takes the next request and goes away without a word.
        await read_request(reader)
        writer.close()

    async with serving(answers_once) as client:
        await client.post(b"1", 5, repeatable=True)
        if repeatable:
            assert (await client.post(b"2", 5, repeatable=True)).body == b"2"
        else:
            with pytest.raises(WireError) as caught:
                await client.post(b"2", 5, repeatable=False)
            assert caught.value.kind == "disconnect"


async def test_a_call_given_up_frees_its_connection() -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        if body == b"stall":
            await asyncio.sleep(30)
        writer.write(answer(body))

    async with serving(stalls, connections=1) as client:
        waiting = client.post(b"stall", 10, repeatable=True)
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await client.post(b"go", 5, repeatable=True)).body == b"go"


async def test_more_calls_than_may_wait_are_refused_at_once() -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with serving(stalls, connections=1, waiting=2) as client:
        futures = [client.post(b"x", 1, repeatable=True) for _ in range(4)]
        results = await asyncio.gather(*futures, return_exceptions=True)
    kinds = [result.kind for result in results if isinstance(result, WireError)]
    assert "busy" in kinds
    assert len(kinds) == 4
