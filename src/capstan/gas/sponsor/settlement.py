"""How reservations end: settled when the operation is in a block, released when it cannot be any more.

A durable consumer of one network's stream, called inside the transaction of each block. An operation is known by its
sender and nonce, of which an entry point lets only one pass: when one of several sponsorships for it lands, the others
are released. A sponsorship that no block came to hold is released when the time of the blocks is past its validity.
What a block decided, its reorganisation undoes. It asks no node anything.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import RowMapping, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Applied, Block, Delta, Demand, Log
from capstan.core.hexes import to_data
from capstan.gas.sponsor.amounts import nano_usd
from capstan.gas.sponsor.ledger import move
from capstan.storage.schema import gas_policies, gas_policy_days, gas_sponsorships
from capstan.userops.events import OPERATION_HANDLED_TOPIC, OperationHandled, decode_event

_HANDLED = to_data(OPERATION_HANDLED_TOPIC)
# Well below the number of parameters that either database takes in one statement.
_SENDERS_AT_ONCE = 500
_RELEASES_AT_ONCE = 5_000


class _LogData(msgspec.Struct, frozen=True):
    data: str


class Landed(msgspec.Struct, frozen=True):
    """An operation in a block."""

    entry_point: bytes
    transaction: bytes
    event: OperationHandled


class SettlementConsumer:
    """The durable consumer of one network's stream."""

    def __init__(self, network: str, *, decimals: int = 18, release_seconds: float = 0) -> None:
        self._network = network
        self._decimals = decimals
        self._release_seconds = release_seconds

    @property
    def demand(self) -> Demand:
        """Blocks with their logs."""
        return Demand.LOGS

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        """Write what the block means for sponsorships, in the stream's transaction."""
        block = delta.block
        if not isinstance(delta, Applied):
            await self._undo(connection, block)
            return
        landed = _landed(block.logs or ())
        changes = _Changes(block)
        if landed:
            await self._settle(connection, landed, changes)
        await self._release(connection, block, changes)
        await changes.write(connection)

    async def reset(self, connection: AsyncConnection) -> None:
        """The chain is another one: nothing was sponsored on it yet."""
        mine = select(gas_policies.c.id).where(gas_policies.c.network == self._network)
        await connection.execute(delete(gas_sponsorships).where(gas_sponsorships.c.network == self._network))
        await connection.execute(delete(gas_policy_days).where(gas_policy_days.c.policy_id.in_(mine)))
        await connection.execute(
            update(gas_policies)
            .where(gas_policies.c.network == self._network)
            .values(reserved=0, spent=0, pruned=0, from_block=0)
        )

    async def _settle(self, connection: AsyncConnection, landed: Sequence[Landed], changes: "_Changes") -> None:
        found: dict[tuple[bytes, bytes, bytes], list[RowMapping]] = {}
        senders = sorted({each.event.sender for each in landed})
        for start in range(0, len(senders), _SENDERS_AT_ONCE):
            rows = await connection.execute(
                select(gas_sponsorships).where(
                    gas_sponsorships.c.network == self._network,
                    gas_sponsorships.c.sender.in_(senders[start : start + _SENDERS_AT_ONCE]),
                    gas_sponsorships.c.state != "settled",
                )
            )
            for row in rows.mappings():
                found.setdefault((row["entry_point"], row["sender"], row["nonce"]), []).append(row)
        for each in landed:
            event = each.event
            group = found.get((each.entry_point, event.sender, event.nonce.to_bytes(32, "big")), [])
            winner = _winner(group, event)
            if winner is not None:
                cost = nano_usd(event.actual_gas_cost, Decimal(winner["price"]), self._decimals)
                changes.settle(winner, each, cost)
            for row in group:
                if row is not winner and row["state"] == "reserved":
                    changes.release(row)

    async def _release(self, connection: AsyncConnection, block: Block, changes: "_Changes") -> None:
        query = (
            select(gas_sponsorships)
            .where(
                gas_sponsorships.c.network == self._network,
                gas_sponsorships.c.state == "reserved",
                gas_sponsorships.c.valid_until < block.timestamp - self._release_seconds,
            )
            .limit(_RELEASES_AT_ONCE)
        )
        for row in (await connection.execute(query)).mappings():
            changes.release(row)

    async def _undo(self, connection: AsyncConnection, block: Block) -> None:
        query = select(gas_sponsorships).where(
            gas_sponsorships.c.network == self._network, gas_sponsorships.c.block_hash == _bytes(block.hash)
        )
        changes = _Changes(block)
        for row in (await connection.execute(query)).mappings():
            changes.reserve_again(row)
        await changes.write(connection)


class _Changes:
    """What one block changes: rows of sponsorships, and the sums over them."""

    def __init__(self, block: Block) -> None:
        self._at = {"block_number": block.number, "block_hash": _bytes(block.hash)}
        self._rows: dict[str, dict[str, Any]] = {}
        self._sums: dict[tuple[str, int], tuple[int, int]] = {}

    def settle(self, row: RowMapping, landed: Landed, cost: int) -> None:
        """The operation of this row is in the block."""
        event = landed.event
        self._change(
            row,
            state="settled",
            spent=cost,
            actual_cost=str(event.actual_gas_cost),
            transaction_hash=landed.transaction,
            success=event.success,
            **self._at,
        )

    def release(self, row: RowMapping) -> None:
        """It cannot land any more."""
        if row["id"] not in self._rows:
            self._change(row, state="released", spent=0, **_UNDECIDED, **self._at)

    def reserve_again(self, row: RowMapping) -> None:
        """What the block decided did not happen."""
        self._change(row, state="reserved", spent=0, **_UNDECIDED, block_number=None, block_hash=None)

    def _change(self, row: RowMapping, **values: Any) -> None:
        self._rows[row["id"]] = values
        before = row["reserved"] if row["state"] == "reserved" else 0
        after = row["reserved"] if values["state"] == "reserved" else 0
        reserved, spent = self._sums.get((row["policy_id"], row["day"]), (0, 0))
        change = (reserved + after - before, spent + values["spent"] - row["spent"])
        self._sums[row["policy_id"], row["day"]] = change

    async def write(self, connection: AsyncConnection) -> None:
        """Write all of it. Policies always in the same order, so that nobody waits for each other."""
        for (policy_id, day), (reserved, spent) in sorted(self._sums.items()):
            await move(connection, policy_id, day, reserved=reserved, spent=spent)
        for identifier, values in self._rows.items():
            await connection.execute(
                update(gas_sponsorships).where(gas_sponsorships.c.id == identifier).values(**values)
            )


_UNDECIDED: Mapping[str, Any] = {"actual_cost": None, "transaction_hash": None, "success": None}


def _winner(group: Sequence[RowMapping], event: OperationHandled) -> RowMapping | None:
    """Which of the sponsorships for an operation paid for it; None when nobody's paymaster did, or another's.

    By its hash; where that was not known when it was signed, by the paymaster, the latest first. One that was released
    already counts as well: then a reorganisation has made room for what seemed impossible.
    """
    candidates = [row for row in group if row["hash"] == event.hash]
    if not candidates:
        candidates = [row for row in group if row["hash"] is None and row["paymaster"] == event.paymaster]
    return max(candidates, key=lambda row: (row["state"] == "reserved", row["created_at"], row["id"]), default=None)


def _landed(logs: Sequence[Log]) -> list[Landed]:
    found = []
    for log in logs:
        if not log.topics or log.topics[0] != _HANDLED:
            continue
        data = _bytes(msgspec.json.decode(log.raw, type=_LogData).data)
        event = decode_event([_bytes(topic) for topic in log.topics], data)
        if isinstance(event, OperationHandled):
            found.append(Landed(_bytes(log.address), _bytes(log.transaction_hash), event))
    return found


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])
