"""All sockets of a process: their bounds, and what ends them from outside."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import msgspec
import pytest

from capstan.access.models import Caller
from capstan.core.errors import RateLimited, Unavailable
from capstan.feed.metrics import FeedCollector
from capstan.feed.service import FeedService
from capstan.feed.session import Session
from tests.support.feed import Feed, KeptSocket, ScriptedStream, block_at, caller, subscribe

DIGEST = b"digest"


class _Spec:
    family = "evm"


class _Network:
    def __init__(self, name: str = "ethereum/devnet") -> None:
        self.name = name
        self.spec = _Spec()


class ScriptedKeys:
    """Keys that the test changes."""

    def __init__(self) -> None:
        self.found: Caller | None = caller()
        self.failures = 0
        self.changed: Callable[[Collection[str] | None], None] = lambda _: None

    def on_change(self, callback: Callable[[Collection[str] | None], None]) -> None:
        self.changed = callback

    async def find_digest(self, key_digest: bytes) -> Caller | None:
        assert key_digest == DIGEST
        if self.failures:
            self.failures -= 1
            raise OSError("the database is away")
        return self.found


class Setting:
    """A feed service with a stream for each network."""

    def __init__(self, **limits: Any) -> None:
        self.parts = Feed(**limits)
        self.keys = ScriptedKeys()
        self.streams: dict[str, ScriptedStream] = {"ethereum/devnet": self.parts.stream}
        self.service = FeedService(
            self.parts.around,
            self.keys,
            stream_of=lambda name: self.streams[name],
            head_of=lambda _: self.parts.stream.head_number(),
            idle_seconds=3600.0,
        )

    def open(self, network: Any = None, who: Caller | None = None) -> tuple[KeptSocket, Session]:
        socket = KeptSocket()
        known: Any = network or _Network()
        session = self.service.open(socket, who or caller(), DIGEST, known)
        socket.session = session
        return socket, session


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    made = Setting(sockets=3, sockets_per_key=2)
    made.service.start()
    yield made
    await made.service.close()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_sockets_are_bounded_for_a_key_and_in_all(setting: Setting) -> None:
    first, _ = setting.open()
    setting.open()
    with pytest.raises(RateLimited, match="2 sockets"):
        setting.open()
    other = msgspec.structs.replace(caller(), key_id="key_2", account_id="acc_2")
    setting.open(who=other)
    with pytest.raises(Unavailable):
        setting.open(who=msgspec.structs.replace(caller(), key_id="key_3"))
    first.close(1000, "")
    setting.open()
    assert len(setting.service.sessions) == 3


async def test_a_revoked_key_closes_its_sockets_and_no_others(setting: Setting) -> None:
    mine, _ = setting.open()
    other = msgspec.structs.replace(caller(), key_id="key_2", account_id="acc_2")
    others, _ = setting.open(who=other)
    setting.keys.found = None
    setting.keys.changed(["acc_1", "acc_9"])
    await settle()
    assert mine.close_code() == 4401
    assert others.close_code() is None
    setting.keys.changed(None)
    await settle()
    assert others.close_code() == 4401
    assert not setting.service.sessions


async def test_a_suspended_account_is_closed_and_a_changed_plan_is_taken_over(setting: Setting) -> None:
    socket, session = setting.open()
    setting.keys.found = msgspec.structs.replace(caller(), plan="growth")
    setting.keys.changed(["acc_1"])
    await settle()
    assert session.caller.plan == "growth"
    setting.keys.found = msgspec.structs.replace(caller(), suspended=True)
    setting.keys.changed(["acc_1"])
    await settle()
    assert socket.close_code() == 4401


async def test_a_key_is_asked_for_again_when_the_database_was_away(setting: Setting) -> None:
    socket, _ = setting.open()
    setting.keys.found = None
    setting.keys.failures = 2
    setting.keys.changed(["acc_1"])
    async with asyncio.timeout(10):
        while socket.close_code() is None:
            await asyncio.sleep(0.05)
    assert socket.close_code() == 4401


async def test_a_network_that_is_gone_or_built_anew_ends_its_sockets(setting: Setting) -> None:
    kept, kept_session = setting.open()
    setting.streams["ethereum/other"] = ScriptedStream()
    gone, _ = setting.open(_Network("ethereum/other"))
    again: Any = _Network()
    setting.service.networks_changed(lambda name: again if name == "ethereum/devnet" else None)
    assert gone.close_code() == 4404
    assert kept.close_code() is None
    assert kept_session.network is again
    setting.streams["ethereum/devnet"] = ScriptedStream()
    setting.service.networks_changed(lambda name: again)
    assert kept.close_code() == 1012


async def test_subscribers_of_a_stream_that_stops_are_told(setting: Setting) -> None:
    subscribed, session = setting.open()
    other, _ = setting.open()
    subscribe(session, "newHeads")
    setting.parts.stream.halted = "block 7 is final and was taken back"
    async with asyncio.timeout(10):
        while subscribed.close_code() is None:
            await asyncio.sleep(0.05)
    assert subscribed.close_code() == 1011
    assert "block 7" in str(subscribed.closed)
    assert other.close_code() is None


async def test_a_socket_that_nobody_uses_is_closed_and_one_with_subscriptions_stays(setting: Setting) -> None:
    idle, session = setting.open()
    busy, busy_session = setting.open()
    subscribe(busy_session, "newHeads")
    session.last_used = busy_session.last_used = setting.parts.around.clock.monotonic() - 4_000
    setting.service._close_idle()
    assert idle.close_code() == 1000
    assert busy.close_code() is None


async def test_the_metrics_count_sockets_subscriptions_and_pushes(setting: Setting) -> None:
    _, session = setting.open()
    subscribe(session, "newHeads")
    setting.parts.stream.apply(block_at(1))
    await setting.parts.meter.settle()
    samples = {
        (sample.name, sample.labels.get("kind")): sample.value
        for metric in FeedCollector(setting.service).collect()
        for sample in metric.samples
    }
    assert samples["capstan_feed_sockets", None] == 1
    assert samples["capstan_feed_pushed_total", None] == 1
    assert samples["capstan_feed_subscriptions", "newHeads"] == 1
    assert samples["capstan_feed_subscriptions", "logs"] == 0


async def test_closing_the_service_says_1001() -> None:
    made = Setting()
    made.service.start()
    socket, _ = made.open()
    await made.service.close()
    assert socket.close_code() == 1001
