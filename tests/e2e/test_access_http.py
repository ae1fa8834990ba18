"""Revocation and suspension while requests are running, on two processes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.support.service import RunCapstan, Service, StartService, run_json

_LIMIT_SECONDS = 1.0
# A machine that stands still for a moment says nothing about the service. One that is late three times does.
_ATTEMPTS = 3
# The load asks more often than an address without a valid key may.
_SETTINGS: dict[str, object] = {"log.access": False, "limits.anonymous_requests_per_second": 1_000_000}


async def _ask_until_refused(service: Service, key: str, refusal: int) -> float:
    """Ask without pause; returns when the refusal first came, having checked that it stays."""
    refused_at = 0.0
    refusals = 0
    async with aiohttp.ClientSession(headers={"X-API-Key": key}) as session:
        while refusals < 50:
            async with session.get(f"{service.base_url}/account") as answer:
                await answer.read()
                if answer.status == refusal:
                    refused_at = refused_at or time.monotonic()
                    refusals += 1
                else:
                    assert answer.status == 200
                    assert not refusals, "a key that was refused worked again"
    return refused_at


async def _act_under_load(services: list[Service], key: str, refusal: int, act: Callable[[], object]) -> float:
    """Run `act` while every process is asked without pause; returns how long the slowest took to notice."""
    load = [asyncio.create_task(_ask_until_refused(service, key, refusal)) for service in services for _ in range(4)]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(act)
    acted_at = time.monotonic()
    async with asyncio.timeout(30):
        return max(await asyncio.gather(*load)) - acted_at


async def _ask_until_answered(service: Service, key: str) -> None:
    async with aiohttp.ClientSession(headers={"X-API-Key": key}) as session, asyncio.timeout(30):
        while True:
            async with session.get(f"{service.base_url}/account") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.05)


async def _shortest(act: Callable[[], Awaitable[float]]) -> float:
    """How long it took, at best, ending with the first time that was short enough."""
    shortest = await act()
    for _ in range(_ATTEMPTS - 1):
        if shortest < _LIMIT_SECONDS:
            break
        shortest = min(shortest, await act())
    return shortest


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_a_revoked_key_fails_within_a_second_on_both_processes(
    dialect: str, request: pytest.FixtureRequest, start_service: StartService, capstan: RunCapstan, tmp_path: Path
) -> None:
    settings = dict(_SETTINGS)
    if dialect == "postgresql":
        settings["storage.url"] = request.getfixturevalue("postgres_database")
        run_json("migrate", settings=settings)
    services = [start_service(settings), start_service(settings)]

    async def revoke() -> float:
        made = await asyncio.to_thread(capstan, "keys", "create", "--plan", "enterprise", settings=settings)
        return await _act_under_load(
            services, made["key"], 401, lambda: capstan("keys", "revoke", made["id"], settings=settings)
        )

    assert await _shortest(revoke) < _LIMIT_SECONDS


async def test_a_suspended_account_is_refused_within_a_second_and_resumes(
    start_service: StartService, capstan: RunCapstan
) -> None:
    made = capstan("keys", "create", "--plan", "enterprise")
    services = [start_service(dict(_SETTINGS)), start_service(dict(_SETTINGS))]
    warned = [any(line.get("event") == "limits_not_shared" for line in service.log) for service in services]
    assert warned == [False, True], "the second process says that limits are not shared"

    async def suspend() -> float:
        took = await _act_under_load(
            services, made["key"], 403, lambda: capstan("accounts", "suspend", made["account"])
        )
        await asyncio.to_thread(capstan, "accounts", "resume", made["account"])
        await asyncio.gather(*(_ask_until_answered(service, made["key"]) for service in services))
        return took

    assert await _shortest(suspend) < _LIMIT_SECONDS


async def test_a_key_made_while_the_service_runs_works_at_once(
    start_service: StartService, capstan: RunCapstan
) -> None:
    service = start_service()
    key = capstan("keys", "create")["key"]
    async with (
        aiohttp.ClientSession(headers={"X-API-Key": key}) as session,
        session.get(f"{service.base_url}/account") as answer,
    ):
        assert answer.status == 200


async def test_no_key_is_ever_written_to_the_log(start_service: StartService, capstan: RunCapstan) -> None:
    key = capstan("keys", "create", "--plan", "enterprise")["key"]
    service = start_service({"log.level": "debug"})
    async with aiohttp.ClientSession(headers={"X-API-Key": key}) as session:
        for path in ("/account", f"/account?apiKey={key}", f"/{key}", "/account/%00"):
            async with session.get(service.base_url + path) as answer:
                await answer.read()
        async with session.get(f"{service.base_url}/account", headers={"X-Request-Id": key}) as answer:
            assert key not in answer.headers["X-Request-Id"]
    service.stop()
    assert key.removeprefix("svc_test_") not in service.log_text
    assert any(line.get("event") == "request" for line in service.log)
