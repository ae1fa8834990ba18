"""Answers the items of a JSON-RPC batch at once, within bounds on how many run and how much they answer.

Called by the endpoints that take batches. What an item means, and what its failure looks like, is the caller's affair:
`answer` gives the reply to one item, or None for a notification, and must not raise for a fault of the item.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from capstan.core import jsonrpc
from capstan.core.jsonrpc import Item

_TOO_LARGE = "The answers of this batch are too large together; send the call again on its own."


def _nothing_at_hand(_item: Item) -> None:
    return None


async def answer_batch(
    items: Sequence[Item],
    answer: Callable[[Item], Awaitable[bytes | None]],
    *,
    at_once: int,
    most_bytes: int,
    at_hand: Callable[[Item], bytes | None] = _nothing_at_hand,
) -> bytes | None:
    """The reply to the batch, in the order asked; None when it holds nothing but notifications.

    `at_hand` gives replies that need no waiting, so that no task is made for them; it must not raise. Once the answers
    are larger than `most_bytes` together, the remaining items are not asked any more.
    """
    places = asyncio.Semaphore(at_once)
    replies: list[bytes | None] = [None] * len(items)
    answered_bytes = 0

    async def one(position: int, item: Item) -> None:
        nonlocal answered_bytes
        async with places:
            if answered_bytes > most_bytes:
                if item.id is not None:
                    replies[position] = jsonrpc.error_reply(item.id, jsonrpc.INTERNAL_ERROR, _TOO_LARGE)
                return
            reply = await answer(item)
        replies[position] = reply
        answered_bytes += len(reply or b"")

    waiting: list[tuple[int, Item]] = []
    for position, item in enumerate(items):
        reply = None if answered_bytes > most_bytes else at_hand(item)
        if reply is None:
            waiting.append((position, item))
        else:
            replies[position] = reply
            answered_bytes += len(reply)
    if waiting:
        async with asyncio.TaskGroup() as tasks:
            for position, item in waiting:
                tasks.create_task(one(position, item))
    present = [reply for reply in replies if reply is not None]
    return jsonrpc.batch_reply(present) if present else None
