"""The ledger of sponsorships over SQLite and a real PostgreSQL: exact under concurrency, reorganisations and kills."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from capstan.chain.follower.models import Delta
from capstan.gas.policies.models import Policy
from capstan.gas.policies.service import status_of
from capstan.gas.policies.store import PolicyStore
from capstan.gas.sponsor.amounts import nano_usd
from capstan.gas.sponsor.judging import Refused
from capstan.gas.sponsor.ledger import Ledger, imbalance
from capstan.gas.sponsor.settlement import SettlementConsumer
from capstan.storage.database import Database, DatabaseOptions
from capstan.storage.schema import gas_sponsorships
from tests.support.gas_ledger import DAY, NETWORK, NOON, PRICE, add_policy, applied, draft, handled, reverted

COST = 3 * 10**14
SPENT = nano_usd(COST, PRICE)


async def sums(database: Database, policy: Policy, day: int = DAY) -> tuple[int, int, int, int]:
    """Reserved and spent of all time, and of a day."""
    found = await PolicyStore(database).find(policy.account_id, policy.id, day)
    assert found is not None
    assert await imbalance(database) == []
    return found.all_time.reserved, found.all_time.spent, found.today.reserved, found.today.spent


async def states(database: Database) -> list[str]:
    async with database.read() as connection:
        return sorted(await connection.scalars(select(gas_sponsorships.c.state)))


async def feed(database: Database, *deltas: Delta, release_seconds: float = 60) -> None:
    consumer = SettlementConsumer(NETWORK, release_seconds=release_seconds)
    for delta in deltas:
        async with database.write() as connection:
            await consumer.apply(connection, delta)


async def outcome(ledger: Ledger, **options: Any) -> str:
    try:
        await ledger.reserve(draft(options.pop("policy"), **options))
    except Refused as refusal:
        return refusal.rule
    return "granted"


async def test_of_fifty_at_once_in_three_processes_exactly_ten_are_granted(
    database: Database, database_url: str
) -> None:
    policy = await add_policy(database, {"max_total_usd": "10"})
    others = [Database(DatabaseOptions(url=database_url)) for _ in range(2)]
    ledgers = [Ledger(each) for each in (database, *others)]
    async with asyncio.timeout(120):
        found = await asyncio.gather(*(outcome(ledgers[turn % 3], policy=policy.id) for turn in range(50)))
    assert sorted(found) == ["granted"] * 10 + ["max_total_usd"] * 40
    assert await sums(database, policy) == (10 * 10**9, 0, 10 * 10**9, 0)
    for ledger in ledgers:
        await ledger.close()
    for other in others:
        await other.close()


@pytest.mark.parametrize("rule", ["max_gas_usd", "max_total_usd", "max_usd_per_day"])
async def test_amounts_are_judged_at_their_edge(database: Database, rule: str) -> None:
    policy, ledger = await add_policy(database, {rule: "1"}), Ledger(database)
    assert await outcome(ledger, policy=policy.id, cost=10**9 + 1) == rule
    assert await outcome(ledger, policy=policy.id, cost=10**9) == "granted"
    expected = "granted" if rule == "max_gas_usd" else rule
    assert await outcome(ledger, policy=policy.id, cost=1) == expected


async def test_days_turn_at_midnight_utc(database: Database) -> None:
    rules = {"max_per_user_per_day": 1, "max_usd_per_day": "1"}
    policy, ledger, sender = await add_policy(database, rules), Ledger(database), b"\x01" * 20
    last = NOON.replace(hour=23, minute=59, second=59, microsecond=999_999)
    assert await outcome(ledger, policy=policy.id, sender=sender, created_at=last) == "granted"
    assert await outcome(ledger, policy=policy.id, sender=sender, nonce=1, cost=0, created_at=last) == (
        "max_per_user_per_day"
    )
    assert await outcome(ledger, policy=policy.id, cost=1, created_at=last) == "max_usd_per_day"
    first = last + timedelta(microseconds=1)
    assert await outcome(ledger, policy=policy.id, sender=sender, nonce=1, created_at=first) == "granted"
    assert await sums(database, policy, DAY) == (2 * 10**9, 0, 10**9, 0)
    assert await sums(database, policy, DAY + 1) == (2 * 10**9, 0, 10**9, 0)


async def test_operations_of_a_user_are_counted_by_their_nonce(database: Database) -> None:
    policy, ledger, sender = await add_policy(database, {"max_per_user_per_day": 2}), Ledger(database), b"\x02" * 20
    given = [await outcome(ledger, policy=policy.id, sender=sender, nonce=nonce) for nonce in (0, 1, 0, 2, 1)]
    assert given == ["granted", "granted", "granted", "max_per_user_per_day", "granted"]
    at_once = [outcome(ledger, policy=policy.id, sender=b"\x03" * 20, nonce=nonce) for nonce in range(20)]
    assert sorted(await asyncio.gather(*at_once)).count("granted") == 2


async def test_the_rate_is_that_of_any_such_time(database: Database) -> None:
    rules = {"rate_limit": {"requests": 2, "per_seconds": 10}}
    policy, ledger = await add_policy(database, rules), Ledger(database)
    found = [
        await outcome(ledger, policy=policy.id, created_at=NOON + timedelta(seconds=seconds))
        for seconds in (0, 4, 9.999999, 10, 13.999999, 14)
    ]
    assert found == ["granted", "granted", "rate_limit", "granted", "rate_limit", "granted"]
    many = await asyncio.gather(
        *(outcome(ledger, policy=policy.id, created_at=NOON + timedelta(seconds=60)) for _ in range(20))
    )
    assert many.count("granted") == 2


async def test_a_policy_that_was_paused_meanwhile_grants_nothing(database: Database) -> None:
    policy, ledger = await add_policy(database, status="paused"), Ledger(database)
    assert await outcome(ledger, policy=policy.id) == "status"
    assert await states(database) == []


async def test_an_operation_that_lands_is_settled_to_what_it_cost(database: Database) -> None:
    policy, given = await add_policy(database), draft("")
    given = draft(policy.id)
    await Ledger(database).reserve(given)
    # Neither another entry point nor another sender's operation counts.
    noise = [handled(given, 1, entry_point=b"\x09" * 20), handled(draft(policy.id), 1)]
    await feed(database, applied(1, *noise))
    assert await sums(database, policy) == (10**9, 0, 10**9, 0)
    await feed(database, applied(2, handled(given, COST)))
    assert await sums(database, policy) == (0, SPENT, 0, SPENT)


async def test_what_settles_on_another_day_counts_to_the_day_it_was_given(database: Database) -> None:
    policy = await add_policy(database)
    given = draft(policy.id)
    await Ledger(database).reserve(given)
    await feed(database, applied(1, handled(given, COST), timestamp=int(NOON.timestamp()) + 86_400))
    assert await sums(database, policy, DAY + 1) == (0, SPENT, 0, 0)


async def test_others_for_the_same_nonce_are_released_whoever_paid(database: Database) -> None:
    policy, other = await add_policy(database), await add_policy(database)
    first = draft(policy.id)
    same = [draft(each.id, sender=first.sender) for each in (policy, other)]
    ledger = Ledger(database)
    for each in (first, *same):
        await ledger.reserve(each)
    await feed(database, applied(1, handled(first, COST)))
    assert await states(database) == ["released", "released", "settled"]
    assert await sums(database, policy) == (0, SPENT, 0, SPENT)
    assert await sums(database, other) == (0, 0, 0, 0)
    # The sender paid for itself: what was reserved for that nonce is free.
    alone = draft(policy.id)
    await ledger.reserve(alone)
    await feed(database, applied(2, handled(alone, COST, hash=b"\x05" * 32, paymaster=bytes(20))))
    assert await sums(database, policy) == (0, SPENT, 0, SPENT)


async def test_an_unknown_hash_is_settled_by_the_paymaster(database: Database) -> None:
    policy = await add_policy(database)
    given = draft(policy.id, hash=None)
    await Ledger(database).reserve(given)
    await feed(database, applied(1, handled(given, COST)))
    assert await sums(database, policy) == (0, SPENT, 0, SPENT)


async def test_what_cannot_land_any_more_is_released_at_its_edge(database: Database) -> None:
    policy = await add_policy(database, {"max_total_usd": "1"})
    given = draft(policy.id)
    await Ledger(database).reserve(given)
    found = await PolicyStore(database).find(policy.account_id, policy.id, DAY)
    assert found is not None
    assert status_of(found) == "exhausted"
    await feed(database, applied(1, timestamp=given.valid_until + 60))
    assert await states(database) == ["reserved"]
    await feed(database, applied(2, timestamp=given.valid_until + 61))
    assert await states(database) == ["released"]
    assert await sums(database, policy) == (0, 0, 0, 0)


async def test_reorganisations_undo_what_their_blocks_decided(database: Database) -> None:
    policy = await add_policy(database)
    landing, expiring = draft(policy.id), draft(policy.id, valid_until=int(NOON.timestamp()) - 100)
    ledger = Ledger(database)
    await ledger.reserve(landing)
    await ledger.reserve(expiring)
    await feed(database, applied(1, handled(landing, COST)))
    assert await states(database) == ["released", "settled"]
    await feed(database, reverted(1))
    assert await states(database) == ["reserved", "reserved"]
    assert await sums(database, policy) == (2 * 10**9, 0, 2 * 10**9, 0)
    # On the other fork it is dearer, and the expired one lands after all.
    await feed(database, applied(1, handled(landing, 2 * COST), handled(expiring, COST), fork=1))
    assert await sums(database, policy) == (0, nano_usd(2 * COST, PRICE) + SPENT, 0, nano_usd(2 * COST, PRICE) + SPENT)


async def test_one_that_was_released_and_lands_all_the_same_is_spent(database: Database) -> None:
    policy = await add_policy(database)
    given = draft(policy.id)
    await Ledger(database).reserve(given)
    await feed(database, applied(1, timestamp=given.valid_until + 1_000))
    await feed(database, applied(2, handled(given, COST)))
    assert await sums(database, policy) == (0, SPENT, 0, SPENT)
    await feed(database, reverted(2))
    assert await sums(database, policy) == (10**9, 0, 10**9, 0)


async def test_a_chain_that_begins_anew_has_sponsored_nothing(database: Database) -> None:
    policy = await add_policy(database)
    given = draft(policy.id)
    await Ledger(database).reserve(given)
    await feed(database, applied(1, handled(given, COST)))
    async with database.write() as connection:
        await SettlementConsumer(NETWORK).reset(connection)
    assert await sums(database, policy) == (0, 0, 0, 0)
    assert await states(database) == []
