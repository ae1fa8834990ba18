"""Adds the time of their block to transfers whose log did not tell it.

Called by the service for one page at a time. Older nodes tell no time with logs, and asking for the header of every
block of a long history would cost more than the history; so the headers of the few that are shown are asked for when
they are. What cannot be had stays unknown.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from capstan.index.history import HistoryReader, HistoryUnavailable
from capstan.index.models import Transfer

_AT_ONCE = 8
_MOST_SECONDS = 5.0


async def with_times(reader: HistoryReader, transfers: Sequence[Transfer]) -> tuple[Transfer, ...]:
    """The same transfers, with the times of their blocks as far as an upstream tells them."""
    wanted = {item.block_hash for item in transfers if item.timestamp is None}
    if not wanted:
        return tuple(transfers)
    times: dict[bytes, int] = {}
    places = asyncio.Semaphore(_AT_ONCE)

    async def fetch(block_hash: bytes) -> None:
        async with places:
            try:
                times[block_hash] = (await reader.header("0x" + block_hash.hex())).timestamp
            except HistoryUnavailable:
                return

    tasks = [asyncio.create_task(fetch(block_hash)) for block_hash in wanted]
    _, late = await asyncio.wait(tasks, timeout=_MOST_SECONDS)
    for task in late:
        task.cancel()
    return tuple(
        item if item.timestamp is not None else msgspec.structs.replace(item, timestamp=times.get(item.block_hash))
        for item in transfers
    )
