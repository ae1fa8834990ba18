"""The ledger after anything: random sponsorships, landings, expiries, reorganisations, and kills of processes."""

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from decimal import Decimal

import pytest
from sqlalchemy import select

from capstan.core.decimals import parse_units
from capstan.gas.policies.store import PolicyStore
from capstan.gas.sponsor.amounts import nano_usd
from capstan.gas.sponsor.judging import Refused
from capstan.gas.sponsor.ledger import Ledger, imbalance
from capstan.gas.sponsor.models import Draft
from capstan.gas.sponsor.settlement import SettlementConsumer
from capstan.storage.database import Database
from capstan.storage.schema import gas_sponsorships
from tests.support.gas_ledger import DAY, NETWORK, NOON, PRICE, add_policy, applied, draft, handled, reverted
from tests.support.service import clean_environment

BUDGET = "25"
_LONGEST_WAIT = 120.0


class Model:
    """What the ledger should say, kept in the plainest way."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.given: dict[str, Draft] = {}
        # Of each: how it ended, and in which block; the amount counted.
        self.ended: dict[str, tuple[str, int, int]] = {}

    @property
    def reserved(self) -> int:
        return sum(each.cost for name, each in self.given.items() if name not in self.ended)

    @property
    def spent(self) -> int:
        return sum(amount for _, _, amount in self.ended.values())

    def fits(self, cost: int) -> bool:
        return self.reserved + self.spent + cost <= self.budget

    def open(self) -> list[Draft]:
        return [each for name, each in self.given.items() if name not in self.ended]

    def apply(self, number: int, landed: Sequence[tuple[Draft, int]], now: int) -> None:
        for each, cost in landed:
            self.ended[each.id] = ("settled", number, nano_usd(cost, each.price))
            for other in self.open():
                if (other.sender, other.nonce) == (each.sender, each.nonce):
                    self.ended[other.id] = ("released", number, 0)
        for each in self.open():
            if each.valid_until < now:
                self.ended[each.id] = ("released", number, 0)

    def take_back(self, number: int) -> None:
        self.ended = {name: ended for name, ended in self.ended.items() if ended[1] != number}


@pytest.mark.parametrize("seed", range(4))
async def test_reserved_and_spent_and_free_are_the_budget_after_random_steps(database: Database, seed: int) -> None:
    dice = random.Random(seed)
    policy = await add_policy(database, {"max_total_usd": BUDGET})
    model, ledger = Model(parse_units(BUDGET, 9)), Ledger(database)
    consumer = SettlementConsumer(NETWORK, release_seconds=0)
    senders = [dice.randbytes(20) for _ in range(4)]
    chain: list[int] = []
    now = int(NOON.timestamp())
    for step in range(60):
        for _ in range(dice.randrange(4)):
            given = draft(
                policy.id,
                sender=dice.choice(senders),
                nonce=dice.randrange(6),
                cost=dice.randrange(1, 4 * 10**9),
                valid_until=now + dice.randrange(1, 60),
                price=PRICE + Decimal(dice.randrange(10**6)) / 1_000,
            )
            allowed = model.fits(given.cost)
            try:
                await ledger.reserve(given)
                granted = True
            except Refused:
                granted = False
            assert granted == allowed
            if granted:
                model.given[given.id] = given
        for _ in range(dice.choice((0, 0, 0, 1, 3))):
            if chain:
                number = chain.pop()
                async with database.write() as connection:
                    await consumer.apply(connection, reverted(number))
                model.take_back(number)
        now += dice.randrange(1, 15)
        # The entry point lets one operation pass for each sender and nonce.
        passed = {
            (model.given[name].sender, model.given[name].nonce)
            for name, (how, _, _) in model.ended.items()
            if how == "settled"
        }
        landed: list[tuple[Draft, int]] = []
        for each in model.open():
            if dice.random() < 0.3 and (each.sender, each.nonce) not in passed and each.valid_until >= now:
                passed.add((each.sender, each.nonce))
                landed.append((each, dice.randrange(1, each.cost * 10**9 // int(each.price + 1) + 2)))
        chain.append(step)
        async with database.write() as connection:
            await consumer.apply(connection, applied(step, *(handled(*pair) for pair in landed), timestamp=now))
        model.apply(step, landed, now)
        found = await PolicyStore(database).find(policy.account_id, policy.id, DAY)
        assert found is not None
        assert (found.all_time.reserved, found.all_time.spent) == (model.reserved, model.spent)
        assert found.all_time == found.today
        free = model.budget - found.all_time.total
        assert found.all_time.reserved + found.all_time.spent + free == model.budget
    assert await imbalance(database) == []


async def test_the_ledger_adds_up_after_processes_are_killed(database: Database, database_url: str) -> None:
    policy = await add_policy(database, {"max_total_usd": "1000000"})
    granted: set[str] = set()
    for seed in range(4):
        granted |= _run_and_kill(database_url, policy.id, seed, lines=40 + 15 * seed)
        assert await imbalance(database) == []
    async with database.read() as connection:
        rows = (await connection.execute(select(gas_sponsorships))).mappings().all()
    assert granted <= {row["id"] for row in rows}
    assert "settled" in {row["state"] for row in rows}
    for row in rows:
        if row["state"] == "settled":
            assert row["spent"] == nano_usd(int(row["actual_cost"]), Decimal(row["price"]))
        else:
            assert (row["spent"], row["actual_cost"]) == (0, None)


def _run_and_kill(url: str, policy: str, seed: int, *, lines: int) -> set[str]:
    """What a process said it had granted, up to the moment at which it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.gas_child", url, policy, str(seed)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(_LONGEST_WAIT, child.kill)
    watchdog.start()
    granted = set()
    assert child.stdout is not None
    try:
        for _ in range(lines):
            line = child.stdout.readline()
            assert line, child.stderr.read() if child.stderr else ""
            if line.startswith("granted"):
                granted.add(line.split()[1])
        child.send_signal(signal.SIGKILL)
        # What it wrote before the kill counts as well.
        granted |= {line.split()[1] for line in child.stdout if line.startswith("granted") and line.endswith("\n")}
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
    return granted
