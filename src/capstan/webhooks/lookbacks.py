"""Tells of transactions that were mined before the webhook that waits for them was there.

Works off the notes that are written with such a webhook. A node is asked for each transaction; one in a block that the
stream has passed already becomes an event here, under the same id as if the stream had found it, and one in a later
block is left to the stream. Which of the two it is, is decided in one transaction with the writing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec
import structlog
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.schema import applied_blocks, cursors
from capstan.storage.webhook_schema import webhook_lookbacks
from capstan.webhooks.matching import ChainTransaction, MinedReceipt, mined_draft
from capstan.webhooks.outbox import Outbox
from capstan.webhooks.subscriptions import Subscription, Subscriptions

log = structlog.get_logger(__name__)

# Names the cursor of the stream in which webhooks are matched.
ROLE = "webhooks"
_POLL_SECONDS = 0.5
_LONGEST_PAUSE = 30.0
_AT_ONCE = 8
_notes = webhook_lookbacks.c


class Mined(msgspec.Struct, frozen=True):
    """A transaction in a block."""

    number: int
    block_hash: str
    index: int
    transaction: ChainTransaction
    receipt: MinedReceipt


class LookUnavailable(Exception):
    """No node can tell of a transaction now."""


class Unsettled(Exception):
    """The stream has not got so far, or the block may be taken back."""


# Where a transaction is; None while it is in no block. Raises `LookUnavailable`.
Finder: TypeAlias = Callable[[str], Awaitable[Mined | None]]


class Lookbacks:
    """Works off the notes of one network. Construct, `start`, and `close` at the end."""

    def __init__(
        self,
        network: str,
        database: Database,
        subscriptions: Subscriptions,
        outbox: Outbox,
        finder: Finder,
        *,
        written: Callable[[], None],
    ) -> None:
        self._network = network
        self._database = database
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._finder = finder
        self._written = written
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name=f"mined before, of {self._network}")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            pause = _POLL_SECONDS
            try:
                while await self.work():
                    failures = 0
            except Unsettled:
                log.debug("webhooks.lookback_waits", network=self._network)
            except (LookUnavailable, StorageError) as error:
                failures += 1
                pause = min(_POLL_SECONDS * 2.0 ** min(failures, 10), _LONGEST_PAUSE)
                log.warning("webhooks.no_lookback", network=self._network, reason=str(error)[:200], again_in=pause)
            except Exception:
                pause = _LONGEST_PAUSE
                log.exception("webhooks.lookback_failed", network=self._network)
            await asyncio.sleep(pause)

    async def work(self) -> bool:
        """Work off one note; false when there is none."""
        query = select(_notes.webhook_id, _notes.revision).where(_notes.network == self._network).limit(1)
        async with self._database.read() as connection:
            note = (await connection.execute(query)).first()
            if note is None:
                return False
            await self._subscriptions.refresh(connection)
        subscription = self._subscriptions.get(note.webhook_id)
        hashes = sorted(subscription.filters.tx_hashes) if subscription is not None else []
        for first in range(0, len(hashes), _AT_ONCE):
            asked = (self._finder("0x" + each.hex()) for each in hashes[first : first + _AT_ONCE])
            found = [each for each in await asyncio.gather(*asked) if each is not None]
            if found and subscription is not None:
                await self._write(subscription, found)
        async with self._database.write() as connection:
            # A note that was written anew meanwhile stays.
            done = (_notes.webhook_id == note.webhook_id) & (_notes.revision == note.revision)
            await connection.execute(delete(webhook_lookbacks).where(done))
        return True

    async def _write(self, subscription: Subscription, found: Sequence[Mined]) -> None:
        async with self._database.write() as connection:
            for each in found:
                if await self._is_passed(connection, each):
                    last = await self._outbox.last_phase(connection, each.block_hash)
                    draft = mined_draft(
                        subscription, each.number, each.block_hash, each.index, each.transaction, each.receipt
                    )
                    phase = 0 if last is None else last + last % 2
                    await self._outbox.write(connection, each.number, each.block_hash, [draft], phase)
        self._written()

    async def _is_passed(self, connection: AsyncConnection, mined: Mined) -> bool:
        """Whether the stream has passed this very block, and will not tell of it any more."""
        mine = (cursors.c.network == self._network, cursors.c.role == ROLE)
        position = await connection.scalar(select(cursors.c.number).where(*mine))
        if position is None:
            raise Unsettled
        if mined.number > position:
            return False
        columns = applied_blocks.c
        here = (columns.network == self._network, columns.role == ROLE, columns.number == mined.number)
        applied = await connection.scalar(select(columns.hash).where(*here))
        if applied is not None and applied != mined.block_hash:
            raise Unsettled
        return True
