"""One upstream and all the ways it can fail. The normal line is tested against a real node in tests/e2e."""

import asyncio
import gzip
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from capstan.chain.errors import (
    NodeError,
    NodeUnable,
    UpstreamBadReply,
    UpstreamDisconnected,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeoutError,
    UpstreamUnreachable,
)
from capstan.chain.models import UpstreamSpec
from capstan.chain.upstream import Upstream, open_session
from tests.support.faulty_node import (
    Answer,
    FaultyNode,
    breaks_off,
    errors,
    resets,
    results,
    stalls,
    stalls_in_the_body,
    text,
)

TIMEOUT = 5.0
MEBIBYTE = 1024 * 1024


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


async def outcome(session: aiohttp.ClientSession, answer: Answer, **changes: Any) -> bytes:
    """The result of one call to a node that answers so."""
    async with FaultyNode(answer) as node:
        upstream = Upstream(node.spec(**changes), "evm")
        return bytes(await upstream.call("eth_chainId", b"[]", timeout=TIMEOUT))


async def test_a_result_comes_back_byte_for_byte(session: aiohttp.ClientSession) -> None:
    body = '{"jsonrpc":"2.0","id":1,"result": {"b" : 1.50, "a":"\\u0041é"} }'
    assert await outcome(session, text(body)) == '{"b" : 1.50, "a":"\\u0041é"}'.encode()


@pytest.mark.parametrize("result", [None, [], "0x", False, {}])
async def test_an_empty_result_is_a_result(session: aiohttp.ClientSession, result: object) -> None:
    assert json.loads(await outcome(session, results(result))) == result


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (text("<html>Bad gateway</html>", content_type="text/html"), "not valid JSON"),
        (text("<html>oops</html>", status=500, content_type="text/html"), "500"),
        (text('{"jsonrpc":"2.0","id":1,"result":"0x'), "not valid JSON"),
        (text(""), "not valid JSON"),
        (text("", status=204), "204"),
        (text('{"jsonrpc":"2.0","id":1}'), "neither"),
        (text('[{"jsonrpc":"2.0","id":1,"result":"0x1"}]'), "not a JSON object"),
        (text('{"jsonrpc":"2.0","id":99,"result":"0x1"}'), "id of another call"),
        (text('{"jsonrpc":"2.0","id":"1","result":"0x1"}'), "id of another call"),
        (text('{"jsonrpc":"2.0","id":null,"result":"0x1"}'), "id of another call"),
        (text('{"jsonrpc":"2.0","result":"0x1"}'), "id of another call"),
        (text('{"jsonrpc":"2.0","id":99,"error":{"code":3,"message":"x"}}'), "id of another call"),
        (text('{"jsonrpc":"2.0","id":1,"error":"text"}'), "integer code"),
        (text(b'{"jsonrpc":"2.0","id":1,"result":"\xff"}'), "UTF-8"),
        (text('{"jsonrpc":"2.0","id":1,"result":"0x1"}', status=500), "500"),
        (text('{"jsonrpc":"2.0","id":1,"result":"0x1"}', status=502), "502"),
        (text('{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"x"}}', status=503), "503"),
        (breaks_off, "broke off"),
    ],
)
async def test_an_unusable_answer_is_a_bad_reply(session: aiohttp.ClientSession, answer: Answer, reason: str) -> None:
    with pytest.raises(UpstreamBadReply, match=reason) as caught:
        await outcome(session, answer)
    assert caught.value.may_retry_elsewhere
    assert caught.value.maybe_delivered


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_a_refusing_status_is_a_refusal(session: aiohttp.ClientSession, status: int) -> None:
    with pytest.raises(UpstreamRefused, match=str(status)):
        await outcome(session, errors(-32000, "go away", status=status))


async def test_redirects_are_not_followed(session: aiohttp.ClientSession) -> None:
    async with FaultyNode(results("0x1")) as target:

        async def redirects(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(target.url)

        with pytest.raises(UpstreamBadReply, match="307"):
            await outcome(session, redirects)
        assert not target.calls


async def test_cookies_are_not_kept(session: aiohttp.ClientSession) -> None:
    seen: list[str | None] = []

    async def sets_a_cookie(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        seen.append(request.headers.get("Cookie"))
        response = web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": 1})
        response.set_cookie("a", "b")
        return response

    async with FaultyNode(sets_a_cookie) as node:
        # By name: the library keeps no cookies for bare addresses anyway.
        spec = UpstreamSpec(name="named", url=node.url.replace("127.0.0.1", "localhost"))
        upstream = Upstream(spec, "evm")
        for _ in range(2):
            await upstream.call("m", b"[]", timeout=TIMEOUT)
    assert seen == [None, None]


async def test_configured_headers_are_sent(session: aiohttp.ClientSession) -> None:
    seen: list[str | None] = []

    async def looks(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": 1})

    await outcome(session, looks, headers=(("Authorization", "Bearer secret"),))
    assert seen == ["Bearer secret"]


def test_a_spec_does_not_show_its_secrets() -> None:
    spec = UpstreamSpec(name="one", url="https://node.example/v2/secret", headers=(("X", "secret"),))
    assert "secret" not in f"{spec} {spec!r} {[spec]}"


async def test_the_error_of_a_node_comes_back_unchanged(session: aiohttp.ClientSession) -> None:
    body = '{"jsonrpc":"2.0","id":1,"error":{"code":3, "message":"execution reverted", "data":"0x08c379a0"}}'
    with pytest.raises(NodeError) as caught:
        await outcome(session, text(body))
    assert bytes(caught.value.raw) == b'{"code":3, "message":"execution reverted", "data":"0x08c379a0"}'
    assert not caught.value.may_retry_elsewhere


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_an_error_object_counts_whatever_the_status(session: aiohttp.ClientSession, status: int) -> None:
    with pytest.raises(NodeError, match="execution reverted"):
        await outcome(session, errors(3, "execution reverted", status=status))


async def test_an_error_without_id_is_an_answer(session: aiohttp.ClientSession) -> None:
    with pytest.raises(NodeUnable):
        await outcome(session, text('{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"internal error"}}'))


async def test_no_listener_is_unreachable(session: aiohttp.ClientSession) -> None:
    with socket.socket() as holder:
        # Bound but not listening: nobody else can take the port, and connecting is refused.
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/key-in-path"
        upstream = Upstream(UpstreamSpec(name="gone", url=url), "evm")
        with pytest.raises(UpstreamUnreachable) as caught:
            await upstream.call("m", b"[]", timeout=TIMEOUT)
    assert not caught.value.maybe_delivered
    assert "key-in-path" not in str(caught.value)


async def test_a_url_that_is_none_is_unreachable(session: aiohttp.ClientSession) -> None:
    upstream = Upstream(UpstreamSpec(name="typo", url="localhost"), "evm")
    with pytest.raises(UpstreamFailure):
        await upstream.call("m", b"[]", timeout=TIMEOUT)


@pytest.mark.parametrize("answer", [stalls, stalls_in_the_body])
async def test_a_stall_ends_with_the_timeout(session: aiohttp.ClientSession, answer: Answer) -> None:
    async with FaultyNode(answer) as node, asyncio.timeout(TIMEOUT):
        upstream = Upstream(node.spec(timeout_seconds=0.2), "evm")
        with pytest.raises(UpstreamTimeoutError) as caught:
            await upstream.call("m", b"[]", timeout=30)
    assert caught.value.maybe_delivered


async def test_the_time_left_bounds_the_call_too(session: aiohttp.ClientSession) -> None:
    async with FaultyNode(stalls) as node, asyncio.timeout(TIMEOUT):
        with pytest.raises(UpstreamTimeoutError):
            await Upstream(node.spec(timeout_seconds=30), "evm").call("m", b"[]", timeout=0.2)


async def test_a_reset_is_tried_once_more_if_the_call_may_be_repeated(session: aiohttp.ClientSession) -> None:
    async with FaultyNode(resets) as node:
        upstream = Upstream(node.spec(), "evm")
        with pytest.raises(UpstreamDisconnected):
            await upstream.call("m", b"[]", timeout=TIMEOUT)
        assert len(node.calls) == 2
        with pytest.raises(UpstreamDisconnected):
            await upstream.call("m", b"[]", timeout=TIMEOUT, repeatable=False)
        assert len(node.calls) == 3


async def test_a_dead_pooled_connection_does_not_fail_a_read(session: aiohttp.ClientSession) -> None:
    answers = iter([results("0x1"), resets, results("0x2")])

    async def changes(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await next(answers)(request, call)

    async with FaultyNode(changes) as node:
        upstream = Upstream(node.spec(), "evm")
        assert bytes(await upstream.call("m", b"[]", timeout=TIMEOUT)) == b'"0x1"'
        assert bytes(await upstream.call("m", b"[]", timeout=TIMEOUT)) == b'"0x2"'


class Flood:
    """Sends far more than anyone wants and counts how much got through."""

    def __init__(self, *, announced: bool) -> None:
        self.announced = announced
        self.sent = 0

    async def __call__(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        headers = {"Content-Length": str(50 * MEBIBYTE)} if self.announced else {}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for _step in range(50):
            await response.write(b"0" * MEBIBYTE)
            self.sent += MEBIBYTE
        return response


@pytest.mark.parametrize("announced", [True, False])
async def test_an_oversized_answer_is_cut_off(session: aiohttp.ClientSession, announced: bool) -> None:
    flood = Flood(announced=announced)
    with pytest.raises(UpstreamBadReply, match="larger than 1048576 bytes"):
        await outcome(session, flood, max_response_bytes=MEBIBYTE)
    assert flood.sent < 25 * MEBIBYTE


async def test_a_compressed_answer_is_read(session: aiohttp.ClientSession) -> None:
    async def compressed(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert "gzip" in request.headers["Accept-Encoding"]
        body = gzip.compress(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": "0x1"}).encode())
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    assert await outcome(session, compressed) == b'"0x1"'


async def test_a_compressed_bomb_is_cut_off_within_bounded_memory(session: aiohttp.ClientSession) -> None:
    bomb = gzip.compress(b"0" * (200 * MEBIBYTE))

    async def bombs(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    tracemalloc.start()
    try:
        with pytest.raises(UpstreamBadReply, match="larger than"):
            await outcome(session, bombs, max_response_bytes=MEBIBYTE)
        assert tracemalloc.get_traced_memory()[1] < 20 * MEBIBYTE
    finally:
        tracemalloc.stop()


async def test_broken_compression_is_a_bad_reply(session: aiohttp.ClientSession) -> None:
    async def broken(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=b"this is not gzip", headers={"Content-Encoding": "gzip"})

    with pytest.raises(UpstreamBadReply):
        await outcome(session, broken)


async def test_something_that_is_not_http_is_a_bad_reply(session: aiohttp.ClientSession) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UpstreamFailure):
            await Upstream(UpstreamSpec(name="mail", url=url), "evm").call("m", b"[]", timeout=TIMEOUT)


async def test_a_closed_upstream_is_unreachable() -> None:
    upstream = Upstream(UpstreamSpec(name="x", url="http://127.0.0.1:9"), "evm")
    await upstream.close()
    with pytest.raises(UpstreamUnreachable, match="shutting down"):
        await upstream.call("m", b"[]", timeout=1)


async def test_cancelling_a_call_is_not_turned_into_a_failure(session: aiohttp.ClientSession) -> None:
    async with FaultyNode(stalls) as node:
        call = asyncio.create_task(Upstream(node.spec(), "evm").call("m", b"[]", timeout=30))
        await node.wait_for_calls(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_the_second_try_after_a_cut_has_only_what_is_left_of_the_time(session: aiohttp.ClientSession) -> None:
    answers = iter([resets, stalls])

    async def cuts_late_then_hangs(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        chosen = next(answers)
        if chosen is resets:
            await asyncio.sleep(0.8)
        return await chosen(request, call)

    async with FaultyNode(cuts_late_then_hangs) as node, asyncio.timeout(TIMEOUT):
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(UpstreamTimeoutError):
            await Upstream(node.spec(timeout_seconds=1.0), "evm").call("m", b"[]", timeout=30)
        assert loop.time() - began < 1.5
        assert len(node.calls) == 2
