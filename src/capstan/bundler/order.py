"""In which order operations of the pool go into a bundle: who pays most first, but every sender in the order of nonces.

Called when a bundle is made. Pure.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from capstan.bundler.models import PoolOperation

# What it pays, negative; when it came; its hash; the number of its lane; the rest of the lane.
_Waiting: TypeAlias = tuple[int, int, bytes, int, list[PoolOperation]]


def tip(each: PoolOperation, base_fee: int) -> int:
    """What is left for the bundler for each unit of gas; negative when the fee does not even cover the base fee."""
    operation = each.operation
    return min(operation.max_priority_fee_per_gas, operation.max_fee_per_gas - base_fee)


def best_first(operations: Iterable[PoolOperation], *, base_fee: int, least_tip: int = 0) -> Iterator[PoolOperation]:
    """The operations that pay at least `least_tip`, the best first.

    An operation never comes before one of the same sender and lane that has a lower nonce, and not at all if that one
    does not pay enough: it could not be executed.
    """
    lanes: dict[tuple[bytes, int], list[PoolOperation]] = {}
    for each in operations:
        lanes.setdefault((each.sender.address, each.operation.nonce_key), []).append(each)
    waiting: list[_Waiting] = []
    for number, lane in enumerate(lanes.values()):
        lane.sort(key=lambda each: each.operation.nonce, reverse=True)
        _offer(waiting, lane, number, base_fee, least_tip)
    heapq.heapify(waiting)
    while waiting:
        *_, number, lane = heapq.heappop(waiting)
        yield lane.pop()
        if lane:
            _offer(waiting, lane, number, base_fee, least_tip, ordered=True)


def _offer(
    waiting: list[_Waiting],
    lane: list[PoolOperation],
    number: int,
    base_fee: int,
    least_tip: int,
    *,
    ordered: bool = False,
) -> None:
    """Put the next of a lane among those that wait, if it pays enough.

    Of two that pay the same the one that came first is first; the hash makes the order certain.
    """
    paid = tip(lane[-1], base_fee)
    if paid < least_tip:
        return
    item = (-paid, lane[-1].created_at, lane[-1].hash, number, lane)
    if ordered:
        heapq.heappush(waiting, item)
    else:
        waiting.append(item)
