"""What the HTTP client of upstreams does when connections end or cannot be made, and with heads that never end."""

import asyncio
import socket

import pytest

from capstan.chain.wire import WireClient, WireError, WireOptions
from tests.unit.chain.test_wire import Handler, answer, echo, read_request, serving

KIBIBYTE = 1024
START = b"HTTP/1.1 200 OK\r\n"


async def test_calls_that_wait_get_new_connections_when_the_upstream_closes_each_after_an_answer() -> None:
    async def last_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        writer.write(answer(body, b"Connection: close"))
        await writer.drain()
        writer.close()

    async with serving(last_one, connections=4) as client:
        answers = await asyncio.gather(*(client.post(b"%d" % n, 5, repeatable=False) for n in range(20)))
    assert [got.body for got in answers] == [b"%d" % n for n in range(20)]


async def test_a_call_that_waits_gets_a_new_connection_when_the_one_before_it_is_cut_off() -> None:
    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        if body == b"cut":
            writer.close()
            return
        writer.write(answer(body))

    async with serving(cuts, connections=1) as client:
        first = client.post(b"cut", 5, repeatable=False)
        second = client.post(b"go", 5, repeatable=False)
        with pytest.raises(WireError) as caught:
            await first
        assert caught.value.kind == "disconnect"
        assert (await second).body == b"go"


async def test_an_upstream_that_answers_without_reading_the_request_does_not_keep_the_connection() -> None:
    done = asyncio.Event()

    async def does_not_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"answer", b"Connection: close"))
        if b"Content-Length: 2\r\n" not in head:
            await asyncio.wait_for(done.wait(), 15)

    async with serving(does_not_read, connections=1) as client:
        large = client.post(b"x" * 32 * KIBIBYTE * KIBIBYTE, 5, repeatable=False)
        assert (await large).body == b"answer"
        assert (await client.post(b"{}", 5, repeatable=False)).body == b"answer"
        done.set()


async def test_a_call_that_was_given_up_while_it_waited_opens_no_connection() -> None:
    connections = 0

    async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        _, body = await read_request(reader)
        await asyncio.sleep(0.2)
        writer.write(answer(body, b"Connection: close"))

    async with serving(counts, connections=1) as client:
        first = client.post(b"1", 5, repeatable=False)
        client.post(b"2", 5, repeatable=False).cancel()
        assert (await first).body == b"1"
        await asyncio.sleep(0.2)
        assert connections == 1


async def test_a_call_that_could_not_connect_is_tried_again_while_another_connection_is_busy() -> None:
    asked = asyncio.Event()

    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        await reader.read()
        writer.close()

    with socket.socket() as holder:
        # Keeps the port ours while nobody listens on it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        busy = await asyncio.start_server(stalls, "127.0.0.1", port, reuse_port=True)
        client = WireClient(WireOptions(url=f"http://127.0.0.1:{port}/", connections=2))
        try:
            first = client.post(b"1", 15, repeatable=False)
            await asyncio.wait_for(asked.wait(), 30)
            busy.close()
            second = client.post(b"2", 10, repeatable=False)
            # By now it was refused a connection.
            await asyncio.sleep(0.2)
            assert not second.done()
            async with await asyncio.start_server(echo, "127.0.0.1", port, reuse_port=True):
                assert (await second).body == b"2"
                assert not first.done()
                first.cancel()
                await client.close()
        finally:
            await client.close()
            busy.close()


async def test_whatever_prevents_a_connection_is_told_and_does_not_use_up_connections() -> None:
    # A label of a host name has at most 63 characters: no name is looked up.
    client = WireClient(WireOptions(url=f"http://{'a' * 64}.invalid/", connections=1))
    try:
        for _ in range(3):
            with pytest.raises(WireError) as caught:
                await client.post(b"{}", 1, repeatable=True)
            assert caught.value.kind == "connect"
            assert not caught.value.maybe_delivered
    finally:
        await client.close()


def endless(start: bytes, piece: bytes, sent: list[int]) -> Handler:
    """Begins an answer and goes on with the same bytes for as long as anybody listens."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(start)
        for _ in range(64 * KIBIBYTE):
            writer.write(piece)
            sent[0] += len(piece)
            await writer.drain()

    return serve


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        pytest.param(START + b"X: ", b"y" * KIBIBYTE, id="one header"),
        pytest.param(START, b"X: y\r\n" * 100, id="many headers"),
        pytest.param(b"HTTP/1.1 200 ", b"O" * KIBIBYTE, id="status"),
        pytest.param(START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"y" * KIBIBYTE, id="trailer"),
        pytest.param(START + b"Transfer-Encoding: chunked\r\n\r\n5;x=", b"y" * KIBIBYTE, id="chunk extension"),
    ],
)
async def test_a_head_that_never_ends_is_given_up(start: bytes, piece: bytes) -> None:
    sent = [0]
    async with serving(endless(start, piece, sent)) as client:
        with pytest.raises(WireError) as caught:
            await client.post(b"{}", 10, repeatable=False)
    assert caught.value.kind == "malformed"
    # What the buffers of the system hold was sent as well.
    assert sent[0] < 16 * KIBIBYTE * KIBIBYTE


@pytest.mark.parametrize("name", [b"X: ", b"Transfer-Encoding: chunked\r\nX: "])
async def test_a_head_may_be_long_but_not_too_long(name: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            header = name + b"y" * int(body)
            chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            writer.write(START + header + b"\r\n\r\n" + chunked if b"chunked" in name else answer(body, header))

    async with serving(serve) as client:
        for size in (b"60000", b"60000"):
            assert (await client.post(size, 5, repeatable=False)).body == size
        with pytest.raises(WireError) as caught:
            await client.post(b"66000", 5, repeatable=False)
        assert caught.value.kind == "malformed"
        assert (await client.post(b"10", 5, repeatable=False)).body == b"10"


async def test_an_answer_without_a_body_after_a_long_head_does_not_harm_the_next_call() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer(b"", b"X: " + b"y" * 40_000))

    async with serving(serve, connections=1) as client:
        answers = await asyncio.gather(*(client.post(b"{}", 5, repeatable=False) for _ in range(5)))
    assert [got.body for got in answers] == [b""] * 5
