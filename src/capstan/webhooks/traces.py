"""Finds internal transfers: native coins that contracts move, which no log tells of.

Works off the notes that the stream consumer leaves: the calls of each block are asked of a node (`debug` namespace,
callTracer), and the events are written in one transaction with the removal of the note. A block that was taken back
meanwhile has no note any more, and nothing is written for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import structlog
from sqlalchemy import delete, select

from capstan.core.decimals import format_units
from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.webhook_schema import webhook_traces
from capstan.webhooks.kinds import Family
from capstan.webhooks.matching import Draft
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.payloads import Place, address_text
from capstan.webhooks.subscriptions import ADDRESS, Subscriptions

log = structlog.get_logger(__name__)

_POLL_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
# The kinds of calls that can move coins from one account to another.
_MOVING = frozenset({"CALL", "CREATE", "CREATE2", "SELFDESTRUCT"})


class Call(msgspec.Struct, frozen=True):
    """One call as callTracer tells it."""

    type: str
    sender: str = msgspec.field(name="from")
    to: str | None = None
    value: str | None = None
    error: str | None = None
    calls: tuple["Call", ...] = ()


class TracedTransaction(msgspec.Struct, frozen=True, rename="camel"):
    """The calls of one transaction."""

    tx_hash: str
    result: Call


# Asks a node of a network for the calls of a block, by its hash. Raises `TraceUnavailable`.
Tracer: TypeAlias = Callable[[str], Awaitable[tuple[TracedTransaction, ...]]]


class TraceUnavailable(Exception):
    """No node can tell the calls of a block now."""


class InternalTransfers:
    """Works off the notes of one network. Construct, `start`, and `close` at the end."""

    def __init__(
        self,
        place: Place,
        database: Database,
        subscriptions: Subscriptions,
        outbox: Outbox,
        tracer: Tracer,
        *,
        written: Callable[[], None],
    ) -> None:
        self._place = place
        self._database = database
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._tracer = tracer
        self._written = written
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name=f"internal transfers of {self._place.network}")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                while await self.work():
                    failures = 0
                pause = _POLL_SECONDS
            except (TraceUnavailable, StorageError) as error:
                failures += 1
                pause = min(_POLL_SECONDS * 2.0 ** min(failures, 10), _LONGEST_PAUSE)
                log.warning("webhooks.no_trace", network=self._place.network, reason=str(error)[:200], again_in=pause)
            except Exception:
                pause = _LONGEST_PAUSE
                log.exception("webhooks.trace_failed", network=self._place.network)
            await asyncio.sleep(pause)

    async def work(self) -> bool:
        """Work off the oldest note; false when there is none."""
        notes = webhook_traces.c
        query = select(notes.block_number, notes.block_hash).where(notes.network == self._place.network)
        async with self._database.read() as connection:
            note = (await connection.execute(query.order_by(notes.block_number).limit(1))).first()
        if note is None:
            return False
        block_hash = "0x" + note.block_hash.hex()
        traced = await self._tracer(block_hash)
        async with self._database.write() as connection:
            taken = await connection.execute(
                delete(webhook_traces).where(
                    notes.network == self._place.network,
                    notes.block_number == note.block_number,
                    notes.block_hash == note.block_hash,
                )
            )
            if taken.rowcount != 1:
                return True
            await self._subscriptions.refresh(connection)
            drafts = list(self._drafts(note.block_number, traced))
            if drafts:
                last = await self._outbox.last_phase(connection, block_hash)
                phase = 0 if last is None else last + last % 2
                await self._outbox.write(connection, note.block_number, block_hash, drafts, phase)
        self._written()
        return True

    def _drafts(self, number: int, traced: tuple[TracedTransaction, ...]) -> Iterator[Draft]:
        for transaction in traced:
            for path, call in moving_calls(transaction.result):
                sender, receiver = bytes.fromhex(call.sender[2:]), bytes.fromhex((call.to or "0x")[2:])
                value = int(call.value or "0x0", 16)
                keys = (ADDRESS + sender, ADDRESS + receiver)
                for subscription in self._subscriptions.find(Family.INTERNAL, keys):
                    if value < subscription.filters.min_value:
                        continue
                    data: dict[str, Any] = {
                        "blockNumber": number,
                        "transactionHash": transaction.tx_hash,
                        "traceAddress": list(path),
                        "callType": call.type.lower(),
                        "from": address_text(sender),
                        "to": address_text(receiver) if receiver else None,
                        "value": str(value),
                        "valueFormatted": format_units(value, self._place.decimals),
                    }
                    position = f"trace:{transaction.tx_hash}:{'.'.join(map(str, path))}"
                    yield Draft(subscription, position, data)


def moving_calls(top: Call) -> Iterator[tuple[tuple[int, ...], Call]]:
    """The calls inside a transaction that moved coins, with where they are. What was reverted has moved nothing."""
    pending: list[tuple[tuple[int, ...], Call]] = [((), top)]
    while pending:
        path, call = pending.pop()
        if call.error is not None:
            continue
        if path and call.type in _MOVING and int(call.value or "0x0", 16):
            yield path, call
        pending.extend(((*path, place), inner) for place, inner in reversed(list(enumerate(call.calls))))
