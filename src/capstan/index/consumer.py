"""Follows the canonical stream of one network into the transfer index.

The stream calls `apply` for every block, inside the one transaction that also moves its cursor: transfers, sums and the
index's own position are written together or not at all. Of each block it keeps the transfers of the subjects that are
followed, as the table of subjects says at that moment. A reverted block's rows are removed and their sums taken back.
Metadata notices are handed on within the same transaction. It fetches nothing.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.chain.follower.models import Applied, Block, Delta, Demand
from capstan.index.events import NOTICE_TOPICS, TRANSFER_TOPICS, NodeLog, notice_in, place_of, transfers_in
from capstan.index.metrics import IndexMetrics
from capstan.index.models import ZERO_ADDRESS, Notice, Position, SubjectKind, Transfer
from capstan.index.notices import condensed
from capstan.index.subjects import NetworkState, Subjects
from capstan.index.writer import TransferWriter

log = structlog.get_logger(__name__)

_LOG = msgspec.json.Decoder(NodeLog)


class MetadataListener(Protocol):
    """Who wants to know that a contract said something changed; the token and NFT services do."""

    async def metadata_changed(self, connection: AsyncConnection, network: str, notices: Sequence[Notice]) -> None:
        """These were announced, few for each contract. Writes in the given transaction, or not at all."""
        ...


class IndexConsumer:
    """The durable consumer of one network's stream."""

    def __init__(
        self,
        network: str,
        subjects: Subjects,
        writer: TransferWriter,
        metrics: IndexMetrics,
        *,
        wrapped: frozenset[bytes] = frozenset(),
        listener: MetadataListener | None = None,
    ) -> None:
        """`wrapped`: see `events.transfers_in`."""
        self._network = network
        self._subjects = subjects
        self._writer = writer
        self._metrics = metrics
        self._wrapped = wrapped
        self._listener = listener

    @property
    def demand(self) -> Demand:
        """Blocks with their logs."""
        return Demand.LOGS

    async def apply(self, connection: AsyncConnection, delta: Delta) -> None:
        """Take one step of the stream into the index, in the stream's transaction."""
        block = delta.block
        state = await self._subjects.lock(connection, self._network)
        if isinstance(delta, Applied):
            position: Position | None = Position(block.number, _bytes(block.hash))
            if position == state.position:
                return
            await self._connect(connection, state, block)
            await self._add(connection, state.id, block)
            await self._tell(connection, block)
        else:
            if state.position is None or block.number > state.position.number:
                # It was never applied here.
                return
            position = await self._go_back(connection, state.id, block)
        await self._subjects.advance(connection, state.id, position)
        self._metrics.block.labels(self._network).set(-1 if position is None else position.number)

    async def reset(self, connection: AsyncConnection) -> None:
        """The chain is another one: forget all of it. Subjects stay; their history is fetched anew."""
        state = await self._subjects.lock(connection, self._network)
        await self._writer.wipe(connection, state.id)
        await self._subjects.restart(connection, state.id, None)
        await self._subjects.advance(connection, state.id, None)

    async def _connect(self, connection: AsyncConnection, state: NetworkState, block: Block) -> None:
        """Make the index end at the parent of this block."""
        parent = Position(block.number - 1, _bytes(block.parent_hash))
        before = state.position
        if before is None:
            await self._subjects.begin(connection, state.id, parent)
        elif before != parent:
            log.warning(
                "index.stream_jumped",
                network=self._network,
                before=before.number,
                next=block.number,
                reason="the block is not the child of the last one in the index",
            )
            if block.number <= before.number:
                await self._go_back(connection, state.id, block)
            elif block.number > before.number + 1:
                await self._subjects.skip(connection, state, parent)
            else:
                # Another chain. What is in the index of the old one is worth nothing.
                await self._writer.wipe(connection, state.id)
                await self._subjects.restart(connection, state.id, parent)

    async def _go_back(self, connection: AsyncConnection, network_id: int, block: Block) -> Position | None:
        """Take back this block and all above it. Returns the position after that."""
        parent = Position(block.number - 1, _bytes(block.parent_hash))
        removed = await self._writer.remove_from(connection, network_id, block.number)
        await self._subjects.rewind(connection, network_id, parent)
        self._metrics.removed.labels(self._network).inc(removed)
        return parent if parent.number >= 0 else None

    async def _add(self, connection: AsyncConnection, network_id: int, block: Block) -> None:
        found = self._transfers(block)
        if not found:
            return
        addresses = {address for item in found for address in (item.contract, item.sender, item.receiver)}
        addresses.discard(ZERO_ADDRESS)
        watched = await self._subjects.watched(connection, network_id, addresses)
        if (SubjectKind.ALL, b"") not in watched:
            found = [item for item in found if _concerns(item, watched)]
        added = await self._writer.add(connection, network_id, found)
        self._metrics.transfers.labels(self._network, "stream").inc(added)

    def _transfers(self, block: Block) -> list[Transfer]:
        found: list[Transfer] = []
        for item in block.logs or ():
            if item.topics and item.topics[0] in TRANSFER_TOPICS:
                try:
                    entry = _LOG.decode(item.raw)
                    found.extend(transfers_in(entry, place_of(entry, block.timestamp), self._wrapped))
                except (ValueError, msgspec.MsgspecError) as error:
                    self._skip(item.transaction_hash, item.index, error)
        return found

    async def _tell(self, connection: AsyncConnection, block: Block) -> None:
        if self._listener is None:
            return
        notices: list[Notice] = []
        for item in block.logs or ():
            if item.topics and item.topics[0] in NOTICE_TOPICS:
                try:
                    notice = notice_in(_LOG.decode(item.raw))
                except (ValueError, msgspec.MsgspecError) as error:
                    self._skip(item.transaction_hash, item.index, error)
                else:
                    notices.extend([notice] if notice is not None else [])
        if notices:
            await self._listener.metadata_changed(connection, self._network, condensed(notices))

    def _skip(self, transaction_hash: str, index: int, error: Exception) -> None:
        self._metrics.malformed.labels(self._network).inc()
        log.debug("index.malformed", network=self._network, tx=transaction_hash, log_index=index, reason=str(error))


def _concerns(transfer: Transfer, watched: set[tuple[SubjectKind, bytes]]) -> bool:
    return (
        (SubjectKind.HOLDER, transfer.sender) in watched
        or (SubjectKind.HOLDER, transfer.receiver) in watched
        or (transfer.is_nft and (SubjectKind.CONTRACT, transfer.contract) in watched)
    )


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])
