"""Removes old sponsorships, and keeps the sums right.

Made by the composition root; a task of its own in each process. Only what is decided for good is removed: settled or
released in a block that no reorganisation can reach, and given longer ago than the retention. What a removed one spent
is added to its policy's `pruned` in the same transaction, so the ledger still adds up after a kill at any instant.
"""

import asyncio
from collections import Counter

import structlog
from sqlalchemy import and_, delete, select, update

from capstan.chain.follower.kept import REVERTIBLE_BLOCKS
from capstan.core.clock import Clock
from capstan.gas.policies.service import utc_day_number
from capstan.gas.policies.store import STREAM_ROLE
from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.schema import cursors, gas_policies, gas_sponsorships

log = structlog.get_logger(__name__)

_SECONDS = 3_600.0
_AT_ONCE = 500
_PAUSE_SECONDS = 0.05


class Pruner:
    """`start`, and `close` at the end."""

    def __init__(self, database: Database, clock: Clock, *, keep_days: int) -> None:
        self._database = database
        self._clock = clock
        self._keep_days = keep_days
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. Must be called with the event loop running."""
        self._task = asyncio.create_task(self._run(), name="old sponsorships")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def work(self) -> int:
        """Remove one batch; how many that were."""
        first = utc_day_number(self._clock) - self._keep_days
        columns = gas_sponsorships.c
        mine = and_(cursors.c.network == columns.network, cursors.c.role == STREAM_ROLE)
        query = (
            select(columns.id, columns.policy_id, columns.spent)
            .select_from(gas_sponsorships.join(cursors, mine))
            .where(
                columns.day < first,
                columns.state != "reserved",
                columns.block_number < cursors.c.number - REVERTIBLE_BLOCKS,
            )
            .order_by(columns.id)
            .limit(_AT_ONCE)
            .with_for_update(skip_locked=True, of=gas_sponsorships)
        )
        async with self._database.write() as connection:
            rows = (await connection.execute(query)).all()
            spent: Counter[str] = Counter()
            for row in rows:
                spent[row.policy_id] += row.spent
            # Always in the same order, so that two processes cannot wait for each other.
            for policy_id in sorted(spent):
                pruned = gas_policies.c.pruned + spent[policy_id]
                await connection.execute(
                    update(gas_policies).where(gas_policies.c.id == policy_id).values(pruned=pruned)
                )
            if rows:
                await connection.execute(delete(gas_sponsorships).where(columns.id.in_([row.id for row in rows])))
        return len(rows)

    async def _run(self) -> None:
        while True:
            pause = _SECONDS
            try:
                if await self.work() == _AT_ONCE:
                    pause = _PAUSE_SECONDS
            except StorageError as error:
                log.warning("gas.prune_unavailable", reason=str(error))
            except Exception:
                # A mistake of ours must not end the task.
                log.exception("gas.prune_failed")
            await asyncio.sleep(pause)
