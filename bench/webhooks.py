"""Deliveries per second with everything written down, beside a bare loop of POSTs, and the matching of a full block.

Both send the same bodies to the same receiver, a process of its own on loopback; the ratio is what counts. Ours claims,
signs, sends, and writes results and attempts to SQLite. Prints JSON.
"""

import asyncio
import multiprocessing
import tempfile
import time
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


def receive(port: Any) -> None:
    """The receiver's process."""

    async def hook(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text="ok")

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/{name}", hook)
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


async def delivered(url: str, directory: Path) -> float:
    """Deliveries per second of processor time, from events in the database to results in it."""
    database = Database(DatabaseOptions(url=sqlite_url(directory / "bench.db")))
    await upgrade(database)
    clock, seal = SystemClock(), Seal.open("", directory)
    await _fill(database, seal, url)
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
    spent = time.process_time() - started
    await deliverer.close()
    await client.close()
    await database.close()
    return EVENTS / spent


async def _fill(database: Database, seal: Seal, url: str) -> None:
    clock = SystemClock()
    now, moment = utc(clock), int(clock.now() * 1_000_000)
    account = Account("acc_1", "bench", "enterprise", Overrides(), "active", datetime(2026, 1, 1, tzinfo=UTC))
    await AccessStore(database).add_account(account)
    store = WebhookStore(database)
    for number in range(WEBHOOKS):
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
    rows = [
        {
            "id": f"evt_{number}",
            "webhook_id": f"wh_{number % WEBHOOKS}",
            "network": NETWORK,
            "position": "x",
            "phase": 0,
            "state": "pending",
            "body": BODY,
            "due_at": moment,
            "retries": 0,
            "attempts": 0,
            "counted": False,
            "created_at": moment,
        }
        for number in range(EVENTS)
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
    finally:
        receiver.terminate()
    result = {
        "bare_posts_per_cpu_second": round(loop),
        "deliveries_per_cpu_second": round(ours),
        "ratio": round(ours / loop, 3),
        "match_500_logs_100000_addresses_ms": round(matched(), 2),
    }
    print(msgspec.json.format(msgspec.json.encode(result)).decode())


if __name__ == "__main__":
    asyncio.run(main())
