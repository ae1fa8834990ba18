"""Warnings about what has little left, and the removal of old sponsorships, on both databases."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import func, insert, select

from capstan.access.store import to_micros
from capstan.core.clock import ManualClock
from capstan.core.errors import UpstreamError
from capstan.gas.policies.store import STREAM_ROLE, PolicyStore
from capstan.gas.sponsor.funds import FundWatch, Watched
from capstan.gas.sponsor.ledger import Ledger, imbalance
from capstan.gas.sponsor.metrics import SponsorMetrics
from capstan.gas.sponsor.pruning import Pruner
from capstan.gas.sponsor.settlement import SettlementConsumer
from capstan.gas.sponsor.warnings import Fund, FundWarnings
from capstan.storage.database import Database
from capstan.storage.schema import cursors, gas_sponsorships
from capstan.storage.webhook_schema import mails
from tests.support.gas_ledger import DAY, NETWORK, NOON, PAYMASTER, add_policy, applied, draft, handled, reverted

ETHER = 10**18
ENTRY_POINT, SIGNER = b"\x43" * 20, b"\x51" * 20
DEPOSIT = Fund(NETWORK, "paymaster_deposit", PAYMASTER, "0.8")
BALANCE = Fund(NETWORK, "signer_balance", SIGNER)


class Chain:
    """The balances of a chain, as the watch sees them; the name and the calls of a network."""

    name = NETWORK

    def __init__(self, deposit: int, balance: int) -> None:
        self.deposit = deposit
        self.balance = balance
        self.broken = False
        self.pool = self

    async def deposits(self, _network: Any, places: Sequence[tuple[bytes, bytes]]) -> list[int | None]:
        if self.broken:
            raise UpstreamError("nobody answers")
        assert list(places) == [(ENTRY_POINT, PAYMASTER)]
        return [self.deposit]

    async def request_as(self, _kind: Any, method: str, _params: Any) -> str:
        assert method == "eth_getBalance"
        return hex(self.balance)


class Setting:
    def __init__(self, database: Database, chain: Chain, operators: Sequence[str] = ("ops@example.com",)) -> None:
        self.registry = CollectorRegistry()
        clock = ManualClock(NOON.timestamp())
        self.warnings = FundWarnings(database, clock, lambda: operators)
        network = cast("Any", chain)
        self.watched = [Watched(network, DEPOSIT, ENTRY_POINT, ETHER), Watched(network, BALANCE, None, ETHER)]
        metrics = SponsorMetrics(self.registry)
        self.watch = FundWatch(cast("Any", chain), self.warnings, metrics, lambda: self.watched, clock)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"network": NETWORK, **labels})


async def letters(database: Database) -> list[tuple[str, str]]:
    async with database.read() as connection:
        rows = await connection.execute(select(mails.c.recipient, mails.c.subject).order_by(mails.c.subject))
        return [(row.recipient, row.subject) for row in rows]


async def test_what_has_exactly_enough_is_not_warned_about_and_one_wei_less_is(database: Database) -> None:
    chain = Chain(ETHER, ETHER)
    setting = Setting(database, chain)
    await setting.watch.look()
    assert await setting.warnings.now() == []
    assert await letters(database) == []
    chain.deposit, chain.balance = ETHER - 1, ETHER - 1
    await setting.watch.look()
    found = await setting.warnings.now()
    assert [(each.kind, each.balance, each.least) for each in found] == [
        ("paymaster_deposit", ETHER - 1, ETHER),
        ("signer_balance", ETHER - 1, ETHER),
    ]
    assert found[0].since == NOON
    assert await letters(database) == [
        ("ops@example.com", f"A bundle signer on {NETWORK} has little left"),
        ("ops@example.com", f"The paymaster on {NETWORK} has little left"),
    ]
    assert setting.metric("capstan_paymaster_low", version="0.8") == 1
    assert setting.metric("capstan_bundler_signer_low", signer="0x" + "51" * 20) == 1


async def test_of_several_processes_and_looks_one_tells(database: Database) -> None:
    settings = [Setting(database, Chain(1, 2 * ETHER)) for _ in range(4)]
    for _ in range(2):
        await asyncio.gather(*(setting.watch.look() for setting in settings))
    assert len(await letters(database)) == 1
    assert len(await settings[0].warnings.now()) == 1


async def test_a_warning_ends_with_a_tenth_more_and_can_begin_again(database: Database) -> None:
    chain = Chain(1, 2 * ETHER)
    setting = Setting(database, chain)
    await setting.watch.look()
    for balance, warned, sent in ((ETHER, 1, 1), (ETHER - 1, 1, 1), (ETHER * 11 // 10, 0, 1), (ETHER - 1, 1, 2)):
        chain.deposit = balance
        await setting.watch.look()
        assert len(await setting.warnings.now()) == warned
        assert len(await letters(database)) == sent


async def test_what_cannot_be_read_changes_nothing_and_what_is_not_watched_is_forgotten(database: Database) -> None:
    chain = Chain(1, 1)
    setting = Setting(database, chain, operators=())
    await setting.watch.look()
    assert await letters(database) == []
    chain.broken = True
    await setting.watch.look()
    assert len(await setting.warnings.now()) == 2
    setting.watched = setting.watched[:1]
    await setting.watch.look()
    assert [each.kind for each in await setting.warnings.now()] == ["paymaster_deposit"]


async def count(database: Database) -> int:
    async with database.read() as connection:
        return int(await connection.scalar(select(func.count()).select_from(gas_sponsorships)) or 0)


@pytest.mark.parametrize(("days", "left"), [(10, 5), (11, 2)])
async def test_old_sponsorships_are_removed_and_the_ledger_adds_up(database: Database, days: int, left: int) -> None:
    policy = await add_policy(database, {"max_total_usd": "1000"})
    ledger, consumer = Ledger(database), SettlementConsumer(NETWORK)
    settled, other, expired, open_, new = drafts = [
        draft(policy.id, nonce=7),
        draft(policy.id, nonce=8, sender=b"\x01" * 20),
        draft(policy.id),
        draft(policy.id, valid_until=2**40),
        draft(policy.id, created_at=NOON + timedelta(days=5), valid_until=2**40),
    ]
    for each in drafts:
        await ledger.reserve(each)
    async with database.write() as connection:
        await consumer.apply(connection, applied(1, handled(settled, 10**14), handled(other, 10**15)))
        await consumer.apply(connection, applied(2, timestamp=expired.valid_until + 1))
        values = {"number": 2 + 257, "hash": "0x" + "00" * 32, "first": 0, "updated_at": to_micros(NOON)}
        await connection.execute(insert(cursors).values(network=NETWORK, role=STREAM_ROLE, **values))
    before = await PolicyStore(database).find(policy.account_id, policy.id, DAY)
    pruner = Pruner(database, ManualClock((NOON + timedelta(days=days)).timestamp()), keep_days=10)
    assert await pruner.work() == 5 - left
    assert await count(database) == left
    assert await imbalance(database) == []
    after = await PolicyStore(database).find(policy.account_id, policy.id, DAY)
    assert before == after
    assert await pruner.work() == 0
    # What is left is still settled and released.
    async with database.write() as connection:
        await consumer.apply(connection, applied(3, handled(new, 10**14), handled(open_, 10**14)))
    assert await imbalance(database) == []


async def test_what_a_reorganisation_can_reach_is_kept(database: Database) -> None:
    policy = await add_policy(database, {"max_total_usd": "1000"})
    ledger, consumer, given = Ledger(database), SettlementConsumer(NETWORK), draft(policy.id, valid_until=2**40)
    await ledger.reserve(given)
    async with database.write() as connection:
        await consumer.apply(connection, applied(1, handled(given, 10**14)))
        values = {"number": 1 + 256, "hash": "0x" + "00" * 32, "first": 0, "updated_at": to_micros(NOON)}
        await connection.execute(insert(cursors).values(network=NETWORK, role=STREAM_ROLE, **values))
    pruner = Pruner(database, ManualClock((NOON + timedelta(days=99)).timestamp()), keep_days=10)
    assert await pruner.work() == 0
    async with database.write() as connection:
        await consumer.apply(connection, reverted(1))
    assert await imbalance(database) == []
