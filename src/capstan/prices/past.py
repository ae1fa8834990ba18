"""Reads logs of the last days from the newest backwards, a window of blocks at a time.

Used by the sources of floor prices, which look at the past now and then and keep no index of their own. A window that
an upstream refuses is halved; one that holds little is followed by a wider one. The number of questions is bounded, so
on a fast chain the oldest days may be left out.
"""

from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

from capstan.chain.errors import NodeError, is_log_range_error
from capstan.chain.registry import Network
from capstan.core.hexes import to_quantity

T = TypeVar("T")

_FIRST_WINDOW, _WIDEST_WINDOW, _NARROWEST_WINDOW = 2_000, 64_000, 50
_MOST_QUESTIONS = 60
# An answer with fewer logs than this makes the next window wider.
_FEW = 1_000
_DAY_MS = 86_400_000


class Past:
    """The blocks of some days, up to `last`, but not those below `first`."""

    def __init__(self, network: Network, last: int, *, days: int, first: int = 0) -> None:
        self._network = network
        self._last = last
        self._first = max(first, last - days * _DAY_MS // max(1, network.spec.block_time_ms), 0)

    async def logs(self, kind: type[T], which: Mapping[str, object]) -> AsyncIterator[list[T]]:
        """The logs that match, window by window. Raises `NodeError` and the failures of the pool."""
        widest = self._network.spec.max_log_range or _WIDEST_WINDOW
        window, last = min(_FIRST_WINDOW, widest), self._last
        for _ in range(_MOST_QUESTIONS):
            if last < self._first:
                return
            first = max(self._first, last - window + 1)
            where = {"fromBlock": to_quantity(first), "toBlock": to_quantity(last)}
            try:
                logs = await self._network.pool.request_as(list[kind], "eth_getLogs", [{**where, **which}])  # type: ignore[valid-type]  # mypy cannot express it
            except NodeError as error:
                if not is_log_range_error(error) or window <= _NARROWEST_WINDOW:
                    raise
                window = widest = max(_NARROWEST_WINDOW, window // 2)
                continue
            yield logs
            last = first - 1
            if len(logs) < _FEW:
                window = min(widest, window * 2)
