"""The running service with upstreams that break every rule, each beside an honest one and alone.

No wrong answer, no wait beyond the deadline, and bounded memory. Every behaviour has two networks of its own in one
service, so that none of them is out of rotation because of what another did.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.load import question
from tests.support.raw_node import BEHAVIOURS, MEGABYTE, RawNode, floods, raw_nodes

DEADLINE_SECONDS = 2.0
# Above the deadline, for a machine that is busy.
LEEWAY_SECONDS = 3.0
# At once, and in all, beside an honest upstream.
CALLERS, QUESTIONS = 10, 60
# Of an answer no more is read than this, whatever its length; so many callers at once may each hold that much twice.
LARGEST_ANSWER = 4 * MEGABYTE
MOST_GROWTH = 2 * 2 * CALLERS * LARGEST_ANSWER
NETWORK: dict[str, Any] = {
    "chain_id": 31337,
    "kind": "testnet",
    "family": "evm",
    "block_time_ms": 1000,
    "finality_depth": 64,
    "deadline_seconds": DEADLINE_SECONDS,
}
_CALLERS_OF_LARGE_ANSWERS = 30


class Setting:
    """The service, and the node of each behaviour beside an honest one and alone."""

    def __init__(self, gateway: Gateway, beside: dict[str, RawNode], alone: dict[str, RawNode]) -> None:
        self.gateway = gateway
        self.beside = beside
        self.alone = alone
        self.memory_bytes = gateway.memory_bytes()

    def url(self, fault: str, place: str) -> str:
        return f"{self.gateway.service.base_url}/rpc/{fault}/{place}"


@pytest.fixture(scope="module")
def setting(quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with raw_nodes(quiet_devnet.url) as beside, raw_nodes(quiet_devnet.url) as alone:

        def upstream(node: RawNode) -> dict[str, Any]:
            return {
                "name": "bad",
                "url": node.url,
                "timeout_seconds": 0.5,
                "connect_timeout_seconds": 0.5,
                "max_response_bytes": LARGEST_ANSWER,
            }

        honest = {"name": "honest", "url": quiet_devnet.url}
        networks = {
            f"{fault}/{place}": {**NETWORK, "upstreams": upstreams}
            for fault in BEHAVIOURS
            for place, upstreams in (
                ("beside", [upstream(beside[fault]), honest]),
                ("alone", [upstream(alone[fault])]),
            )
        }
        with serving(tmp_path_factory.mktemp("bad"), [quiet_devnet.url], others=networks) as gateway:
            yield Setting(gateway, beside, alone)


async def ask(session: aiohttp.ClientSession, url: str) -> tuple[int, Any, str, float]:
    """One question: status, body, the right answer, and how long it took."""
    call, expected = question()
    began = time.monotonic()
    async with session.post(url, json=call) as answer:
        body = json.loads(await answer.read())
        return answer.status, body, expected, time.monotonic() - began


@pytest.mark.parametrize("fault", BEHAVIOURS)
async def test_beside_an_honest_upstream_nobody_notices(fault: str, setting: Setting) -> None:
    url = setting.url(fault, "beside")
    remaining = iter(range(QUESTIONS))
    async with aiohttp.ClientSession(headers=setting.gateway.headers) as session, asyncio.timeout(60):

        async def caller() -> None:
            for _ in remaining:
                status, body, expected, seconds = await ask(session, url)
                assert (status, body.get("result")) == (200, expected), body
                assert seconds < DEADLINE_SECONDS + LEEWAY_SECONDS

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    assert setting.beside[fault].calls, "the bad upstream was never asked"


@pytest.mark.parametrize("fault", BEHAVIOURS)
async def test_alone_it_is_an_error_and_never_a_wrong_answer(fault: str, setting: Setting) -> None:
    url = setting.url(fault, "alone")
    async with aiohttp.ClientSession(headers=setting.gateway.headers) as session, asyncio.timeout(60):
        answers = await asyncio.gather(*(ask(session, url) for _ in range(CALLERS)))
    for status, body, expected, seconds in answers:
        assert seconds < DEADLINE_SECONDS + LEEWAY_SECONDS
        if status == 200:
            assert fault == "closes-at-random", body
            assert body["result"] == expected
        else:
            assert status == body["error"]["status"]
            assert (status, body["error"]["code"]) in ((502, "upstream_error"), (504, "upstream_timeout"))
    assert setting.alone[fault].calls


async def test_afterwards_the_service_is_well_and_no_larger(setting: Setting) -> None:
    async with aiohttp.ClientSession(headers=setting.gateway.headers) as session:
        status, body, expected, _ = await ask(session, setting.gateway.url)
        assert (status, body["result"]) == (200, expected)
    assert [line for line in setting.gateway.service.log if line.get("level") in ("error", "critical")] == []
    assert setting.gateway.most_memory_bytes() - setting.memory_bytes < MOST_GROWTH


async def test_many_answers_of_fifty_megabytes_at_once_do_not_add_up(quiet_devnet: EvmDevnet, tmp_path: Path) -> None:
    """With the default limits: 64 connections to an upstream, 64 MiB for an answer."""
    with (
        raw_nodes(quiet_devnet.url, {"flood": floods}) as nodes,
        serving(tmp_path, [nodes["flood"].url], deadline_seconds=5) as gateway,
    ):
        async with aiohttp.ClientSession(headers=gateway.headers) as session, asyncio.timeout(60):
            answers = await asyncio.gather(*(ask(session, gateway.url) for _ in range(_CALLERS_OF_LARGE_ANSWERS)))
        assert {status for status, *_ in answers} <= {502, 504}
        assert gateway.most_memory_bytes() < 800 * MEGABYTE
