"""The tiers outside the process: a file and Redis. Real ones, damaged, too small, slow or away."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from capstan.core.clock import ManualClock
from capstan.rpc.cache.bloom import BloomFilter
from capstan.rpc.cache.layered import LayeredTier
from capstan.rpc.cache.persistent import PersistentLimits, PersistentTier, digest_of
from capstan.rpc.cache.remote import RemoteLimits, RemoteTier
from tests.support.servers import ValkeyProcess


@asynccontextmanager
async def opened(path: Path, **limits: Any) -> AsyncIterator[PersistentTier]:
    tier = PersistentTier(path, PersistentLimits(**limits))
    await tier.open()
    try:
        yield tier
    finally:
        await tier.close()


async def test_answers_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rpc-cache.db"
    async with opened(path) as tier:
        tier.put(b"key", b"value")
        assert await tier.get(b"key") == b"value"
    async with opened(path) as tier:
        assert tier.may_have(b"key")
        assert not tier.may_have(b"other")
        assert await tier.get(b"key") == b"value"
        assert await tier.get(b"other") is None


async def test_the_file_is_bounded_and_what_was_not_used_leaves_first(tmp_path: Path) -> None:
    path = tmp_path / "rpc-cache.db"
    async with opened(path, max_bytes=200_000) as tier:
        tier.put(b"used", b"x" * 1000)
        for number in range(400):
            tier.put(b"%d" % number, b"x" * 1000)
            if number % 20 == 19:
                await tier.flush()
                assert await tier.get(b"used") is not None
        assert await tier.get(b"used") is not None
        assert await tier.get(b"399") is not None
        assert await tier.get(b"1") is None
        assert tier._file.total_bytes <= 200_000
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT sum(size) FROM answers").fetchone()[0] <= 200_000
    connection.close()
    assert path.stat().st_size < 500_000


async def test_what_does_not_fit_into_the_queue_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path / "c.db", max_queued=3, max_queued_bytes=100, max_value_bytes=60) as tier:
        tier.put(b"large", b"x" * 61)
        tier.put(b"a", b"x" * 50)
        tier.put(b"b", b"x" * 60)
        assert tier.left_out == 1
        for key in (b"c", b"d", b"e"):
            tier.put(key, b"")
        assert tier.left_out == 2
        await tier.flush()
        tier.put(b"b", b"x" * 60)
        assert await tier.get(b"b") == b"x" * 60
        assert await tier.get(b"large") is None


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_a_damaged_file_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(damage)
    async with opened(path) as tier:
        tier.put(b"key", b"value")
        await tier.flush()
        assert await tier.get(b"key") == b"value"


async def test_damage_while_running_costs_the_contents_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with opened(path) as tier:
        for number in range(200):
            tier.put(b"%d" % number, b"x" * 2000)
        await tier.flush()
        tier._file._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]  # it is open
        tier._file.close()
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xa5" * (len(content) - 4096)
        path.write_bytes(content)
        for number in range(200):
            await tier.get(b"%d" % number)
        tier.put(b"new", b"value")
        await tier.flush()
        assert await tier.get(b"new") == b"value"


async def test_a_file_of_another_version_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE answers (something TEXT)")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    async with opened(path) as tier:
        tier.put(b"key", b"value")
        await tier.flush()
        assert await tier.get(b"key") == b"value"


async def test_a_place_that_cannot_be_written_switches_the_tier_off(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    async with opened(blocked / "c.db") as tier:
        tier.put(b"key", b"value")
        assert not tier.may_have(b"key")
        assert await tier.get(b"key") is None


async def test_queued_answers_are_written_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with opened(path, write_every_seconds=0.01) as tier:
        tier.put(b"key", b"value")
        reader = sqlite3.connect(path)
        async with asyncio.timeout(10):
            while not reader.execute("SELECT count(*) FROM answers").fetchone()[0]:
                await asyncio.sleep(0.01)
        reader.close()


def test_the_filter_never_denies_what_it_holds_and_seldom_affirms_what_it_does_not() -> None:
    held = BloomFilter(10_000)
    digests = [digest_of(b"%d" % number) for number in range(1000)]
    for digest in digests:
        held.add(digest)
    assert all(digest in held for digest in digests)
    wrong = sum(digest_of(b"x%d" % number) in held for number in range(1000))
    assert wrong < 50


# --- Redis


async def test_redis_keeps_answers_with_an_expiry(valkey_url: str) -> None:
    client = Redis.from_url(valkey_url)
    tier = RemoteTier(client, ManualClock(), prefix=b"test-rpc-cache:", limits=RemoteLimits(max_value_bytes=100))
    tier.put(b"key", b"value")
    tier.put(b"large", b"x" * 101)
    await tier.close()
    assert await tier.get(b"key") == b"value"
    assert await tier.get(b"large") is None
    assert await tier.get(b"other") is None
    remaining = await client.ttl(b"test-rpc-cache:" + digest_of(b"key"))
    assert 0 < remaining <= RemoteLimits().expire_seconds
    await client.aclose()


async def test_a_redis_that_is_away_is_a_miss_and_is_left_alone_for_a_moment(valkey_server: ValkeyProcess) -> None:
    clock = ManualClock()
    client = Redis.from_url(valkey_server.url)
    tier = RemoteTier(client, clock)
    tier.put(b"key", b"value")
    await tier.flush()
    valkey_server.stop()
    assert await tier.get(b"key") is None
    assert not tier.may_have(b"key")
    tier.put(b"key", b"value")
    valkey_server.start()
    clock.advance(5.0)
    assert tier.may_have(b"key")
    tier.put(b"key", b"value")
    await tier.close()
    assert await tier.get(b"key") == b"value"
    await client.aclose()


async def test_the_queue_to_redis_is_bounded(valkey_url: str) -> None:
    client = Redis.from_url(valkey_url)
    tier = RemoteTier(client, ManualClock(), prefix=b"test-rpc-cache-queue:", limits=RemoteLimits(max_queued=10))
    for number in range(30):
        tier.put(b"%d" % number, b"value")
    assert tier.left_out == 20
    await tier.close()
    assert await tier.get(b"9") == b"value"
    await client.aclose()


class Shelf:
    """A tier in memory that can be away."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.asked = 0
        self.away = False

    def may_have(self, key: bytes) -> bool:
        return not self.away

    async def get(self, key: bytes) -> bytes | None:
        self.asked += 1
        return self.kept.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.kept[key] = value

    async def close(self) -> None:
        self.away = True


async def test_two_tiers_are_one() -> None:
    near, far = Shelf(), Shelf()
    tier = LayeredTier(near, far)
    tier.put(b"a", b"1")
    assert (near.kept, far.kept) == ({b"a": b"1"}, {b"a": b"1"})
    assert await tier.get(b"a") == b"1"
    assert far.asked == 0
    # What only the far one has is near from then on.
    far.kept[b"b"] = b"2"
    assert [await tier.get(b"b"), await tier.get(b"b")] == [b"2", b"2"]
    assert far.asked == 1
    assert await tier.get(b"c") is None
    far.away = True
    assert await tier.get(b"d") is None
    assert far.asked == 2
    assert tier.may_have(b"d")
    await tier.close()
    assert not tier.may_have(b"a")
