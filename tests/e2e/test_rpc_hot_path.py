"""The short way of JSON-RPC on real sockets: known heads, calls without a task, and clients that go away."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from aiohttp import web

from tests.support.faulty_node import FaultyNode, held, results
from tests.support.http import RawAnswer, assert_error, assert_standard_headers, read_answer
from tests.support.service import RunCapstan, Service, StartService

_SECONDS = 10.0


@pytest.fixture
async def gate() -> asyncio.Event:
    opened = asyncio.Event()
    opened.set()
    return opened


@pytest.fixture
async def node(gate: asyncio.Event) -> AsyncIterator[FaultyNode]:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["method"] == "eth_getBalance":
            return await held(gate, results(call["params"][0]))(request, call)
        return await results("0x1")(request, call)

    async with FaultyNode(answer) as made:
        yield made
        gate.set()


@pytest.fixture
def service(start_service: StartService, node: FaultyNode) -> Service:
    return start_service({"networks": {"ethereum/sepolia": {"upstreams": [node.url]}}})


def request(key: str, number: int) -> bytes:
    """A read whose head is always the same."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_getBalance", "params": [f"0x{number:040x}", "latest"]}
    body = json.dumps(call).encode()
    return (
        f"POST /v1/rpc/ethereum/sepolia HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def connect(service: Service) -> socket.socket:
    parts = urlsplit(service.origin)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_SECONDS)


def ask(connection: socket.socket, key: str, number: int) -> RawAnswer:
    connection.sendall(request(key, number))
    return read_answer(connection)


async def test_a_revoked_key_is_refused_although_its_head_is_known(service: Service, capstan: RunCapstan) -> None:
    made = capstan("keys", "create", "--plan", "enterprise")

    def use_then_revoke() -> None:
        with connect(service) as connection:
            for number in range(5):
                answer = ask(connection, made["key"], number)
                assert answer.json()["result"] == f"0x{number:040x}"
                assert answer.headers["x-cache"] == "miss"
                assert_standard_headers(answer)
            capstan("keys", "revoke", made["id"])
            deadline = time.monotonic() + 1.0 + _SECONDS
            while (answer := ask(connection, made["key"], 5)).status == 200:
                assert time.monotonic() < deadline
            assert_error(answer, 401, "unauthorized")

    await asyncio.to_thread(use_then_revoke)


async def test_pipelined_requests_are_answered_in_order(service: Service, capstan: RunCapstan) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]

    def pipeline() -> None:
        with connect(service) as connection:
            ask(connection, key, 0)
            ask(connection, key, 1)
            connection.sendall(b"".join(request(key, number) for number in range(2, 8)))
            received = b""
            while received.count(b'"result"') < 6:
                received += connection.recv(65536)
            places = [received.index(f"0x{number:040x}".encode()) for number in range(2, 8)]
            assert places == sorted(places)
            assert ask(connection, key, 8).json()["result"] == f"0x{8:040x}"

    await asyncio.to_thread(pipeline)


async def test_a_call_whose_client_went_away_is_counted_once(
    service: Service, capstan: RunCapstan, node: FaultyNode, gate: asyncio.Event
) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    with connect(service) as connection:
        await asyncio.to_thread(ask, connection, key, 0)
        gate.clear()
        connection.sendall(request(key, 1))
        before = node.methods.count("eth_getBalance")
        async with asyncio.timeout(_SECONDS):
            while node.methods.count("eth_getBalance") <= before and node.open_requests == 0:
                await asyncio.sleep(0.02)
    gate.set()
    async with httpx.AsyncClient(base_url=service.base_url, headers={"X-API-Key": key}) as client:
        deadline = time.monotonic() + _SECONDS
        while True:
            rows = (await client.get("/usage", params={"group": "method"})).json()
            counted = json.dumps(rows)
            if _requests(rows) == 2:
                break
            assert time.monotonic() < deadline, counted
            await asyncio.sleep(0.1)


def _requests(answer: Any) -> int:
    """How often eth_getBalance was counted."""
    rows = next(value for value in answer.values() if isinstance(value, list))
    return sum(row["requests"] for row in rows if "eth_getBalance" in row.values())
