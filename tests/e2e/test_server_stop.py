"""A stop of the service cuts nobody off: requests that are under way, or half sent, are answered."""

import asyncio
import socket
from urllib.parse import urlsplit

import aiohttp
import httpx
from aiohttp import web

from tests.support.http import assert_error, read_answer
from tests.support.service import RunCapstan, Service, StartService


def _connect(service: Service) -> socket.socket:
    parts = urlsplit(service.origin)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)


async def _until_refused(service: Service) -> None:
    """Wait until nobody new can connect: then the service stops."""
    async with asyncio.timeout(30):
        while True:
            try:
                connection = await asyncio.to_thread(_connect, service)
            except ConnectionError:
                return
            connection.close()
            await asyncio.sleep(0.05)


async def test_a_stop_lets_requests_in_flight_finish(start_service: StartService, capstan: RunCapstan) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    arrived, release = asyncio.Event(), asyncio.Event()

    async def slow_node(request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["method"] == "eth_gasPrice":
            # Not for questions about the head, which come before anybody has asked anything.
            arrived.set()
        await release.wait()
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": "0x1"})

    application = web.Application()
    application.router.add_post("/", slow_node)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    port = runner.addresses[0][1]
    try:
        service = start_service({"networks": {"ethereum/sepolia": {"upstreams": [f"http://127.0.0.1:{port}"]}}})
        call = {"jsonrpc": "2.0", "id": 7, "method": "eth_gasPrice", "params": []}
        async with aiohttp.ClientSession(headers={"X-API-Key": key}) as session:

            async def ask() -> tuple[int, object]:
                async with session.post(f"{service.base_url}/rpc/ethereum/sepolia", json=call) as answer:
                    return answer.status, (await answer.json())["result"]

            asking = asyncio.create_task(ask())
            async with asyncio.timeout(30):
                await arrived.wait()
            service.ask_to_stop()
            await _until_refused(service)
            assert service.process.poll() is None
            release.set()
            async with asyncio.timeout(30):
                assert await asking == (200, "0x1")
        assert await asyncio.to_thread(service.stop) == 0
    finally:
        release.set()
        await runner.cleanup()


def test_a_request_half_sent_at_the_stop_is_still_answered(start_service: StartService, capstan: RunCapstan) -> None:
    key = capstan("keys", "create")["key"]
    service = start_service()
    body = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'
    with _connect(service) as connection:
        connection.sendall(
            b"POST /v1/rpc/ethereum/sepolia HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (key.encode(), len(body), body[:-5])
        )
        # The server has read what was sent once it answers on another connection.
        assert httpx.get(f"{service.origin}/healthz", timeout=20).status_code == 200
        service.ask_to_stop()
        asyncio.run(_until_refused(service))
        connection.sendall(body[-5:])
        assert_error(read_answer(connection), 404, "not_found")
    assert service.stop() == 0
