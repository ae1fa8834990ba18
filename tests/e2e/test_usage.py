"""The usage ledger from outside: processes that are killed, and the path of the API over a real server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from capstan.access.directory import KeyDirectory
from capstan.access.models import Scope
from capstan.access.plans import PlanBook
from capstan.access.service import AccessService
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
from capstan.server.openapi import complete_document
from capstan.server.telemetry import Telemetry
from capstan.settings import load_settings
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from capstan.usage.recorder import UsageRecorder
from capstan.usage.routes import usage_routes
from capstan.usage.store import UsageStore
from tests.support.forks import Process, start_module
from tests.support.http import assert_error, assert_standard_headers
from tests.support.service import RunCapstan, StartService
from tests.unit.usage.parts import Numbers, new_recorder, record, total
from tests.unit.usage.worker import PAUSE_SECONDS, request

_LOST_SECONDS = 1.0


async def test_a_killed_process_loses_the_last_second_at_most_and_counts_nothing_twice(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    before: Numbers = (0, 0, 0, 0, 0)
    # Each process adds to the rows of the one before, and is killed at another point between two flushes.
    for run, seconds in enumerate((1.45, 1.9, 2.3)):
        log = await _run_and_kill(database_url, tmp_path / f"{run}.log", seconds)
        after = await total(database)
        added = tuple(new - old for new, old in zip(after, before, strict=True))
        counted = added[0]
        # Exactly the first so many requests of the log: nothing twice, nothing out of turn, and never more.
        assert added == _sums(counted)
        assert 0 < counted <= len(log)
        if counted < len(log):
            assert log[-1] - log[counted] <= _LOST_SECONDS + _stood(log)
        before = after


async def _run_and_kill(url: str, path: Path, seconds: float) -> list[float]:
    """Let a worker record for so long, then kill it. Returns when it recorded each request."""
    process = _worker(url, path)
    try:
        deadline = time.monotonic() + 60.0
        while len(moments := _moments(path)) < 2 or moments[-1] - moments[0] < seconds:
            assert process.poll() is None, "the worker ended by itself"
            assert time.monotonic() < deadline, "the worker does not record"
            await asyncio.sleep(0.01)
    finally:
        process.kill()
        process.wait(20)
    return _moments(path)


def _worker(url: str, path: Path) -> Process:
    return start_module("tests.unit.usage.worker", url, str(path))


def _moments(path: Path) -> list[float]:
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == list(range(len(lines)))
    return [float(line.split()[0]) for line in lines]


def _stood(log: list[float]) -> float:
    """For how long in the last two seconds the process did not get on, because the machine was busy elsewhere."""
    last = [moment for moment in log if moment >= log[-1] - 2.0]
    gaps = (later - earlier for earlier, later in pairwise(last))
    return sum(max(0.0, gap - 2 * PAUSE_SECONDS) for gap in gaps)


def _sums(count: int) -> Numbers:
    requests = [request(number) for number in range(count)]
    names = ("units", "failed", "cached", "microseconds")
    return (count, *(sum(int(each[name]) for each in requests) for name in names))


class _Served:
    """A server with the path of the usage, two accounts with a key each, and the recorder behind it."""

    def __init__(self, origin: str, recorder: UsageRecorder, keys: list[str], accounts: list[str]) -> None:
        self.origin = origin
        self.recorder = recorder
        self.keys = keys
        self.accounts = accounts
        self.document: dict[str, Any] = {}

    async def get(self, query: str = "", *, account: int = 0, key: str | None = None) -> httpx.Response:
        secret = self.keys[account] if key is None else key
        headers = {"X-API-Key": secret} if secret else {}
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
            return await client.get(f"{self.origin}/v1/usage{query}", headers=headers)


class _Unrecorded:
    """Keeps the requests of the test itself out of what it counts."""

    def record(self, *_: object, **__: object) -> None:
        """Forget it."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[_Served]:
    clock, metrics = SystemClock(), CollectorRegistry()
    database = Database(DatabaseOptions(url=sqlite_url(tmp_path / "capstan.db")))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        await upgrade(database)
        plans = PlanBook(load_settings(None, {}).plans.get)
        service = AccessService(AccessStore(database), clock, key_limit=plans.key_limit)
        accounts, keys = [], []
        for name, scopes in (("one", None), ("two", [Scope.WEBHOOKS_MANAGE])):
            account = await service.create_account(name=name, plan="enterprise")
            accounts.append(account.id)
            keys.append((await service.create_key(account.id, name=name, mode="test", scopes=scopes)).secret)
        directory = KeyDirectory(AccessStore(database), clock)
        await directory.start()
        stack.push_async_callback(directory.close)
        limiter = MemoryLimiter(clock, DayLedger(DayStore(database), clock, metrics))
        await limiter.start()
        stack.push_async_callback(limiter.close)
        recorder = new_recorder(database, clock)
        await recorder.start()
        stack.push_async_callback(recorder.close)
        admission = Admission(
            directory,
            limiter,
            limits_of=plans.limits_of,
            anonymous_limits=lambda: Limits(1_000, 0, 0),
            price=lambda name: {"rest.control": 1}[name],
        )
        application = build_application(
            usage_routes(UsageStore(database, clock)),
            admission,
            version="0",
            body_limit_bytes=1_000_000,
            cors_origins=(),
        )
        gate = Gate(
            application,
            admission,
            Telemetry(metrics),
            clock,
            addresses=ClientAddress(()),
            request_timeout_seconds=20.0,
            access_log=AccessLog(clock, enabled=False, style="json"),
            request_ids=RequestIds(),
            usage=_Unrecorded(),
        )
        config = uvicorn.Config(gate, host="127.0.0.1", port=0, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.01)
        origin = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        served = _Served(origin, recorder, keys, accounts)
        served.document = complete_document(application, base_url=f"{origin}/v1")
        yield served
        server.should_exit = True
        async with asyncio.timeout(20):
            await serving


async def test_usage_is_told_by_method_and_in_all(served: _Served) -> None:
    account = served.accounts[0]
    days = {_today()}
    for _ in range(3):
        record(served.recorder, account_id=account, microseconds=1_000)
    record(served.recorder, account_id=account, method="eth_getBalance", failed=True, units=0)
    record(served.recorder, account_id=account, method="made_up", cached=True, units=2)
    await served.recorder.flush()
    # Two days, so that midnight during the test does no harm.
    answer = await served.get("?days=2")
    days.add(_today())
    assert answer.status_code == 200
    assert_standard_headers(answer)
    body = answer.json()
    assert body["first_day"] < body["last_day"]
    assert body["last_day"] in days
    assert body["group"] == "method"
    assert body["totals"] == {"requests": 5, "units": 11, "errors": 1, "cached": 1}
    assert [(row["name"], row["requests"], row["units"]) for row in body["rows"]] == [
        ("eth_call", 3, 9),
        ("eth_getBalance", 1, 0),
        ("other", 1, 2),
    ]
    latency = body["rows"][0]["latency_microseconds"]
    assert latency["mean"] == 1_000
    assert 512 <= latency["p50"] <= latency["p95"] <= latency["p99"] <= 1_024


@pytest.mark.parametrize(
    ("group", "names"),
    [("key", ["key_1", "key_2"]), ("network", ["ethereum/mainnet", ""]), ("method", ["eth_call", "other"])],
)
async def test_usage_is_told_by_group(group: str, names: list[str], served: _Served) -> None:
    account = served.accounts[0]
    record(served.recorder, account_id=account)
    record(served.recorder, account_id=account)
    record(served.recorder, account_id=account, key_id="key_2", network="", method="x")
    await served.recorder.flush()
    body = (await served.get(f"?group={group}&days=2")).json()
    assert [row["name"] for row in body["rows"]] == names
    assert [row["requests"] for row in body["rows"]] == [2, 1]


async def test_usage_by_day_names_the_day(served: _Served) -> None:
    days = {_today()}
    record(served.recorder, account_id=served.accounts[0])
    await served.recorder.flush()
    body = (await served.get("?group=day&days=90")).json()
    days.add(_today())
    assert [row["requests"] for row in body["rows"]] == [1]
    assert body["rows"][0]["name"] in days


async def test_no_account_sees_the_usage_of_another(served: _Served) -> None:
    record(served.recorder, account_id=served.accounts[0])
    await served.recorder.flush()
    for group in ("method", "key", "network", "day"):
        answer = await served.get(f"?group={group}&days=90&account={served.accounts[0]}", account=1)
        assert answer.json()["totals"] == {"requests": 0, "units": 0, "errors": 0, "cached": 0}
        assert answer.json()["rows"] == []


async def test_without_a_key_there_is_no_usage(served: _Served) -> None:
    assert_error(await served.get(key=""), 401, "unauthorized")
    assert_error(await served.get(key="svc_test_wrong"), 401, "unauthorized")


@pytest.mark.parametrize("query", ["?days=0", "?days=91", "?days=x", "?days=1.5", "?group=account", "?group="])
async def test_a_wrong_parameter_is_named(query: str, served: _Served) -> None:
    message = assert_error(await served.get(query), 400, "invalid_request")
    assert query[1:].partition("=")[0] in message


async def test_without_parameters_usage_is_that_of_today(served: _Served) -> None:
    body = (await served.get()).json()
    assert body["first_day"] == body["last_day"]
    assert (body["group"], body["rows"]) == ("method", [])


async def test_what_was_recorded_shows_by_itself(served: _Served) -> None:
    record(served.recorder, account_id=served.accounts[0])
    began = time.monotonic()
    while not (await served.get("?days=2")).json()["rows"]:
        assert time.monotonic() - began < 20.0
        await asyncio.sleep(0.05)


async def test_the_path_is_described(served: _Served) -> None:
    operation = served.document["paths"]["/v1/usage"]["get"]
    assert operation["summary"]
    assert operation["description"]
    parameters = {parameter["name"]: parameter for parameter in operation["parameters"]}
    assert set(parameters) == {"days", "group"}
    assert all(parameter["description"] for parameter in parameters.values())
    assert (parameters["days"]["schema"]["minimum"], parameters["days"]["schema"]["maximum"]) == (1, 90)


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


async def test_the_service_records_what_it_answers(start_service: StartService, capstan: RunCapstan) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    service = start_service({"networks": {"ethereum/sepolia": {"upstreams": ["http://127.0.0.1:1"]}}})
    headers = {"X-API-Key": key}
    async with httpx.AsyncClient(base_url=service.base_url, headers=headers, timeout=20, trust_env=False) as client:
        for _ in range(3):
            assert (await client.get("/account")).status_code == 200
        call = {"jsonrpc": "2.0", "id": 1, "method": "eth_gasPrice", "params": []}
        assert (await client.post("/rpc/ethereum/sepolia", json=call)).status_code == 502
        async with asyncio.timeout(20):
            while True:
                rows = {row["name"]: row for row in (await client.get("/usage?days=2")).json()["rows"]}
                if {"GET /v1/account", "eth_gasPrice"} <= set(rows):
                    break
                await asyncio.sleep(0.05)
    assert (rows["GET /v1/account"]["requests"], rows["GET /v1/account"]["units"]) == (3, 3)
    # No upstream answered, which is our fault: it counts as a request that failed and costs nothing.
    assert (rows["eth_gasPrice"]["errors"], rows["eth_gasPrice"]["units"]) == (1, 0)
