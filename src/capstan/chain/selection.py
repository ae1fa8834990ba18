"""Which upstream comes next: pure rules over what is known of each.

Called by the pool before every attempt, and by whoever wants to see why (`explain`). It reads the candidates, the needs
of the call and a source of chance; it changes nothing and waits for nothing.

The rules, in this order:

1. An upstream that does not take the method, or has spent its budget of calls, is left out. So is one without old
   state when the call needs that and another has it.
2. By standing, best first; see `Standing`.
3. By tier, lowest first.
4. By cost: the median latency for this method, plus what its failures cost. Those within twice the best and a little
   are as good as each other, and so are those of which nothing is known; chance decides among them, by weight.
"""

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from random import Random
from typing import Generic, Protocol, TypeVar

import msgspec

# Upstreams whose cost is below this multiple of the best, and a few milliseconds, are as good as the best.
_COMPARABLE_FACTOR = 2.0
_COMPARABLE_SECONDS = 0.005


class Standing(IntEnum):
    """How an upstream stands for one call, best first."""

    # Out of rotation, and due to be tried by one call. Comes first: otherwise nothing would ever try it.
    PROBE = 0
    READY = 1
    # Has given no sign of life for a while although calls are waiting.
    SILENT = 2
    # Too many blocks behind the others.
    LAGGING = 3
    # Known not to have the block that the call needs.
    SHORT = 4
    # Out of rotation. Asked when all else failed.
    OPEN = 5
    # Never asked:
    SPENT = 6
    UNFIT = 7


class Needs(msgspec.Struct, frozen=True, gc=False):
    """What a call asks of an upstream."""

    method: str
    # The upstream should have this block.
    block: int | None = None
    # The upstream should have the state of old blocks.
    archive: bool = False
    # Whether the call may be the one that tries an upstream which was out of rotation.
    may_probe: bool = True


class Situation(msgspec.Struct, frozen=True, gc=False):
    """What concerns all candidates alike."""

    now: float
    best_head: int | None = None
    # More blocks behind the best head than this is lagging.
    max_lag: int = 3


class Candidate(Protocol):
    """What the rules look at. `PooledUpstream` is one."""

    @property
    def name(self) -> str: ...
    @property
    def tier(self) -> int: ...
    @property
    def weight(self) -> int: ...
    @property
    def archive(self) -> bool: ...
    @property
    def head(self) -> int | None: ...
    @property
    def in_rotation(self) -> bool: ...
    @property
    def due(self) -> bool: ...
    def allows(self, method: str) -> bool: ...
    def silent(self, now: float) -> bool: ...
    def budget_wait(self, now: float) -> float: ...
    def cost(self, method: str, now: float) -> float | None: ...


C = TypeVar("C", bound=Candidate)


class MethodRules:
    """Which methods an upstream is used for. A trailing * in a pattern stands for the rest of the name."""

    __slots__ = ("_allowed", "_denied")

    def __init__(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._allowed = _matcher(allow)
        self._denied = _matcher(deny)

    def __call__(self, method: str) -> bool:
        if self._denied is not None and self._denied(method):
            return False
        return self._allowed is None or self._allowed(method)


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    if not patterns:
        return None
    names = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return lambda method: method in names or method.startswith(prefixes)


def standing(candidate: Candidate, needs: Needs, situation: Situation) -> Standing:
    """How the candidate stands for the call."""
    now = situation.now
    if not candidate.allows(needs.method):
        return Standing.UNFIT
    if candidate.budget_wait(now) > 0.0:
        return Standing.SPENT
    head = candidate.head
    if candidate.in_rotation:
        if head is not None:
            if needs.block is not None and head < needs.block:
                return Standing.SHORT
            if situation.best_head is not None and situation.best_head - head > situation.max_lag:
                return Standing.LAGGING
        return Standing.SILENT if candidate.silent(now) else Standing.READY
    if not needs.may_probe or not candidate.due:
        return Standing.OPEN
    # While it was away its head grew old. It is tried with calls for which that does not matter.
    behind = head is not None and (
        (needs.block is not None and head < needs.block)
        or (situation.best_head is not None and situation.best_head - head > situation.max_lag)
    )
    return Standing.OPEN if behind else Standing.PROBE


def choose(
    candidates: Sequence[C], needs: Needs, situation: Situation, random: Random, *, tried: Collection[C] = ()
) -> C | None:
    """The candidate to ask next, or None when there is none left that may be asked."""
    return by_weight(shortlist(candidates, needs, situation, tried=tried), random)


def shortlist(candidates: Sequence[C], needs: Needs, situation: Situation, *, tried: Collection[C] = ()) -> list[C]:
    """Those that are as good as the best."""
    best: list[C] = []
    best_place = (Standing.SPENT, 0)
    without_archive: list[C] = []
    for candidate in candidates:
        if candidate in tried:
            continue
        if needs.archive and not candidate.archive:
            without_archive.append(candidate)
            continue
        place = (standing(candidate, needs, situation), candidate.tier)
        if place[0] >= Standing.SPENT:
            continue
        if not best or place < best_place:
            best, best_place = [candidate], place
        elif place == best_place:
            best.append(candidate)
    if not best:
        if without_archive and not any(candidate.archive for candidate in candidates):
            # Nobody is said to have old state. A node that lacks it says so itself.
            return shortlist(candidates, msgspec.structs.replace(needs, archive=False), situation, tried=tried)
        return best
    return best if len(best) == 1 else _comparable(best, needs.method, situation.now)


def _comparable(candidates: list[C], method: str, now: float) -> list[C]:
    costs = [candidate.cost(method, now) for candidate in candidates]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return candidates
    limit = min(known) * _COMPARABLE_FACTOR + _COMPARABLE_SECONDS
    return [candidate for candidate, cost in zip(candidates, costs, strict=True) if cost is None or cost <= limit]


def by_weight(candidates: list[C], random: Random) -> C | None:
    """One of them, by chance and weight."""
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    point = random.random() * sum(candidate.weight for candidate in candidates)
    for candidate in candidates:
        point -= candidate.weight
        if point < 0:
            return candidate
    return candidates[-1]


class Shortlists(Generic[C]):
    """Remembers shortlists for a moment, since hundreds of calls come between two changes that matter.

    `version` must change whenever something happens to a candidate that cannot wait for that moment.
    """

    _SECONDS = 0.05
    _MOST = 256

    def __init__(self) -> None:
        self._lists: dict[tuple[str, int | None, bool], tuple[float, int, list[C]]] = {}
        # What is known for a method, a block and whether an archive is needed: until when, of which version, and whom.
        self.get = self._lists.get

    def keep(self, needs: Needs, now: float, version: int, found: list[C]) -> None:
        """Remember a shortlist, unless it is for trying out an upstream: that is for one call."""
        if not found or not found[0].in_rotation:
            return
        if len(self._lists) >= self._MOST:
            self._lists.clear()
        self._lists[needs.method, needs.block, needs.archive] = (now + self._SECONDS, version, found)


def budget_wait(candidates: Sequence[C], needs: Needs, now: float, *, tried: Collection[C] = ()) -> float | None:
    """How long until one that was left out for its budget alone may be asked; None when there is no such candidate."""
    archive = needs.archive and any(candidate.archive for candidate in candidates)
    waits = [
        wait
        for candidate in candidates
        if candidate not in tried and candidate.allows(needs.method) and (candidate.archive or not archive)
        if (wait := candidate.budget_wait(now)) > 0.0
    ]
    return min(waits, default=None)


class Explanation(msgspec.Struct, frozen=True):
    """Where one upstream stands, for a human."""

    upstream: str
    standing: str
    tier: int
    weight: int
    # None: nothing recent is known.
    cost_milliseconds: float | None
    head: int | None
    lag: int | None


def explain(candidates: Sequence[Candidate], needs: Needs, situation: Situation) -> list[Explanation]:
    """All candidates with the reasons for their order, best first."""
    rows = []
    for candidate in candidates:
        cost = candidate.cost(needs.method, situation.now)
        head, best_head = candidate.head, situation.best_head
        place = standing(candidate, needs, situation)
        if needs.archive and not candidate.archive and any(other.archive for other in candidates):
            place = Standing.UNFIT
        row = Explanation(
            upstream=candidate.name,
            standing=place.name.lower(),
            tier=candidate.tier,
            weight=candidate.weight,
            cost_milliseconds=None if cost is None else round(cost * 1000, 3),
            head=head,
            lag=None if head is None or best_head is None else max(0, best_head - head),
        )
        rows.append(((place, candidate.tier, cost or 0.0), row))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]
