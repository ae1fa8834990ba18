"""The daily quota of deliveries of an account: first attempts count, retries do not.

Asked by the store inside the transaction that claims events, so what is counted is exactly what is claimed. An event
over the quota is marked and comes back at the next UTC midnight; nothing is lost. An account without a limit costs
nothing here.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.models import Overrides
from capstan.core.clock import Clock, seconds_to_midnight, utc_day
from capstan.storage.schema import accounts
from capstan.storage.webhook_schema import webhook_days, webhook_events
from capstan.webhooks.delivery.models import DueEvent, Target

# The deliveries per day of a plan with what the operator set for the account; 0 is no limit.
DeliveryLimit = Callable[[str, Overrides], int]
_events = webhook_events.c
_OVERRIDES = msgspec.json.Decoder(Overrides)


class Quota:
    """Counts and holds back."""

    def __init__(self, limit: DeliveryLimit, clock: Clock, *, is_sqlite: bool) -> None:
        self._limit = limit
        self._clock = clock
        self._insert = sqlite.insert if is_sqlite else postgresql.insert

    async def admit(
        self, connection: AsyncConnection, targets: Mapping[str, Target], due: Mapping[str, Sequence[DueEvent]]
    ) -> dict[str, list[DueEvent]]:
        """What may be sent of what is due; the rest is held until midnight."""
        admitted = {webhook_id: list(events) for webhook_id, events in due.items()}
        owners = sorted({targets[webhook_id].account_id for webhook_id in due})
        for account_id, limit in (await self._limits(connection, owners)).items():
            if limit:
                lanes = [each for each in admitted if targets[each].account_id == account_id]
                await self._account(connection, account_id, limit, admitted, lanes)
        return admitted

    async def _account(
        self,
        connection: AsyncConnection,
        account_id: str,
        limit: int,
        admitted: dict[str, list[DueEvent]],
        lanes: Sequence[str],
    ) -> None:
        fresh = sorted(event.seq for lane in lanes for event in admitted[lane] if event.attempts == 0)
        if not fresh:
            return
        counted = set(
            await connection.scalars(select(_events.seq).where(_events.seq.in_(fresh), _events.counted.is_(True)))
        )
        new = [seq for seq in fresh if seq not in counted]
        used = await self._used(connection, account_id)
        room = max(0, limit - used)
        taken, held = new[:room], new[room:]
        if taken:
            await connection.execute(
                update(webhook_days)
                .where(webhook_days.c.account_id == account_id, webhook_days.c.day == utc_day(self._clock))
                .values(used=used + len(taken))
            )
            await connection.execute(
                update(webhook_events).where(_events.seq.in_(taken)).values(counted=True, state="pending")
            )
        if held:
            midnight = int(self._clock.now()) + seconds_to_midnight(self._clock)
            await connection.execute(
                update(webhook_events)
                .where(_events.seq.in_(held))
                .values(state="quota_held", due_at=midnight * 1_000_000)
            )
            refused = set(held)
            for lane in lanes:
                admitted[lane] = [event for event in admitted[lane] if event.seq not in refused]

    async def _used(self, connection: AsyncConnection, account_id: str) -> int:
        """What was counted today. The row is locked until the transaction ends."""
        day = utc_day(self._clock)
        statement = self._insert(webhook_days).values(account_id=account_id, day=day, used=0)
        await connection.execute(statement.on_conflict_do_nothing())
        mine = (webhook_days.c.account_id == account_id, webhook_days.c.day == day)
        return int(await connection.scalar(select(webhook_days.c.used).where(*mine).with_for_update()) or 0)

    async def _limits(self, connection: AsyncConnection, owners: Sequence[str]) -> dict[str, int]:
        columns = (accounts.c.id, accounts.c.plan, accounts.c.overrides)
        rows = await connection.execute(select(*columns).where(accounts.c.id.in_(owners)))
        return {row.id: self._limit(row.plan, _OVERRIDES.decode(row.overrides or "{}")) for row in rows}
