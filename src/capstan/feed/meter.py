"""Charges for what is pushed: compute units of the account, and the usage ledger of the key.

Sessions count their messages; ten times a second the meter adds them up, records them and takes their units from the
account's limit. A message is sent first and paid for afterwards, so that a burst of logs arrives as it happened. What
the limit does not cover at once is owed and paid as the limit frees up; meanwhile the account's calls find less of it.
An account that owes more than `grace_seconds` of its limit has its sockets closed with 4429: nothing is ever left out
silently.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from capstan.access.models import Caller
from capstan.core.frames import OVER_LIMIT
from capstan.feed.models import PUSH_METHOD, Usage
from capstan.limits.models import Limits, RateLimiter

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.1
# A part of the limit below which nothing smaller is tried when a debt does not fit at once.
_SMALLEST_SHARE = 64


class Pushing(Protocol):
    """A session, as the meter sees it."""

    # Messages since the last look.
    pushed: int

    @property
    def caller(self) -> Caller: ...

    @property
    def network_name(self) -> str: ...

    def close(self, code: int, reason: str) -> None: ...


class _Debtor:
    """What an account has been sent and not paid for, and the sockets it went to."""

    __slots__ = ("caller", "sessions", "units")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.units = 0
        self.sessions: set[Pushing] = set()


class PushMeter:
    """Counts pushed messages."""

    def __init__(
        self,
        limiter: RateLimiter,
        usage: Usage,
        *,
        limits_of: Callable[[Caller], Limits],
        price: Callable[[], int],
        grace_seconds: float,
    ) -> None:
        self._limiter = limiter
        self._usage = usage
        self._limits_of = limits_of
        self._price = price
        self._grace_seconds = grace_seconds
        self._noted: set[Pushing] = set()
        self._debtors: dict[str, _Debtor] = {}
        self._task: asyncio.Task[None] | None = None
        self.total = 0

    def start(self) -> None:
        """Begin to look at the counts."""
        self._task = asyncio.create_task(self._run(), name="feed-meter")

    async def close(self) -> None:
        """Stop, and record what was sent last."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.settle()

    def note(self, session: Pushing) -> None:
        """A session has sent its first message since the last look."""
        self._noted.add(session)

    def is_overdrawn(self, caller: Caller) -> bool:
        """Whether the account owes more than a second of its limit, so that it must not subscribe to more."""
        debtor = self._debtors.get(caller.account_id)
        return debtor is not None and debtor.units > self._limits_of(caller).units_per_second

    async def settle(self) -> None:
        """Record and charge everything since the last look."""
        noted, self._noted = self._noted, set()
        price = self._price()
        for session in noted:
            count, session.pushed = session.pushed, 0
            self._record(session, count, count * price)
        for account_id in list(self._debtors):
            await self._collect(account_id, self._debtors[account_id])

    def _record(self, session: Pushing, count: int, units: int) -> None:
        caller = session.caller
        self.total += count
        self._usage.record_pushes(
            account_id=caller.account_id,
            key_id=caller.key_id,
            network=session.network_name,
            method=PUSH_METHOD,
            count=count,
            units=units,
        )
        if units and self._limits_of(caller).units_per_second:
            debtor = self._debtors.setdefault(caller.account_id, _Debtor(caller))
            debtor.caller = caller
            debtor.units += units
            debtor.sessions.add(session)

    async def _collect(self, account_id: str, debtor: _Debtor) -> None:
        limits = self._limits_of(debtor.caller)
        limit = limits.units_per_second
        least = max(1, limit // _SMALLEST_SHARE)
        amount = min(debtor.units, limit)
        while amount:
            decision = await self._limiter.take(account_id, limits, requests=0, units=amount)
            if decision.allowed:
                debtor.units -= amount
            if decision.allowed or amount <= least:
                break
            amount = max(least, amount // 2)
        if not limit or not debtor.units:
            del self._debtors[account_id]
            return
        if debtor.units > limit * self._grace_seconds:
            reason = f"pushed messages exceed the limit of {limit} compute units per second"
            log.info("feed_account_over_limit", account=account_id, owed=debtor.units, sockets=len(debtor.sessions))
            for session in debtor.sessions:
                session.close(OVER_LIMIT, reason)
            debtor.sessions.clear()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.settle()
            except Exception:
                # Whatever it was, the next look must come: an account would otherwise be sent things for nothing.
                log.exception("feed_meter_failed")
