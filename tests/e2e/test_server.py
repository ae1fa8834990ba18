"""How the server behaves around requests: starting, stopping, reloading, slow and greedy clients, CORS."""

import asyncio
import contextlib
import signal
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx

from tests.support.faulty_node import FaultyNode, results
from tests.support.http import assert_error, assert_standard_headers, exchange, read_answer
from tests.support.service import RunCapstan, Service, StartService, run_command

_CONFIG = """
[networks."ethereum/sepolia"]
upstreams = ["{url}"]
[plans.free]
requests_per_second = {rate}
"""


def _connect(service: Service) -> socket.socket:
    parts = urlsplit(service.origin)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)


def _wait_for(service: Service, event: str, count: int = 1) -> None:
    deadline = time.monotonic() + 10
    while sum(line.get("event") == event for line in service.log) < count:
        assert time.monotonic() < deadline, f"no log line {event}: {service.log_text[-2000:]}"
        threading.Event().wait(0.02)


def test_sighup_takes_over_new_settings_and_refuses_bad_ones(
    start_service: StartService, capstan: RunCapstan, tmp_path: Path
) -> None:
    key = capstan("keys", "create", "--plan", "free")["key"]
    config = tmp_path / "capstan.toml"
    config.write_text(_CONFIG.format(url="http://127.0.0.1:1", rate=10))
    service = start_service()
    with httpx.Client(base_url=service.base_url, headers={"X-API-Key": key}, timeout=20) as client:
        assert client.get("/account").json()["limits"]["requests_per_second"] == 10
        config.write_text(
            _CONFIG.format(url="http://127.0.0.1:2", rate=50)
            + '[networks."base/sepolia"]\nupstreams = ["http://127.0.0.1:1"]'
        )
        service.process.send_signal(signal.SIGHUP)
        _wait_for(service, "reloaded")
        answer = client.get("/account")
        assert answer.json()["limits"]["requests_per_second"] == 50
        assert answer.headers["x-ratelimit-limit"] == "50"
        assert {entry["chain"] for entry in client.get("/networks").json()["networks"]} == {"ethereum", "base"}
        config.write_text("[server]\nprot = 1\n")
        service.process.send_signal(signal.SIGHUP)
        _wait_for(service, "reload_refused")
        refused = next(line for line in service.log if line["event"] == "reload_refused")
        assert "server.prot" in refused["reason"]
        assert "capstan.toml" in refused["reason"]
        assert client.get("/account").json()["limits"]["requests_per_second"] == 50


async def test_a_reload_drops_no_request(
    start_service: StartService, capstan: RunCapstan, tmp_path: Path, evm_devnet_url: str
) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    config = tmp_path / "capstan.toml"
    text = '[networks."ethereum/devnet"]\nupstreams = [{{url = "{url}", timeout_seconds = {seconds}}}]\n'
    config.write_text(text.format(url=evm_devnet_url, seconds=10))
    service = start_service({"log.access": False})
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
    statuses: list[int] = []
    ends_at = time.monotonic() + 2.5

    async def ask() -> None:
        async with aiohttp.ClientSession(headers={"X-API-Key": key}) as session:
            while time.monotonic() < ends_at:
                async with session.post(f"{service.base_url}/rpc/ethereum/devnet", json=call) as answer:
                    await answer.read()
                    statuses.append(answer.status)

    async def reload() -> None:
        for seconds in (11, 12, 13, 14):
            await asyncio.sleep(0.4)
            config.write_text(text.format(url=evm_devnet_url, seconds=seconds))
            service.process.send_signal(signal.SIGHUP)

    await asyncio.gather(*(ask() for _ in range(8)), reload())
    _wait_for(service, "reloaded", count=4)
    assert set(statuses) == {200}
    assert len(statuses) > 100


async def test_a_changed_unit_price_acts_after_a_reload_and_drops_no_request(
    start_service: StartService, capstan: RunCapstan, tmp_path: Path, evm_devnet_url: str
) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    config = tmp_path / "capstan.toml"
    text = '[networks."ethereum/devnet"]\nupstreams = ["{url}"]\n[units]\noverrides = {{eth_blockNumber = {units}}}\n'
    config.write_text(text.format(url=evm_devnet_url, units=3))
    service = start_service()
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
    statuses: list[int] = []
    stopped = asyncio.Event()

    async with aiohttp.ClientSession(headers={"X-API-Key": key}) as session:

        async def ask() -> str:
            async with session.post(f"{service.base_url}/rpc/ethereum/devnet", json=call) as answer:
                await answer.read()
                statuses.append(answer.status)
                return answer.headers["x-request-id"]

        async def keep_asking() -> None:
            while not stopped.is_set():
                await ask()
                await asyncio.sleep(0.01)

        async def price() -> int:
            """What a call costs now, as its line in the log says."""
            request_id = await ask()
            async with asyncio.timeout(10):
                while True:
                    found = [line["units"] for line in service.log if line.get("request_id") == request_id]
                    if found:
                        return int(found[0])
                    await asyncio.sleep(0.02)

        load = [asyncio.create_task(keep_asking()) for _ in range(4)]
        try:
            for number, units in enumerate((9, 0, 4), start=1):
                assert await price() == {1: 3, 2: 9, 3: 0}[number]
                config.write_text(text.format(url=evm_devnet_url, units=units))
                service.process.send_signal(signal.SIGHUP)
                await asyncio.to_thread(_wait_for, service, "reloaded", number)
                assert await price() == units
        finally:
            stopped.set()
            await asyncio.gather(*load)
    assert set(statuses) == {200}
    assert len(statuses) > 20


def test_a_client_that_sends_its_head_too_slowly_is_let_go(start_service: StartService) -> None:
    service = start_service({"server.header_timeout_seconds": 1})
    with _connect(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        began = time.monotonic()
        assert_error(read_answer(connection), 408, "request_timeout")
        assert time.monotonic() - began < 10
        assert connection.recv(1) == b""


def test_a_client_that_sends_its_body_too_slowly_is_let_go(start_service: StartService) -> None:
    service = start_service({"server.body_timeout_seconds": 1})
    with _connect(service) as connection:
        connection.sendall(b"POST /v1/rpc/a/b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = read_answer(connection)
        assert answer.status in (401, 408)
        assert connection.recv(1) == b""


async def test_a_client_that_does_not_read_its_answers_is_let_go_and_holds_up_nobody(
    start_service: StartService, capstan: RunCapstan
) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    body = b'{"jsonrpc":"2.0","id":1,"method":"web3_sha3","params":["0xab"]}'
    head = b"POST /v1/rpc/ethereum/sepolia HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n"
    request, size = head % (key.encode(), len(body)) + body, 1_000_000

    def misuse(service: Service) -> int:
        with _connect(service) as greedy, _connect(service) as other:
            for _ in range(3):
                greedy.sendall(request)
                assert len(read_answer(greedy).body) > size
            greedy.sendall(request * 100)
            deadline, refused = time.monotonic() + 20, 0
            # Two connections are allowed: there is room for a third when the greedy client was let go.
            while exchange(service.origin, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").status == 503:
                refused += 1
                other.sendall(request)
                assert len(read_answer(other).body) > size
                assert time.monotonic() < deadline
            assert refused
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while piece := greedy.recv(1 << 20):
                    received += len(piece)
            return received

    async with FaultyNode(results("0x" + "0" * size)) as node:
        settings = {"networks": {"ethereum/sepolia": {"upstreams": [node.url]}}}
        service = start_service({**settings, "server.max_connections": 2, "server.body_timeout_seconds": 1})
        assert await asyncio.to_thread(misuse, service) < 20 * size


def test_a_silent_connection_is_closed(start_service: StartService) -> None:
    service = start_service({"server.header_timeout_seconds": 1})
    with _connect(service) as connection:
        assert connection.recv(1) == b""


def test_one_connection_serves_many_requests_also_pipelined(start_service: StartService) -> None:
    service = start_service()
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with _connect(service) as connection:
        for _ in range(3):
            connection.sendall(request)
            assert read_answer(connection).status == 200
        connection.sendall(request * 2 + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
        assert received.count(b"HTTP/1.1 200 OK") == 3


def test_connections_above_the_limit_are_refused_with_a_reason(start_service: StartService) -> None:
    service = start_service({"server.max_connections": 3})
    held = [_connect(service) for _ in range(3)]
    try:
        for connection in held:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_answer(connection).status == 200
        answer = exchange(service.origin, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert_error(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"
    finally:
        for connection in held:
            connection.close()


def test_a_body_sent_in_pieces_without_a_length_is_limited_too(
    start_service: StartService, capstan: RunCapstan
) -> None:
    key = capstan("keys", "create")["key"]
    service = start_service({"server.body_limit_bytes": 1000})

    def pieces() -> "list[bytes]":
        return [b" " * 400] * 5

    answer = httpx.post(
        f"{service.base_url}/rpc/ethereum/mainnet", content=iter(pieces()), headers={"X-API-Key": key}, timeout=20
    )
    assert answer.status_code in (403, 413)


def test_cors_answers_only_the_origins_it_was_told(start_service: StartService, capstan: RunCapstan) -> None:
    key = capstan("keys", "create")["key"]
    service = start_service({"server.cors_origins": ["https://app.example.com"]})
    mine = {"Origin": "https://app.example.com"}
    preflight = httpx.options(
        f"{service.base_url}/account",
        headers={**mine, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-api-key"},
        timeout=20,
    )
    assert preflight.status_code in (200, 204)
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.com"
    answer = httpx.get(f"{service.base_url}/account", headers={**mine, "X-API-Key": key}, timeout=20)
    assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
    assert "X-RateLimit-Limit" in answer.headers["access-control-expose-headers"]
    refused = httpx.get(f"{service.base_url}/account", headers=mine, timeout=20)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example.com"
    asked = httpx.options(
        f"{service.base_url}/account",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"},
        timeout=20,
    )
    assert "cors_origins" in assert_error(asked, 403, "forbidden")
    other = httpx.get(
        f"{service.base_url}/account", headers={"Origin": "https://evil.example", "X-API-Key": key}, timeout=20
    )
    assert "access-control-allow-origin" not in other.headers


def test_health_and_readiness(start_service: StartService) -> None:
    service = start_service()
    for path in ("/healthz", "/readyz"):
        answer = httpx.get(service.origin + path, timeout=20)
        assert answer.status_code == 200
        assert_standard_headers(answer)


def test_metrics_have_a_port_of_their_own_when_asked_for(start_service: StartService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    service = start_service({"server.metrics_port": port})
    httpx.get(f"{service.origin}/healthz", timeout=20)
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=20)
    assert 'capstan_http_requests_total{method="GET",route="/healthz",status="200"} 1.0' in answer.text
    assert_error(httpx.get(f"{service.origin}/metrics", timeout=20), 401, "unauthorized")
    guess = {"Authorization": "Bearer guess"}
    assert_error(httpx.get(f"{service.origin}/metrics", headers=guess, timeout=20), 403, "forbidden")


def test_a_port_in_use_is_one_clear_line(start_service: StartService, tmp_path: Path) -> None:
    service = start_service()
    port = urlsplit(service.origin).port
    done = run_command("serve", "--port", str(port), "--data-dir", str(tmp_path / "other"))
    assert done.returncode == 4
    assert str(port) in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_database_is_an_error_and_never_a_silence(
    start_service: StartService, capstan: RunCapstan, tmp_path: Path
) -> None:
    key = capstan("keys", "create")["key"]
    service = start_service({"networks": {"ethereum/sepolia": {"upstreams": ["http://127.0.0.1:1"]}}})
    for name in ("capstan.db", "capstan.db-wal"):
        # In place: the process has the shared memory file mapped, and cutting a mapped file kills whoever looks at it.
        with (tmp_path / "data" / name).open("r+b") as file:
            file.write(b"\xff" * 65536)
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    headers = {"X-API-Key": key}
    answer = httpx.post(f"{service.base_url}/rpc/ethereum/sepolia", json=call, headers=headers, timeout=20)
    assert answer.status_code in (500, 503)
    assert_standard_headers(answer)
    assert_error(httpx.get(f"{service.origin}/readyz", timeout=20), 503, "unavailable")


def test_a_large_head_is_refused_also_when_it_comes_in_one_piece(start_service: StartService) -> None:
    service = start_service()
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * 70_000 + b"\r\n\r\n"
    assert_error(exchange(service.origin, request), 431, "headers_too_large")
