"""The day ledger when the database answers later than a request can wait: late is not twice."""

import asyncio
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from capstan.core.clock import SystemClock
from capstan.limits.day import DayLedger
from capstan.limits.store import Claim, Grant, grant
from tests.unit.limits.parts import NoStore


class LateStore(NoStore):
    """A row in memory, whose answers come when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved = 0
        self.may_answer = asyncio.Event()

    async def settle(self, claims: Sequence[Claim]) -> list[Grant]:
        await self.may_answer.wait()
        grants = []
        for claim in claims:
            decided = grant(claim, self.reserved)
            self.reserved = decided.reserved
            grants.append(decided)
        return grants

    async def prune(self, first_kept: int) -> int:
        return 0


async def test_what_was_served_while_the_answer_was_on_its_way_comes_out_of_the_answer() -> None:
    store = LateStore()
    ledger = DayLedger(store, SystemClock(), CollectorRegistry(), patience_seconds=0.05, retry_seconds=0.01)
    await ledger.start()
    early = await asyncio.gather(*(ledger.hold("acc_1", 60, 1) for _ in range(50)))
    assert all(early)
    store.may_answer.set()
    later = await asyncio.gather(*(ledger.hold("acc_1", 60, 1) for _ in range(1_000)))
    await ledger.close()
    assert sum(bool(day) for day in early + later) == 60
    assert store.reserved == 60
