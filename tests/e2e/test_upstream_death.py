"""The running service with three upstreams that are killed and frozen: relays before one real node, each a process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.devnet import EvmDevnet
from tests.support.gateway import NETWORK, Gateway, serving
from tests.support.http import assert_error
from tests.support.load import question, under_load
from tests.support.relay import Relay, relays

# What is promised: an upstream that dies is out of rotation within two seconds.
OUT_OF_ROTATION_SECONDS = 2.0
DEADLINE_SECONDS = 3.0
# Above the deadline, for a machine that is busy.
LEEWAY_SECONDS = 3.0
IN_ROTATION, OUT = 0.0, 2.0


class Setting:
    """Three relays behind one service."""

    def __init__(self, gateway: Gateway, nodes: list[Relay]) -> None:
        self.gateway = gateway
        self.relays = nodes

    def breaker(self, relay: Relay) -> float | None:
        return self.gateway.metric("capstan_upstream_breaker", network=NETWORK, upstream=relay.name)

    def calls(self, relay: Relay) -> float:
        return self.gateway.metric("capstan_upstream_calls", upstream=relay.name, outcome="ok") or 0.0


@pytest.fixture(scope="module")
def setting(quiet_devnet: EvmDevnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with relays(quiet_devnet.url, 3) as nodes:
        upstreams = [relay.upstream() for relay in nodes]
        directory = tmp_path_factory.mktemp("three")
        with serving(directory, upstreams, deadline_seconds=DEADLINE_SECONDS) as gateway:
            yield Setting(gateway, nodes)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what the service says of itself. It is asked in a thread, so that the load goes on."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)


async def everything_works(setting: Setting) -> None:
    """All three are in rotation again and answer."""

    def ready() -> bool:
        call, expected = question()
        return setting.gateway.node.reply(call).get("result") == expected and all(
            setting.breaker(relay) == IN_ROTATION for relay in setting.relays
        )

    await until(ready)


async def test_killing_one_of_three_under_load_is_no_clients_error_and_it_comes_back(setting: Setting) -> None:
    victim = setting.relays[1]
    await everything_works(setting)
    async with under_load(setting.gateway.url, setting.gateway.headers) as load:
        await load.more(200)
        assert all(setting.calls(relay) > 0 for relay in setting.relays)
        victim.kill()
        await until(lambda: setting.breaker(victim) == OUT, OUT_OF_ROTATION_SECONDS)
        await load.more(300)
        assert [setting.breaker(relay) for relay in setting.relays] == [IN_ROTATION, OUT, IN_ROTATION]
        victim.start()
        await until(lambda: setting.breaker(victim) == IN_ROTATION)
        before = setting.calls(victim)
        await until(lambda: setting.calls(victim) >= before + 50)


async def test_freezing_one_of_three_under_load_is_no_clients_error_and_it_comes_back(setting: Setting) -> None:
    victim = setting.relays[2]
    await everything_works(setting)
    async with under_load(setting.gateway.url, setting.gateway.headers) as load:
        await load.more(200)
        victim.freeze()
        try:
            await load.more(300)
        finally:
            victim.thaw()
        await load.more(100)
    await everything_works(setting)


async def test_all_dead_is_a_502_within_the_deadline_and_recovery_is_automatic(setting: Setting) -> None:
    await everything_works(setting)
    chain = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}
    known = setting.gateway.node.reply(chain)
    for relay in setting.relays:
        relay.kill()
    try:
        body = json.dumps(question()[0]).encode()
        began = time.monotonic()
        answer = setting.gateway.post(body)
        message = assert_error(answer, 502, "upstream_error")
        assert answer.headers["x-request-id"] in message
        batch = setting.gateway.post(b"[" + b",".join([body] * 3) + b"]")
        assert time.monotonic() - began < 2 * DEADLINE_SECONDS + LEEWAY_SECONDS
        assert batch.status_code == 200
        assert [item["error"]["code"] for item in batch.json()] == [-32603] * 3
        # What never changes is still known, and told.
        assert setting.gateway.node.reply(chain) == known
    finally:
        for relay in setting.relays:
            relay.start()
    await everything_works(setting)


async def test_all_frozen_is_an_error_within_the_deadline_and_recovery_is_automatic(setting: Setting) -> None:
    await everything_works(setting)
    for relay in setting.relays:
        relay.freeze()
    try:
        began = time.monotonic()
        answer = setting.gateway.post(json.dumps(question()[0]).encode())
        assert time.monotonic() - began < DEADLINE_SECONDS + LEEWAY_SECONDS
        assert_error(answer, 504, "upstream_timeout")
    finally:
        for relay in setting.relays:
            relay.thaw()
    await everything_works(setting)
