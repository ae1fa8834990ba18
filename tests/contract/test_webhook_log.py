"""The lists of webhooks and deliveries that people read: complete, in order, in pages, answered from an index."""

from sqlalchemy import insert, text

from capstan.access.store import to_micros
from capstan.storage.database import Database
from capstan.storage.schema import accounts
from capstan.storage.webhook_schema import webhook_attempts, webhook_events, webhooks
from capstan.webhooks.log import Delivery, WebhookLog

ROWS = 95


async def fill(database: Database) -> None:
    """Webhooks and attempts, many of them from the very same moment."""
    account = {"name": "one", "plan": "free", "overrides": "{}", "status": "active", "created_at": 1}
    hook = {
        "chain": "ethereum",
        "network": "ethereum/devnet",
        "url": "https://x",
        "event_type": "log",
        "config": "{}",
        "secret": b"",
        "revision": 1,
        "updated_at": 1,
    }
    event = {"network": "ethereum/devnet", "position": "", "phase": 0, "body": b"{}", "due_at": 1, "retries": 0}
    async with database.write() as connection:
        await connection.execute(insert(accounts), [{**account, "id": "acc_1"}, {**account, "id": "acc_2"}])
        await connection.execute(
            insert(webhooks),
            [
                {
                    **hook,
                    "id": f"wh_{number:03}",
                    "account_id": "acc_2" if number % 10 == 0 else "acc_1",
                    "status": "paused" if number % 7 == 0 else "active",
                    "created_at": 1_000 + number // 4,
                }
                for number in range(ROWS)
            ],
        )
        await connection.execute(
            insert(webhook_events),
            [
                {**event, "id": f"evt_{n}", "webhook_id": "wh_001", "state": state, "attempts": 1, "counted": True}
                | {"created_at": 1, "seq": n + 1, "due_at": n}
                for n, state in enumerate(["delivered"] * ROWS + ["pending"] * 3 + ["quota_held"])
            ],
        )
        await connection.execute(
            insert(webhook_attempts),
            [
                {"event_seq": n + 1, "number": 1, "webhook_id": "wh_001", "at": 5_000 + n // 6, "latency_ms": 3}
                | {"status": 200, "error": None, "response": b"ok \xff"}
                for n in range(ROWS)
            ],
        )


async def test_pages_of_webhooks_hold_every_one_of_the_account_once(database: Database) -> None:
    await fill(database)
    log = WebhookLog(database)
    seen: list[str] = []
    after: tuple[int, str] | None = None
    while page := await log.listing("acc_1", status=None, after=after, limit=10):
        seen += [each.id for each in page]
        last = page[-1]
        after = (to_micros(last.created_at), last.id)
    assert seen == sorted((f"wh_{n:03}" for n in range(ROWS) if n % 10), reverse=True)
    paused = await log.listing("acc_1", status="paused", after=None, limit=100)
    assert [each.id for each in paused] == [name for name in seen if int(name[3:]) % 7 == 0]


async def test_pages_of_deliveries_hold_every_attempt_once_and_tell_what_waits(database: Database) -> None:
    await fill(database)
    log = WebhookLog(database)
    seen: list[Delivery] = []
    after: tuple[int, int, int] | None = None
    while page := await log.deliveries("wh_001", after=after, limit=10):
        seen += page
        after = (page[-1].at, page[-1].event_seq, page[-1].number)
    assert [each.event_id for each in seen] == [f"evt_{n}" for n in reversed(range(ROWS))]
    assert (seen[0].accepted, seen[0].response) == (True, "ok \ufffd")
    assert await log.undelivered("wh_001") == {"pending": 3, "quota_held": 1}
    assert [each.id for each in await log.next_events("wh_001", limit=2)] == [f"evt_{ROWS}", f"evt_{ROWS + 1}"]
    found = await log.event("wh_001", "evt_0")
    assert found is not None
    assert (found[0].state, [each.number for each in found[1]]) == ("delivered", [1])
    assert await log.event("wh_002", "evt_0") is None


async def test_the_log_of_a_webhook_is_read_through_its_index(database: Database) -> None:
    if not database.is_sqlite:
        return  # The planner of PostgreSQL reads a table as small as this one from end to end, whatever there is.
    plan = "EXPLAIN QUERY PLAN SELECT * FROM webhook_attempts WHERE webhook_id = 'wh_001' AND (at, event_seq, number)"
    plan += " < (9, 9, 9) ORDER BY at DESC, event_seq DESC, number DESC LIMIT 51"
    async with database.read() as connection:
        steps = [row[3] for row in await connection.execute(text(plan))]
    assert any("ix_webhook_attempts_webhook_id_at" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
