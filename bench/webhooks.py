"""Deliveries per second with everything written down, beside a bare loop of POSTs, and the matching of a full block.

Both send the same bodies to the same receiver, a process of its own on loopback; the ratio is what counts. Ours claims,
signs, sends, and writes results and attempts to SQLite. Then events come at a steady rate, once with a dead endpoint
among the hundred and once without: how long they take from the database to the receiver. Prints JSON.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from sqlalchemy import func, insert, select, update

from capstan.access.models import Account, Overrides
from capstan.access.store import AccessStore
from capstan.chain.follower.models import Block, Log
from capstan.core.clock import SystemClock, utc
from capstan.index.events import TRANSFER
from capstan.outbound.client import GuardedClient
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from capstan.storage.migrate import upgrade
from capstan.storage.webhook_schema import webhook_events, webhook_lanes
from capstan.webhooks.delivery.hosts import Hosts
from capstan.webhooks.delivery.lookups import KnownTokens, Lookups
from capstan.webhooks.delivery.quota import Quota
from capstan.webhooks.delivery.sender import Sender
from capstan.webhooks.delivery.store import DeliveryStore
from capstan.webhooks.delivery.worker import Deliverer, DeliveryOptions
from capstan.webhooks.filters import Filters
from capstan.webhooks.kinds import EVENT_TYPES
from capstan.webhooks.matching import Matcher
from capstan.webhooks.models import Webhook
from capstan.webhooks.payloads import Place, TokenFacts
from capstan.webhooks.sealing import Seal, new_signing_secret
from capstan.webhooks.store import WebhookStore
from capstan.webhooks.subscriptions import Subscription, Subscriptions

NETWORK = "ethereum/devnet"
WEBHOOKS = 100
EVENTS = 4_000
BODY = msgspec.json.encode({"id": "evt_0000000000000000000000", "event_type": "log", "data": {"data": "x" * 400}})
SECONDS = 120.0
# Events that come at a steady rate, per second, and how many are written with one block.
RATE = 500
BATCH = 100
BATCHES = 30


def receive(port: Any) -> None:
    """The receiver's process."""

    moments: list[float] = []

    async def hook(request: web.Request) -> web.Response:
        sent = msgspec.json.decode(await request.read()).get("sent")
        if sent is not None:
            moments.append(time.monotonic() - sent)
        return web.Response(text="ok")

    async def told(_request: web.Request) -> web.Response:
        taken, moments[:] = list(moments), []
        return web.json_response(taken)

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/{name}", hook)
        application.router.add_get("/moments", told)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.value = runner.addresses[0][1]
        await asyncio.Event().wait()

    asyncio.run(run())


async def bare(url: str) -> float:
    """POSTs per second of processor time of a loop that does nothing else, as wide as ours."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit_per_host=8)) as session:

        async def one(share: int) -> None:
            for _ in range(share):
                async with session.post(url, data=BODY) as answer:
                    await answer.read()

        started = time.process_time()
        await asyncio.gather(*(one(EVENTS // 8) for _ in range(8)))
        return EVENTS / (time.process_time() - started)


@asynccontextmanager
async def delivering(directory: Path) -> AsyncIterator[tuple[Deliverer, Database, Seal]]:
    """A deliverer that is not started yet, on a new database."""
    database = Database(DatabaseOptions(url=sqlite_url(directory / "bench.db")))
    await upgrade(database)
    clock, seal = SystemClock(), Seal.open("", directory)
    client = GuardedClient(allow_http=True, allow_loopback=True, connections=512, per_host=8)
    quota = Quota(lambda _plan, _own: 0, clock, is_sqlite=True)

    async def nothing(*_arguments: str) -> TokenFacts:
        return TokenFacts(None, None)

    async def no_nft(*_arguments: str) -> None:
        return None

    deliverer = Deliverer(
        DeliveryStore(database, quota),
        Sender(client, seal, clock, seconds=15),
        Hosts(clock, width=8),
        Lookups(nothing, no_nft, KnownTokens(), seconds=1),
        clock,
        DeliveryOptions(delays={"A": (10,), "B": (1,)}, concurrency=512, poll_seconds=0.25, keep_days=7),
    )
    yield deliverer, database, seal
    await deliverer.close()
    await client.close()
    await database.close()


async def delivered(url: str, directory: Path) -> float:
    """Deliveries per second of processor time, from events in the database to results in it."""
    async with delivering(directory) as (deliverer, database, seal):
        await _subscribe(database, seal, [url] * WEBHOOKS)
        await _write(database, [BODY] * EVENTS)
        return EVENTS / await _drained(deliverer, database)


async def _drained(deliverer: Deliverer, database: Database) -> float:
    """Processor time until all is delivered."""
    started, deadline = time.process_time(), time.monotonic() + SECONDS
    deliverer.start()
    query = select(func.count()).select_from(webhook_events).where(webhook_events.c.state == "delivered")
    while time.monotonic() < deadline:
        async with database.read() as connection:
            if await connection.scalar(query) == EVENTS:
                break
        await asyncio.sleep(0.1)
    else:
        raise SystemExit("the events were not delivered in time")
    return time.process_time() - started


async def steady(url: str, directory: Path, dead: str | None) -> tuple[float, float]:
    """Milliseconds from the database to the receiver, median and 99th percentile, of events at a steady rate.

    With a `dead` endpoint the first webhook goes there, and its events are not counted.
    """
    async with delivering(directory) as (deliverer, database, seal):
        await _subscribe(database, seal, [dead or url, *[url] * (WEBHOOKS - 1)])
        deliverer.start()
        async with aiohttp.ClientSession() as session:
            await (await session.get(url.replace("/hook", "/moments"))).read()
            began = time.monotonic()
            for batch in range(BATCHES):
                await asyncio.sleep(max(0.0, began + batch * BATCH / RATE - time.monotonic()))
                body = msgspec.json.encode({"id": "evt_0", "sent": time.monotonic(), "data": {"data": "x" * 400}})
                await _write(database, [body] * BATCH, first=batch * BATCH)
                deliverer.wake()
            found: list[float] = []
            wanted = BATCHES * BATCH * (WEBHOOKS - 1 if dead else WEBHOOKS) // WEBHOOKS
            deadline = time.monotonic() + SECONDS
            while len(found) < wanted and time.monotonic() < deadline:
                await asyncio.sleep(0.2)
                found += await (await session.get(url.replace("/hook", "/moments"))).json()
    if len(found) < wanted:
        raise SystemExit(f"{wanted - len(found)} events were not delivered in time")
    found.sort()
    return found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000


async def _subscribe(database: Database, seal: Seal, urls: list[str]) -> None:
    now = utc(SystemClock())
    account = Account("acc_1", "bench", "enterprise", Overrides(), "active", datetime(2026, 1, 1, tzinfo=UTC))
    await AccessStore(database).add_account(account)
    store = WebhookStore(database)
    for number, url in enumerate(urls):
        webhook = Webhook(
            id=f"wh_{number}",
            account_id="acc_1",
            chain="ethereum",
            network=NETWORK,
            url=url,
            event_type="log",
            config=b"{}",
            status="active",
            reason=None,
            created_at=now,
            updated_at=now,
        )
        await store.add(webhook, seal.seal(new_signing_secret(), webhook.id), at_most=0)


async def _write(database: Database, bodies: list[bytes], first: int = 0) -> None:
    moment = int(SystemClock().now() * 1_000_000)
    rows = [
        {
            "id": f"evt_{number}",
            "webhook_id": f"wh_{number % WEBHOOKS}",
            "network": NETWORK,
            "position": "x",
            "phase": 0,
            "state": "pending",
            "body": body,
            "due_at": moment,
            "retries": 0,
            "attempts": 0,
            "counted": False,
            "created_at": moment,
        }
        for number, body in enumerate(bodies, first)
    ]
    async with database.write() as connection:
        await connection.execute(insert(webhook_events), rows)
        await connection.execute(update(webhook_lanes).values(due_at=moment))


def matched() -> float:
    """Milliseconds to match a block of 500 transfers against 100,000 watched addresses; a tenth of them match."""
    subscriptions = Subscriptions(NETWORK)
    kind = EVENT_TYPES["token_transfer"]
    watched = frozenset(number.to_bytes(20, "big") for number in range(1, 100_001))
    subscriptions.put(Subscription("wh_1", kind, Filters(addresses=watched), True))
    logs = []
    for index in range(500):
        parties = [f"0x{10**9 + index:064x}", f"0x{index + 1 if index % 10 == 0 else 10**10 + index:064x}"]
        raw = {
            "address": "0x" + "ab" * 20,
            "topics": [TRANSFER, *parties],
            "data": f"0x{index:064x}",
            "blockNumber": "0x1",
            "blockHash": "0x" + "cd" * 32,
            "transactionHash": f"0x{index:064x}",
            "logIndex": hex(index),
        }
        logs.append(Log("0x" + "ab" * 20, (TRANSFER, *parties), index, f"0x{index:064x}", msgspec.json.encode(raw)))
    block = Block(1, "0x" + "cd" * 32, "0x" + "ce" * 32, 1, b"{}", (), (), tuple(logs))
    matcher = Matcher(Place(NETWORK, "ethereum", 31337, "ETH", 18), subscriptions, wrapped=frozenset())
    best = float("inf")
    for _ in range(10):
        started = time.process_time()
        assert len(matcher.match(block)) == 50
        best = min(best, time.process_time() - started)
    return best * 1000


async def main() -> None:
    """Run all, and print."""
    context = multiprocessing.get_context("spawn")
    port = context.Value("i", 0)
    receiver = context.Process(target=receive, args=(port,), daemon=True)
    receiver.start()
    while not port.value:  # noqa: ASYNC110 - another process sets it
        await asyncio.sleep(0.05)
    url = f"http://127.0.0.1:{port.value}/hook"
    try:
        with tempfile.TemporaryDirectory() as directory:
            loop = await bare(url)
            ours = await delivered(url, Path(directory))
            loop = max(loop, await bare(url))
        # It takes connections, and never answers.
        silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        dead = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/hook"
        alive: list[tuple[float, float]] = []
        hindered: list[tuple[float, float]] = []
        for runs, endpoint in ((alive, None), (hindered, dead)) * 2:
            with tempfile.TemporaryDirectory() as directory:
                runs.append(await steady(url, Path(directory), endpoint))
    finally:
        receiver.terminate()
    result = {
        "bare_posts_per_cpu_second": round(loop),
        "deliveries_per_cpu_second": round(ours),
        "ratio": round(ours / loop, 3),
        "received_after_p50_ms": round(min(each[0] for each in alive), 1),
        "received_after_p99_ms": round(min(each[1] for each in alive), 1),
        "with_a_dead_endpoint_p99_ms": round(min(each[1] for each in hindered), 1),
        "match_500_logs_100000_addresses_ms": round(matched(), 2),
    }
    print(msgspec.json.format(msgspec.json.encode(result)).decode())


if __name__ == "__main__":
    asyncio.run(main())
