"""The durable stream on SQLite and PostgreSQL: exactly once, whatever happens to the chain or to the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.errors import ChainError, NodeError
from capstan.chain.follower.models import Delta
from capstan.chain.heads.source import HeadOptions
from capstan.storage.database import Database
from capstan.storage.schema import applied_blocks, cursors
from tests.support.durable import Journal, caught_up, check, count, create_tables, durable, read_trace, replayed
from tests.support.forks import Process, start_module
from tests.support.stream_nodes import Made, StreamNode, World, grow, stream_spec, until


class ServedNode:
    """A scripted node over real HTTP, for a process of its own to read from."""

    def __init__(self, chain: list[Made]) -> None:
        self.node = StreamNode("served", chain)
        application = web.Application()
        application.router.add_post("/", self._serve)
        self.server = TestServer(application)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/"))

    async def _serve(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        answers = [await self._answer(call) for call in (body if isinstance(body, list) else [body])]
        return web.json_response(answers if isinstance(body, list) else answers[0])

    async def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        try:
            result = await self.node.call(call["method"], msgspec.json.encode(call["params"]), timeout=30.0)
        except NodeError as error:
            return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": error.code, "message": error.message}}
        except ChainError:
            raise web.HTTPServiceUnavailable from None
        return {"jsonrpc": "2.0", "id": call["id"], "result": msgspec.json.decode(result)}


@asynccontextmanager
async def carrier(database_url: str, node_url: str, log: Path, death: str = "never") -> AsyncIterator[Process]:
    """A process that carries the stream, killed at the end if it still lives. What it says is in `log`."""
    with log.open("wb") as output:
        arguments = (database_url, node_url, death)
        process = start_module("tests.support.durable", *arguments, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 20)


class Rewriter:
    """Lets the chain grow and fork while others read it."""

    def __init__(self, node: StreamNode, random: Random) -> None:
        self.node = node
        self._random = random
        self._branch = 0

    def once(self) -> None:
        chain = self.node.chain
        if self._random.random() < 0.25 and len(chain) > 40:
            depth = self._random.randint(1, 20)
            self._branch += 1
            chain = grow(chain[:-depth], depth + self._random.randint(1, 3), branch=self._branch)
        else:
            chain = grow(chain, self._random.choice([1, 1, 2, 6]), branch=self._branch)
        self.node.adopt(chain)
        if self._random.random() < 0.3:
            self.node.forget_orphans()

    async def run(self) -> None:
        while True:
            self.once()
            await asyncio.sleep(0.1)


async def at_cursor(database: Database) -> str | None:
    async with database.read() as connection:
        return await connection.scalar(select(cursors.c.hash))


async def test_killed_at_any_instant_it_resumes_without_gap_or_repetition(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await create_tables(database)
    random, log = Random(1), tmp_path / "process.log"
    served = ServedNode(grow([], 40))
    rewriter = Rewriter(served.node, random)
    await served.server.start_server()
    try:
        for place in ("before", "inside", "after"):
            rewriting = asyncio.create_task(rewriter.run())
            async with carrier(database_url, served.url, log, f"{place}:{random.randint(2, 30)}") as process:
                assert await asyncio.to_thread(process.wait, 120) == -signal.SIGKILL, log.read_text()[-2000:]
            rewriting.cancel()
            replayed((await read_trace(database))[0])
            # While nobody looks, the chain goes on, and may leave what was written.
            for _ in range(random.randint(0, 12)):
                rewriter.once()
        # And at an instant that nobody has chosen.
        for _ in range(2):
            rewriting = asyncio.create_task(rewriter.run())
            enough = await count(database) + random.randint(1, 25)
            async with carrier(database_url, served.url, log) as process:
                await until(partial(_grown, database, enough), seconds=120, what="new blocks")
                process.kill()
            rewriting.cancel()
            replayed((await read_trace(database))[0])
        async with carrier(database_url, served.url, log):
            await until(lambda: _at(database, served.node), seconds=120, what="the head")
        await check(database, served.node.chain)
    finally:
        await served.server.close()


async def _grown(database: Database, rows: int) -> bool:
    return await count(database) >= rows


async def _at(database: Database, node: StreamNode) -> bool:
    return await at_cursor(database) == node.chain[-1].hash


async def test_rows_and_cursor_follow_reorganisations(database: Database) -> None:
    await create_tables(database)
    node = StreamNode("one", grow([], 30))
    world = World(node)
    stream = durable(world, database, Journal())
    stream.start()
    try:
        for depth in range(1, 21):
            node.adopt(grow(node.chain[:-depth], depth + 2, branch=depth))
            node.forget_orphans()
            await caught_up(world, stream)
    finally:
        await stream.close()
        await world.close()
    await check(database, node.chain)


async def test_it_resumes_on_another_branch(database: Database) -> None:
    await create_tables(database)
    node = StreamNode("one", grow([], 50))
    for branch in range(3):
        world = World(node)
        stream = durable(world, database, Journal())
        stream.start()
        try:
            await caught_up(world, stream)
        finally:
            await stream.close()
            await world.close()
        await check(database, node.chain)
        node.adopt(grow(node.chain[:-7], 12, branch=branch + 1))
        node.forget_orphans()


async def test_an_upstream_that_lags_after_a_restart_takes_nothing_back(database: Database) -> None:
    await create_tables(database)
    node = StreamNode("one", grow([], 50))
    whole = node.chain
    world = World(node)
    stream = durable(world, database, Journal())
    stream.start()
    await caught_up(world, stream)
    await stream.close()
    await world.close()
    before = await read_trace(database)
    node.adopt(whole[:-6])
    world = World(node)
    stream = durable(world, database, Journal())
    stream.start()
    try:
        await world.poll(times=2)
        await until(lambda: stream.leading, what="the leader")
        await world.poll(times=3)
        assert await read_trace(database) == before
        for length in range(len(whole) - 5, len(whole) + 1):
            node.adopt(whole[:length])
            await world.poll(times=2)
        assert await read_trace(database) == before
        node.adopt(grow(whole, 2))
        await caught_up(world, stream)
    finally:
        await stream.close()
        await world.close()
    await check(database, node.chain)
    assert len((await read_trace(database))[0]) == len(before[0]) + 2


async def test_blocks_that_are_final_are_no_longer_kept(database: Database) -> None:
    await create_tables(database)
    node = StreamNode("one", grow([], 60))
    world = World(node, heads=HeadOptions(finality_tags=False, finality_depth=10))
    stream = durable(world, database, Journal())
    stream.start()
    try:
        await caught_up(world, stream)
        node.adopt(grow(node.chain, 3))
        await caught_up(world, stream)
    finally:
        await stream.close()
        await world.close()
    async with database.read() as connection:
        numbers = list(await connection.scalars(select(applied_blocks.c.number).order_by(applied_blocks.c.number)))
    assert numbers == list(range(53, 63))


async def test_after_a_restart_a_branch_below_finality_stops_the_network(database: Database) -> None:
    await create_tables(database)
    heads = HeadOptions(finality_tags=False, finality_depth=10)
    node = StreamNode("one", grow([], 60))
    world = World(node, heads=heads)
    stream = durable(world, database, Journal())
    stream.start()
    await caught_up(world, stream)
    await stream.close()
    await world.close()
    before = await read_trace(database)
    # While nobody looked, the chain was replaced far below what was final.
    node.adopt(grow(node.chain[:30], 60, branch=1))
    world = World(node, heads=heads)
    stream = durable(world, database, Journal())
    stream.start()
    try:

        async def stopped() -> bool:
            await world.poll()
            return stream.halted is not None

        await until(stopped, what="the halt")
        assert "final" in (stream.halted or "")
    finally:
        await stream.close()
        await world.close()
    deltas, rows = await read_trace(database)
    final = 59 - 10
    assert deltas[: len(before[0])] == before[0]
    assert all(number > final for _, number, _, _ in deltas[len(before[0]) :]), "a final block was taken back"
    assert rows <= before[1]


async def test_a_development_chain_that_begins_anew_is_forgotten(database: Database) -> None:
    await create_tables(database)
    spec = stream_spec(dev_methods=True, finality_depth=64)
    node = StreamNode("one", grow([], 150))
    world = World(node, spec=spec)
    stream = durable(world, database, Journal())
    stream.start()
    await caught_up(world, stream)
    await stream.close()
    await world.close()
    node.adopt(grow([], 20, branch=9))
    node.forget_orphans()
    world = World(node, spec=spec)
    consumer = Journal()
    stream = durable(world, database, consumer)
    stream.start()
    try:
        await caught_up(world, stream)
    finally:
        await stream.close()
        await world.close()
    await check(database, node.chain)


async def test_a_consumer_that_fails_leaves_nothing_and_is_asked_again(database: Database) -> None:
    await create_tables(database)
    failures = 3

    class Failing(Journal):
        async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
            nonlocal failures
            await super().apply(connection, delta)
            if delta.block.number == 20 and failures:
                failures -= 1
                raise RuntimeError("a mistake of the consumer")

    node = StreamNode("one", grow([], 30))
    world = World(node)
    stream = durable(world, database, Failing())
    stream.start()
    try:
        await caught_up(world, stream)
    finally:
        await stream.close()
        await world.close()
    assert failures == 0
    await check(database, node.chain)
