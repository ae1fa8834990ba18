"""From where webhooks count, on SQLite and real PostgreSQL: the first block of a network, and what was mined before."""

import msgspec
import pytest
from sqlalchemy import select

from capstan.chain.follower.models import Applied, Block
from capstan.storage.database import Database
from capstan.storage.schema import applied_blocks, cursors
from capstan.storage.webhook_schema import webhook_lookbacks
from capstan.stream.store import CursorStore
from capstan.webhooks.lookbacks import ROLE, Lookbacks, Mined, Unsettled
from capstan.webhooks.matching import ChainTransaction, MinedReceipt
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.subscriptions import Subscriptions
from tests.support.webhook_world import NETWORK, PLACE, WATCHED, World, block


@pytest.fixture
async def world(database: Database) -> World:
    made = World(database)
    await made.open()
    return made


async def passed(world: World, *blocks: Block) -> None:
    """Apply blocks as the durable stream does, with its cursor."""
    store = CursorStore(world.database, NETWORK, ROLE, world.clock, window=100)
    for each in blocks:
        async with world.database.write() as connection:
            await world.consumer.apply(connection, Applied(each))
            await store.advance(connection, Applied(each), None)


def looking(world: World, *blocks: Block) -> Lookbacks:
    """Lookbacks with a node that knows these blocks."""
    known = {}
    for each in blocks:
        for index, (raw, receipt) in enumerate(zip(each.transactions or (), each.receipts or (), strict=True)):
            transaction = msgspec.json.decode(raw, type=ChainTransaction)
            decoded = msgspec.json.decode(receipt, type=MinedReceipt)
            known[transaction.hash] = Mined(each.number, each.hash, index, transaction, decoded)

    async def find(tx_hash: str) -> Mined | None:
        return known.get(tx_hash)

    outbox = Outbox(PLACE, world.clock, is_sqlite=world.database.is_sqlite)
    return Lookbacks(NETWORK, world.database, Subscriptions(NETWORK), outbox, find, written=lambda: None)


def hashes(of: Block) -> list[str]:
    return [msgspec.json.decode(raw, type=ChainTransaction).hash for raw in of.transactions or ()]


async def notes(world: World) -> int:
    async with world.database.read() as connection:
        return len((await connection.execute(select(webhook_lookbacks))).all())


@pytest.mark.parametrize("event_type", ["mined_transaction", "MINED_TRANSACTION"])
async def test_a_transaction_that_was_mined_before_is_told_once(world: World, event_type: str) -> None:
    early, late = block(1, values=(5, 6)), block(2, values=(7,))
    await passed(world, early)
    await world.hook(event_type, tx_hashes=[hashes(early)[1], *hashes(late), "0x" + "ee" * 32])
    lookbacks = looking(world, early, late)
    assert await lookbacks.work()
    assert not await lookbacks.work()
    # The second one is in a block that the stream has not passed: the stream tells of it.
    await passed(world, late)
    await world.deliver()
    assert [body["data"]["value"] for body in world.bodies] == ["6", "7"]
    # A change of the filter makes it look again, and finds the same events.
    webhook = await world.store.find("wh_1")
    assert webhook is not None
    config = msgspec.json.encode({"tx_hashes": [*hashes(early), *hashes(late)]}).decode()
    assert await world.store.change(webhook, config=config)
    assert await lookbacks.work()
    await world.deliver()
    assert [body["data"]["value"] for body in world.bodies] == ["6", "7", "5"]
    assert await notes(world) == 0


async def test_what_was_told_of_before_is_taken_back_with_its_block(world: World) -> None:
    early = block(1, values=(5,))
    await passed(world, early)
    await world.hook("mined_transaction", tx_hashes=hashes(early))
    assert await looking(world, early).work()
    await world.revert(early)
    await world.deliver()
    first, second = world.bodies
    assert (second["data"]["removed"], second["data"]["reverts"]) == (True, first["id"])


async def test_what_is_in_a_block_of_another_branch_waits(world: World) -> None:
    await passed(world, block(1, values=(5,)))
    other = block(1, fork="b", values=(6,))
    await world.hook("mined_transaction", tx_hashes=hashes(other))
    with pytest.raises(Unsettled):
        await looking(world, other).work()
    assert (await world.states(), await notes(world)) == ([], 1)


async def test_confirmations_count_for_what_was_mined_before(world: World) -> None:
    early = block(1, values=(5,))
    await passed(world, early, block(2))
    await world.hook("mined_transaction", tx_hashes=hashes(early), confirmations=4)
    assert await looking(world, early).work()
    await passed(world, block(3))
    assert await world.states() == ["waiting"]
    await passed(world, block(4))
    assert await world.states() == ["pending"]


async def test_the_first_webhook_of_a_network_says_from_which_block_on_it_counts(world: World) -> None:
    webhook = await world.hook("address_activity", addresses=[WATCHED])
    assert await world.store.networks() == {NETWORK: None}
    await world.store.delete(webhook)
    assert await world.store.networks() == {}
    for number, first in ((2, 70), (3, 90)):
        made = msgspec.structs.replace(webhook, id=f"wh_{number}")
        await world.store.add(made, b"sealed", at_most=0, first_block=first)
    # The second one is watched by a stream that is there already.
    assert await world.store.networks() == {NETWORK: 70}


async def test_a_network_without_webhooks_keeps_no_cursor(world: World) -> None:
    webhook = await world.hook("log")
    await passed(world, block(1))

    async def kept() -> tuple[int, int]:
        async with world.database.read() as connection:
            rows = [len((await connection.execute(select(table))).all()) for table in (cursors, applied_blocks)]
            return rows[0], rows[1]

    await world.store.forget_idle(ROLE)
    assert await kept() == (1, 1)
    await world.store.delete(webhook)
    await world.store.forget_idle("index")
    assert await kept() == (1, 1)
    await world.store.forget_idle(ROLE)
    assert await kept() == (0, 0)
