"""Webhooks over SQLite and a real PostgreSQL: events with their block, retractions, claims, retries, quotas, mail.

Time is moved by hand, so the whole schedule of retries is seen. The receiver is played here; a real one answers in the
end-to-end tests.
"""

import asyncio
import json

import msgspec
import pytest
from sqlalchemy import select, update

from capstan.access.store import AccessStore
from capstan.core.clock import utc
from capstan.storage.database import Database
from capstan.storage.webhook_schema import mails, webhook_attempts, webhooks
from capstan.webhooks.store import TooManyWebhooks
from tests.support.webhook_world import FORMAT_A, FORMAT_B, WATCHED, World, block


@pytest.fixture
async def world(database: Database) -> World:
    made = World(database)
    await made.open()
    return made


async def test_events_are_delivered_once_and_in_their_order(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    await world.apply(block(1, values=(5, 6)), block(2), block(3, values=(7,)))
    await world.deliver()
    await world.deliver()
    assert [body["data"]["value"] for body in world.bodies] == ["5", "6", "7"]
    assert await world.states() == ["delivered"] * 3
    assert len({body["id"] for body in world.bodies}) == 3


async def test_a_webhook_counts_from_the_first_block_after_it_and_not_after_it_is_gone(world: World) -> None:
    await world.apply(block(1, values=(5,)))
    webhook = await world.hook("address_activity", addresses=[WATCHED])
    await world.apply(block(2, values=(6,)))
    await world.deliver()
    await world.store.delete(webhook)
    await world.apply(block(3, values=(7,)))
    await world.deliver()
    assert [body["data"]["value"] for body in world.bodies] == ["6"]


async def test_a_reorganisation_takes_back_what_was_told_and_names_it(world: World) -> None:
    await world.hook("ADDRESS_ACTIVITY", addresses=[WATCHED])
    first, second = block(1, values=(5, 6)), block(1, fork="b", values=(9,))
    await world.apply(first)
    await world.deliver()
    await world.revert(first)
    await world.apply(second)
    await world.revert(second)
    # The first one comes back: that is news again, under new ids.
    await world.apply(first)
    await world.deliver()
    told = world.bodies
    values = [(body["data"]["value"], body["data"].get("removed", False)) for body in told]
    assert values == [
        ("5", False),
        ("6", False),
        ("6", True),
        ("5", True),
        ("9", False),
        ("9", True),
        ("5", False),
        ("6", False),
    ]
    assert len({body["id"] for body in told}) == len(told)
    assert [body["data"]["reverts"] for body in told[2:4]] == [told[1]["id"], told[0]["id"]]
    assert told[2]["reverts"] == told[1]["id"]


async def test_what_waits_for_confirmations_vanishes_with_its_block(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED], confirmations=3)
    gone = block(2, values=(6,))
    await world.apply(block(1, values=(5,)), gone)
    await world.deliver()
    assert world.sender.sent == []
    await world.revert(gone)
    await world.apply(block(2, fork="b"), block(3, fork="b"))
    await world.deliver()
    assert [body["data"]["value"] for body in world.bodies] == ["5"]
    await world.apply(block(4), block(5), block(6))
    await world.deliver()
    assert len(world.sender.sent) == 1


@pytest.mark.parametrize(
    ("event_type", "ladder", "after"),
    [("address_activity", FORMAT_A, ("paused", "failures")), ("ADDRESS_ACTIVITY", FORMAT_B, ("active", None))],
)
async def test_the_whole_ladder(
    world: World, event_type: str, ladder: tuple[int, ...], after: tuple[str, str | None]
) -> None:
    await world.hook(event_type, addresses=[WATCHED])
    world.sender.status = lambda _id: 500
    await world.apply(block(1, values=(5,)))
    for delay in ladder:
        await world.deliver()
        last = world.sender.sent[-1][0]
        # Not a moment too early, and at most a tenth late.
        world.clock.advance(delay - 0.001)
        count = len(world.sender.sent)
        await world.deliver()
        assert len(world.sender.sent) == count
        world.clock.advance(delay * 0.1 + 0.002)
        await world.deliver()
        assert len(world.sender.sent) == count + 1
        assert world.sender.sent[-1][0] - last <= delay * 1.1 + 0.01
    assert len(world.sender.sent) == len(ladder) + 1
    assert len({(event_id, body) for _, event_id, body in world.sender.sent}) == 1
    assert await world.status() == after
    world.clock.advance(86_400)
    await world.deliver()
    assert len(world.sender.sent) == len(ladder) + 1
    async with world.database.read() as connection:
        letters = (await connection.execute(select(mails))).all()
        attempts = (await connection.execute(select(webhook_attempts))).all()
    assert len(attempts) == len(ladder) + 1
    assert {attempt.status for attempt in attempts} == {500}
    if event_type == "ADDRESS_ACTIVITY":
        assert await world.states() == ["failed"]
        assert letters == []
    else:
        assert [letter.recipient for letter in letters] == ["a@example.com"]
        assert "wh_1" in letters[0].subject


async def test_a_paused_webhook_keeps_its_events_and_delivers_them_when_it_is_resumed(world: World) -> None:
    webhook = await world.hook("address_activity", addresses=[WATCHED])
    world.sender.status = lambda _id: None
    await world.apply(block(1, values=(5,)))
    for delay in (0, *FORMAT_A):
        world.clock.advance(delay * 1.1 + 1)
        await world.deliver()
    assert await world.status() == ("paused", "failures")
    await world.apply(block(2, values=(6,)))
    await world.deliver()
    tried = len(world.sender.sent)
    world.sender.status = lambda _id: 200
    world.clock.advance(120)
    resumed = msgspec.structs.replace(webhook, updated_at=utc(world.clock))
    assert await world.store.change(resumed, status="active", reason=None)
    await world.deliver()
    assert [json.loads(body)["data"]["value"] for _, _, body in world.sender.sent[tried:]] == ["5", "6"]
    assert await world.states() == ["delivered", "delivered"]


async def test_retry_after_is_respected(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    world.sender.status, world.sender.retry_after = lambda _id: 503, 300.0
    await world.apply(block(1, values=(5,)))
    await world.deliver()
    world.clock.advance(299)
    await world.deliver()
    assert len(world.sender.sent) == 1
    world.clock.advance(2)
    await world.deliver()
    assert len(world.sender.sent) == 2


async def test_gone_disables_the_webhook(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    world.sender.status = lambda _id: 410
    await world.apply(block(1, values=(5, 6)))
    await world.deliver()
    assert len(world.sender.sent) == 1
    assert await world.status() == ("disabled", "gone")
    await world.apply(block(2, values=(7,)))
    await world.deliver()
    assert len(world.sender.sent) == 1


async def test_over_the_quota_events_are_held_until_midnight(database: Database) -> None:
    world = World(database, limit=2)
    await world.open()
    await world.hook("address_activity", addresses=[WATCHED])
    world.sender.status = lambda _id: 500
    await world.apply(block(1, values=(5, 6, 7, 8)))
    await world.deliver()
    assert await world.states() == ["pending", "pending", "quota_held", "quota_held"]
    world.sender.status = lambda _id: 200
    # Retries do not count again.
    world.clock.advance(12)
    await world.deliver()
    assert await world.states() == ["delivered", "delivered", "quota_held", "quota_held"]
    world.clock.advance(86_400 - world.clock.now() % 86_400 + 1)
    await world.deliver()
    assert await world.states() == ["delivered"] * 4


async def test_a_claim_that_its_owner_never_finished_runs_out(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    await world.apply(block(1, values=(5,)))
    now = int(world.clock.now() * 1_000_000)
    store = world.deliverer._store
    assert len(await store.claim(now, now + 60_000_000, lanes=10)) == 1
    await world.deliver()
    assert world.sender.sent == []
    world.clock.advance(61)
    await world.deliver()
    assert len(world.sender.sent) == 1


async def test_a_dead_host_gets_few_first_attempts_and_all_when_it_is_back(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    world.sender.status = lambda _id: None
    await world.apply(block(1, values=tuple(range(1, 41))))
    await world.deliver()
    assert len(world.sender.sent) == 5
    world.sender.status = lambda _id: 200
    world.clock.advance(12)
    await world.deliver()
    assert await world.states() == ["delivered"] * 40


async def test_old_events_are_purged(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    await world.apply(block(1, values=(5,)))
    await world.deliver()
    store = world.deliverer._store
    await store.purge(int((world.clock.now() - 10) * 1_000_000))
    assert await world.states() == ["delivered"]
    await store.purge(int((world.clock.now() + 10) * 1_000_000))
    assert await world.states() == []


async def test_the_webhooks_of_a_suspended_account_rest(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    access, store = AccessStore(world.database), world.deliverer._store
    await access.change_account(world.account, status="suspended")
    await store.follow_accounts(1)
    assert await world.status() == ("disabled", "suspended")
    await access.change_account(world.account, status="active")
    await store.follow_accounts(2)
    assert await world.status() == ("active", None)


async def test_no_more_webhooks_than_allowed_and_none_changed_while_disabled(world: World) -> None:
    webhook = await world.hook("log")
    with pytest.raises(TooManyWebhooks):
        await world.store.add(msgspec.structs.replace(webhook, id="wh_2"), b"", at_most=1)
    async with world.database.write() as connection:
        await connection.execute(update(webhooks).values(status="disabled"))
    assert not await world.store.change(webhook, status="active")


async def test_a_deliverer_that_was_paused_does_not_go_on_where_it_stood(world: World) -> None:
    await world.hook("address_activity", addresses=[WATCHED])
    await world.apply(block(1, values=(5, 6, 7)))

    def pause(_event_id: str) -> int:
        if len(world.sender.sent) == 1:
            world.clock.advance(60)
        return 200

    world.sender.status = pause
    await world.deliverer._claims()
    await asyncio.gather(*world.deliverer._working)
    # By now another process may have the rest.
    assert len(world.sender.sent) == 1
    store, now = world.deliverer._store, int(world.clock.now() * 1_000_000)
    (lane,) = await store.claim(now, now + 1_000_000, lanes=8)
    assert await store.renew({lane.target.webhook_id: lane.token - 1}, now + 2_000_000) == set()
    assert await store.renew({lane.target.webhook_id: lane.token}, now + 2_000_000) == {lane.target.webhook_id}
