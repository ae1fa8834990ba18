"""Answers whose heads were read before are taken apart without the parser, and come out the same."""

import asyncio
import gzip

import pytest

from capstan.chain.wire import WireClient, WireError
from tests.unit.chain.test_wire import answer, read_request, serving

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
DATE = b"Date: Sun, 15 Nov 2026 04:34:28 GMT"


async def bodies(client: WireClient, *wanted: bytes) -> list[bytes]:
    return [(await client.post(body, 5.0, repeatable=True)).body for body in wanted]


async def test_the_head_of_an_answer_is_remembered_for_its_length_alone() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(answer(body, DATE, b"Connection: keep-alive"))

    async with serving(echo) as client:
        assert await bodies(client, b"one", b"two", b"six", b"three") == [b"one", b"two", b"six", b"three"]
        assert len(client.heads) == 2


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(lambda body: answer(gzip.compress(body), b"Content-Encoding: gzip"), id="gzip"),
        pytest.param(
            lambda body: (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            ),
            id="chunked",
        ),
        pytest.param(lambda body: answer(body).replace(b"200 OK", b"500 No"), id="another status"),
        pytest.param(lambda body: answer(body, b"Connection: close"), id="last one"),
        pytest.param(lambda body: answer(body, b"X: " + b"y" * 3000), id="long"),
    ],
)
async def test_unusual_answers_are_left_to_the_parser(packed: object) -> None:
    assert callable(packed)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(packed(body))

    async with serving(serve) as client:
        assert await bodies(client, b"same", b"same", b"same") == [b"same"] * 3
        assert len(client.heads) == 0


async def test_an_answer_with_a_known_head_may_come_in_pieces() -> None:
    async def drop_by_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        while True:
            _, body = await read_request(reader)
            whole, count = answer(body), count + 1
            cut = len(whole) if count == 1 else len(whole) - 2 * count
            writer.write(whole[:cut])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(whole[cut:])

    async with serving(drop_by_drop) as client:
        asked = [b"%08d" % number for number in range(5)]
        assert await bodies(client, *asked) == asked
        assert len(client.heads) == 1


async def test_more_than_was_asked_for_is_not_taken_for_the_next_answer() -> None:
    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        writer.write(answer(body))
        _, body = await read_request(reader)
        writer.write(answer(body) + answer(b"NEXT"))
        # On the connection that got too much, nothing more is asked.
        assert await reader.read() == b""

    async with serving(talkative, connections=1) as client:
        assert await bodies(client, b"asks") == [b"asks"]
        first = client.post(b"more", 5.0, repeatable=False)
        queued = client.post(b"last", 5.0, repeatable=False)
        assert (await first).body == b"more"
        with pytest.raises(WireError, match="more came than was asked for"):
            await queued
