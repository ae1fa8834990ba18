"""What happens to requests whatever they ask for: faults inside, requests that take too long, headers."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from prometheus_client import CollectorRegistry, generate_latest

from capstan.access.directory import KeyDirectory
from capstan.access.store import AccessStore
from capstan.core.clock import SystemClock
from capstan.core.ids import RequestIds
from capstan.limits.day import DayLedger
from capstan.limits.memory import MemoryLimiter
from capstan.limits.models import Limits
from capstan.limits.store import DayStore
from capstan.server.accesslog import AccessLog
from capstan.server.admission import Admission
from capstan.server.asgi import build_application
from capstan.server.gate import Gate
from capstan.server.identity import ClientAddress
from capstan.server.telemetry import Telemetry
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.errors import StorageUnavailable
from tests.support.rpc_gateway import UsageLog
from tests.support.storage import migrate_new

SECRET_TEXT = "the password is hunter2"


def _routes() -> list[HTTPRouteHandler]:
    @get("/fault", opt={"open": True})
    async def fault() -> str:
        raise RuntimeError(SECRET_TEXT)

    @get("/slow", opt={"open": True})
    async def slow() -> str:
        await asyncio.sleep(30)
        return "late"

    @get("/away", opt={"open": True})
    async def away() -> str:
        raise StorageUnavailable("the database did not answer")

    @post("/body", opt={"open": True})
    async def body(data: JSONBody[dict[str, Any]]) -> int:
        return len(data)

    return [fault, slow, away, body]


class SmallServer:
    """A gate around a small application, called without a socket."""

    def __init__(self, gate: Gate, metrics: CollectorRegistry) -> None:
        self.gate = gate
        self.metrics = metrics

    async def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON body of a GET."""
        return await self.send("GET", path, headers)

    async def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, content: bytes = b""
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON body of a request."""
        sent: list[dict[str, Any]] = []
        encoded = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": encoded,
            "client": ("10.0.0.1", 1234),
            "server": ("127.0.0.1", 80),
            "state": {},
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(20):
            await self.gate(scope, receive, send)
        start = sent[0]
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, json.loads(body)


@pytest.fixture(autouse=True)
def _service_recursion_limit() -> Iterator[None]:
    """The limit the service sets at its start; other tests import a library that raises it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SmallServer]:
    database = Database(DatabaseOptions(url=sqlite_url(tmp_path / "capstan.db")))
    await migrate_new(database)
    clock, metrics, log = SystemClock(), CollectorRegistry(), io.BytesIO()
    limiter = MemoryLimiter(clock, DayLedger(DayStore(database), clock, metrics))
    await limiter.start()
    limits = Limits(5, 0, 0)
    admission = Admission(
        KeyDirectory(AccessStore(database), clock),
        limiter,
        limits_of=lambda caller: limits,
        anonymous_limits=lambda: limits,
        price=lambda name: 1,
    )
    app = build_application(_routes(), admission, version="0", body_limit_bytes=20_000, cors_origins=())
    gate = Gate(
        app,
        admission,
        Telemetry(metrics),
        clock,
        addresses=ClientAddress(["10.0.0.0/8"]),
        request_timeout_seconds=0.2,
        access_log=AccessLog(clock, enabled=True, style="json", sink=log),
        request_ids=RequestIds(),
        usage=UsageLog(),
    )
    yield SmallServer(gate, metrics)
    await limiter.close()
    await database.close()


async def test_an_internal_fault_says_nothing_but_the_request_id(server: SmallServer) -> None:
    status, headers, body = await server.get("/fault")
    assert status == 500
    assert body["error"]["code"] == "internal_error"
    assert headers["x-request-id"] in body["error"]["message"]
    assert "hunter2" not in json.dumps(body)
    assert "RuntimeError" not in json.dumps(body)
    assert headers["x-ratelimit-limit"] == "5"


async def test_a_request_that_takes_too_long_is_stopped(server: SmallServer) -> None:
    status, headers, body = await server.get("/slow")
    assert status == 503
    assert body["error"]["code"] == "unavailable"
    assert headers["retry-after"] == "1"


async def test_a_database_that_is_away_is_503(server: SmallServer) -> None:
    status, headers, body = await server.get("/away")
    assert (status, body["error"]["code"]) == (503, "unavailable")
    assert headers["retry-after"] == "1"


async def test_requests_without_a_route_count_against_the_address(server: SmallServer) -> None:
    statuses = [(await server.get("/none"))[0] for _ in range(7)]
    assert statuses == [404] * 5 + [429] * 2
    other = {"X-Forwarded-For": "203.0.113.7"}
    assert (await server.get("/none", other))[0] == 404


async def test_metrics_name_routes_never_paths(server: SmallServer) -> None:
    await server.get("/fault")
    await server.get("/none/of/your/business")
    text = generate_latest(server.metrics).decode()
    assert 'capstan_http_requests_total{method="GET",route="/fault",status="500"} 1.0' in text
    assert 'route="unrouted",status="404"' in text
    assert "business" not in text


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "deeply"),
        (b"", "missing"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b"x" * 20_001, "large"),
    ],
    ids=["nested", "missing", "truncated", "other type", "large"],
)
async def test_a_bad_body_is_refused_with_a_reason(server: SmallServer, content: bytes, word: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    status, _, body = await server.send("POST", "/body", headers, content)
    assert status in (400, 413)
    assert word in body["error"]["message"]
