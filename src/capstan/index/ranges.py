"""How many blocks of history to ask for at a time: more after every success, fewer after a refusal. Pure.

One `RangePlan` belongs to one fetching of one subject. What a network's upstreams refuse for good is remembered in its
`RangeLimit`, which all plans of the network share. The plan hands out ranges until every block was fetched; a range
that was refused comes back in smaller parts.
"""

from collections.abc import Iterable

from capstan.core.clock import Clock

Span = tuple[int, int]

_MOST_BLOCKS = 1_000_000
_GROWTH = 2
# Logs of one answer that are neither too many for memory and one transaction nor too few for the time a call takes.
_GOOD_EVENTS = 5_000
_MOST_EVENTS = 20_000
# A limit that an upstream named is believed for so long: the operator may change the upstream.
_BELIEVED_SECONDS = 3_600.0


class RangeLimit:
    """The most blocks that the upstreams of a network take in one call, as far as is known."""

    def __init__(self, clock: Clock, most: int = _MOST_BLOCKS) -> None:
        self._clock = clock
        self._most = most
        self._learned = most
        self._until = 0.0

    @property
    def blocks(self) -> int:
        """The limit that holds now."""
        return self._learned if self._clock.monotonic() < self._until else self._most

    def learn(self, blocks: int) -> None:
        """An upstream takes no more than this."""
        self._learned = max(1, min(blocks, self.blocks))
        self._until = self._clock.monotonic() + _BELIEVED_SECONDS


class RangePlan:
    """The ranges that are still to be fetched."""

    def __init__(self, gaps: Iterable[Span], limit: RangeLimit, first_blocks: int) -> None:
        # Lowest last, so that it is taken first.
        self._gaps = sorted(gaps, reverse=True)
        self._limit = limit
        self._blocks = first_blocks

    @property
    def blocks(self) -> int:
        """How many blocks the next range has at the most."""
        return max(1, min(self._blocks, self._limit.blocks))

    def take(self) -> Span | None:
        """The next range to fetch; None when there is none at the moment."""
        if not self._gaps:
            return None
        first, last = self._gaps.pop()
        end = min(last, first + self.blocks - 1)
        if end < last:
            self._gaps.append((end + 1, last))
        return first, end

    def succeeded(self, span: Span, events: int) -> None:
        """A range was fetched and held so many events."""
        blocks = span[1] - span[0] + 1
        if events > _MOST_EVENTS:
            self._blocks = max(1, blocks * _GOOD_EVENTS // events)
        elif events < _GOOD_EVENTS and blocks >= self._blocks:
            self._blocks = min(_MOST_BLOCKS, blocks * _GROWTH)

    def refused(self, span: Span, *, limit: int | None = None, lasting: bool = False) -> bool:
        """A range was too much. `limit` is what the upstream would take; `lasting`: whatever the filter.

        Returns false when it cannot be made any smaller; then it is not handed out again.
        """
        first, last = span
        blocks = last - first + 1
        if blocks == 1:
            return False
        half = blocks // 2
        fitting = limit if limit is not None and 0 < limit < blocks else half
        if lasting:
            self._limit.learn(fitting)
        self._blocks = min(self.blocks, fitting)
        self._gaps.append(span)
        self._gaps.sort(reverse=True)
        return True

    def failed(self, span: Span) -> None:
        """A range could not be fetched for another reason; it is handed out again, in halves if it can be."""
        if not self.refused(span):
            self._gaps.append(span)
