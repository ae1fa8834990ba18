"""One leader at a time, on SQLite and PostgreSQL: leases, fencing, and what a leader that slept can still write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from capstan.chain.follower.models import Reverted
from capstan.core.clock import SystemClock
from capstan.storage.database import Database
from capstan.stream.lease import LeaseLost, LeaseStore
from tests.support.durable import Journal, caught_up, check, count, create_tables, durable
from tests.support.stream_nodes import StreamNode, World, grow, until


async def test_one_of_several_leads_and_another_takes_over(database: Database) -> None:
    await create_tables(database)
    node = StreamNode("one", grow([], 30))
    worlds = [World(node), World(node), World(node)]
    streams = [durable(world, database, Journal(), holder=f"p{place}") for place, world in enumerate(worlds)]
    for stream in streams:
        stream.start()
    try:
        for _ in range(3):
            await until(lambda: any(stream.leading for stream in streams), what="a leader")
            leader = next(stream for stream in streams if stream.leading)
            assert sum(stream.leading for stream in streams) == 1
            node.adopt(grow(node.chain, 5))
            await caught_up(worlds[streams.index(leader)], leader)
            if len([stream for stream in streams if stream._task is not None]) > 1:
                await leader.close()
    finally:
        for stream in streams:
            await stream.close()
        for world in worlds:
            await world.close()
    await check(database, node.chain)


async def test_a_leader_that_slept_through_its_time_cannot_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_tables(database)
    node = StreamNode("one", grow([], 30))
    sleeps, wakes = asyncio.Event(), asyncio.Event()
    # It decides what to write, then loses its lease before the transaction begins.
    sleeper, other = World(node), World(node)
    asleep = durable(sleeper, database, Journal(), holder="sleeper")
    write: Callable[..., Awaitable[None]] = asleep._write

    async def delayed(*arguments: Any) -> None:
        # A revert: written twice, it would break no rule of the tables. Only the token can keep it out.
        if isinstance(arguments[1], Reverted) and not sleeps.is_set():
            sleeps.set()
            await wakes.wait()
        await write(*arguments)

    monkeypatch.setattr(asleep, "_write", delayed)
    # A process that is paused does not renew either.
    monkeypatch.setattr(asleep, "_renew", _never)
    awake = durable(other, database, Journal(), holder="other")
    asleep.start()
    try:
        await caught_up(sleeper, asleep)
        node.adopt(grow(node.chain[:-3], 6, branch=1))
        await sleeper.poll(times=3)
        await asyncio.wait_for(sleeps.wait(), 20)
        awake.start()
        await caught_up(other, awake)
        written = await count(database)
        wakes.set()
        await until(lambda: not asleep.leading, what="the end of the first leader")
        assert await count(database) == written
    finally:
        await asleep.close()
        await awake.close()
        await sleeper.close()
        await other.close()
    await check(database, node.chain)


async def test_a_lease_is_renewed_lost_and_released(database: Database) -> None:
    one = LeaseStore(database, "one", SystemClock(), seconds=0.3)
    two = LeaseStore(database, "two", SystemClock(), seconds=0.3)
    first = await one.acquire("x")
    assert first is not None
    assert await two.acquire("x") is None
    await one.renew(first)

    async def taken() -> bool:
        return await two.acquire("x") is not None

    await until(taken, what="the end of the lease")
    with pytest.raises(LeaseLost):
        await one.renew(first)
    with pytest.raises(LeaseLost):
        async with database.write() as connection:
            await one.check(connection, first)
    second = await two.acquire("x")
    assert second is not None
    assert second.token > first.token
    await two.release(second)
    assert await one.acquire("x") is not None


async def test_only_one_of_many_gets_a_new_lease(database: Database) -> None:
    stores = [LeaseStore(database, f"p{number}", SystemClock(), seconds=30.0) for number in range(8)]
    leases = await asyncio.gather(*(store.acquire("y") for store in stores))
    assert len([lease for lease in leases if lease is not None]) == 1


async def _never(_lease: object) -> None:
    await asyncio.Event().wait()


async def test_a_process_that_is_alone_need_not_wait_for_the_dead(database: Database) -> None:
    """The holder was killed; its token still cannot write once the lease is taken over."""
    dead, alone = (LeaseStore(database, name, SystemClock(), seconds=3600) for name in ("dead", "alone"))
    held = await dead.acquire("ethereum/devnet index")
    assert held is not None
    assert await alone.acquire(held.name) is None
    await alone.release_all()
    taken = await alone.acquire(held.name)
    assert taken is not None
    async with database.read() as connection:
        await alone.check(connection, taken)
    with pytest.raises(LeaseLost):
        await dead.renew(held)
