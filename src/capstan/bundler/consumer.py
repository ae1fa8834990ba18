"""Sees in the canonical stream what became of operations and bundles, and writes it in the transaction of each block.

One consumer for each network; the durable stream calls it. An event of an entry point says that an operation was
included, whoever sent the bundle; the transaction says which nonce of a signer is used up. What a reorganisation takes
back returns to the pool. It asks no node anything.
"""

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.bundler.entries import Entry, Inclusion
from capstan.bundler.reputation import Reputation
from capstan.bundler.slots import Mined, SlotStore
from capstan.bundler.store import PoolRow, PoolStore
from capstan.chain.follower.models import Applied, Block, Delta, Demand, Log
from capstan.core.clock import Clock
from capstan.core.hexes import parse_data, to_data
from capstan.userops.events import (
    OPERATION_HANDLED_TOPIC,
    OPERATION_REVERTED_TOPIC,
    POST_OPERATION_REVERTED_TOPIC,
    OperationHandled,
    OperationReverted,
    PostOperationReverted,
    decode_event,
)
from capstan.userops.failures import revert_text

_HANDLED = to_data(OPERATION_HANDLED_TOPIC)
_TOPICS = frozenset({_HANDLED, to_data(OPERATION_REVERTED_TOPIC), to_data(POST_OPERATION_REVERTED_TOPIC)})
_MICROSECONDS = 1_000_000


class _LogData(msgspec.Struct):
    data: str


class _Outcome(msgspec.Struct):
    """What a block says of one operation."""

    transaction: bytes
    success: bool
    reason: str = ""


class InclusionConsumer:
    """The durable consumer of one network's stream."""

    def __init__(self, pool: PoolStore, slots: SlotStore, entry_points: frozenset[bytes], clock: Clock) -> None:
        self._pool = pool
        self._slots = slots
        self._entry_points = frozenset(to_data(address) for address in entry_points)
        self._clock = clock

    @property
    def demand(self) -> Demand:
        """Blocks with their logs."""
        return Demand.LOGS

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        """Write what the block means for operations and bundles, in the stream's transaction."""
        if isinstance(delta, Applied):
            outcomes = self._outcomes(delta.block.logs or ())
            if outcomes:
                await self._include(connection, delta.block, outcomes)
        else:
            await self._take_back(connection, parse_data(delta.block.hash))

    async def reset(self, connection: AsyncConnection) -> None:
        """The chain is another one: nothing that was signed or accepted for the old one holds."""
        row = await self._pool.lock(connection)
        await self._pool.forget(connection)
        await self._slots.forget(connection)
        await self._pool.save(connection, PoolRow(row.revision + 1, row.epoch + 1, row.hour))

    # --- forwards

    def _outcomes(self, logs: tuple[Log, ...]) -> dict[bytes, _Outcome]:
        found: dict[bytes, _Outcome] = {}
        reasons: dict[bytes, str] = {}
        for log in logs:
            if not log.topics or log.topics[0] not in _TOPICS or log.address not in self._entry_points:
                continue
            data = parse_data(msgspec.json.decode(log.raw, type=_LogData).data)
            event = decode_event([parse_data(topic) for topic in log.topics], data)
            if isinstance(event, OperationReverted | PostOperationReverted):
                reasons[event.hash] = revert_text(event.reason) if event.reason else ""
            elif isinstance(event, OperationHandled):
                reason = "" if event.success else reasons.get(event.hash, "")
                found[event.hash] = _Outcome(parse_data(log.transaction_hash), event.success, reason)
        return found

    async def _include(self, connection: AsyncConnection, block: Block, outcomes: dict[bytes, _Outcome]) -> None:
        entries = await self._pool.find(connection, outcomes)
        ours = await self._slots.among(connection, {outcome.transaction for outcome in outcomes.values()})
        if not entries and not ours:
            return
        row = await self._pool.lock(connection)
        # Read again behind the lock: somebody may have changed them.
        entries = await self._pool.find(connection, outcomes)
        block_hash = parse_data(block.hash)
        changed = {}
        for entry in entries:
            outcome = outcomes[entry.hash]
            where = Inclusion(outcome.transaction, block.number, block_hash, outcome.success)
            changed[entry.hash] = msgspec.structs.replace(
                entry, state="included", reason=outcome.reason, inclusion=where, signer=None, signer_nonce=None
            )
        await self._write(connection, row, changed, credit=1)
        for transaction, (signer, nonce, _) in ours.items():
            await self._slots.close(connection, signer, nonce, Mined(transaction, block.number, block_hash))
            await self._release(connection, signer, nonce, row.revision + 1)

    async def _release(self, connection: AsyncConnection, signer: bytes, nonce: int, revision: int) -> None:
        """What waited for this nonce and was not in the transaction that used it is free again."""
        left = await self._pool.in_bundle(connection, signer, nonce)
        freed = [msgspec.structs.replace(each, state="pending", signer=None, signer_nonce=None) for each in left]
        await self._pool.put(connection, freed, revision, self._now())

    # --- backwards

    async def _take_back(self, connection: AsyncConnection, block_hash: bytes) -> None:
        row = await self._pool.lock(connection)
        places = await self._slots.reopen(connection, block_hash)
        entries = await self._pool.in_block(connection, block_hash)
        if not places and not entries:
            return
        ours = await self._slots.among(
            connection, {entry.inclusion.transaction for entry in entries if entry.inclusion is not None}
        )
        changed = {}
        for entry in entries:
            assert entry.inclusion is not None, "it was found by its block"
            known = ours.get(entry.inclusion.transaction)
            # Its transaction may well come back; until that is known the operation is not for another bundle.
            where = (
                {"state": "pending", "signer": None, "signer_nonce": None}
                if known is None
                else {"state": "submitted", "signer": known[0], "signer_nonce": known[1]}
            )
            changed[entry.hash] = msgspec.structs.replace(entry, reason="", inclusion=None, **where)
        await self._write(connection, row, changed, credit=-1)

    # --- both

    async def _write(
        self, connection: AsyncConnection, row: PoolRow, changed: dict[bytes, Entry], *, credit: int
    ) -> None:
        """Write operations, and what they mean for the reputation of their entities."""
        revision = row.revision + 1
        await self._pool.put(connection, changed.values(), revision, self._now())
        known = await self._pool.reputations(connection)
        for entry_point in {entry.entry_point.address for entry in changed.values()}:
            counts = {each.address: each for each in known.get(entry_point, ())}
            touched: dict[bytes, Reputation] = {}
            for entry in changed.values():
                if entry.entry_point.address != entry_point:
                    continue
                for entity in entry.pooled().counted():
                    before = counts.get(entity.address, Reputation(entity.address, 0, 0))
                    after = msgspec.structs.replace(before, included=max(0, before.included + credit))
                    counts[entity.address] = touched[entity.address] = after
            await self._pool.put_reputations(connection, entry_point, list(touched.values()), revision)
        await self._pool.save(connection, PoolRow(revision, row.epoch, row.hour))

    def _now(self) -> int:
        return int(self._clock.now() * _MICROSECONDS)
