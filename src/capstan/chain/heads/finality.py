"""What is final and what is safe, from what the upstreams of a network say.

Used by the head sources. Pure. One upstream is believed only when it is the only one that answers: of several, the
second-highest number counts, so that a single wrong one cannot make the head final and thereby forbid an honest
reorganisation. A lone number counts once every other upstream has had its turn and could not tell.
"""

from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

Key = TypeVar("Key")

_FRESH_SECONDS = 150.0


class _Vote(msgspec.Struct, frozen=True):
    finalized: int
    safe: int | None
    at: float


class FinalityVotes(Generic[Key]):
    """The last word of each upstream about finality."""

    def __init__(self) -> None:
        self._voters: frozenset[Key] = frozenset()
        self._votes: dict[Key, _Vote] = {}
        self._had_turn: set[Key] = set()
        self._able: set[Key] = set()
        self._unable: set[Key] = set()

    def note(self, voter: Key, finalized: int, safe: int | None, at: float) -> None:
        """The upstream knows what is final."""
        self._had_turn.add(voter)
        self._unable.discard(voter)
        self._able.add(voter)
        self._votes[voter] = _Vote(finalized, safe, at)

    def unsupported(self, voter: Key) -> None:
        """The upstream cannot tell what is final, ever."""
        self._had_turn.add(voter)
        self._votes.pop(voter, None)
        self._able.discard(voter)
        self._unable.add(voter)

    def silent(self, voter: Key) -> None:
        """The upstream has not said what is final this time."""
        self._had_turn.add(voter)

    def forget(self) -> None:
        """Drop all numbers: the chain they were said of is another one now."""
        self._votes.clear()
        self._had_turn = set(self._unable)

    def keep(self, voters: Collection[Key]) -> None:
        """These are the upstreams; forget all others."""
        self._voters = frozenset(voters)
        self._had_turn.intersection_update(voters)
        self._votes = {voter: vote for voter, vote in self._votes.items() if voter in voters}
        self._able.intersection_update(voters)
        self._unable.intersection_update(voters)

    @property
    def nobody_knows(self) -> bool:
        """Whether some upstream has said that it cannot tell, and none could."""
        return bool(self._unable) and not self._able

    def finalized(self, now: float) -> int | None:
        """The number that counts as final."""
        return _second_highest([vote.finalized for vote in self._fresh(now)])

    def safe(self, now: float) -> int | None:
        """The number that counts as safe."""
        return _second_highest([vote.safe for vote in self._fresh(now) if vote.safe is not None])

    def _fresh(self, now: float) -> list[_Vote]:
        fresh = [vote for vote in self._votes.values() if now - vote.at <= _FRESH_SECONDS]
        return [] if len(fresh) == 1 and self._had_turn != self._voters else fresh


def _second_highest(numbers: list[int]) -> int | None:
    ranked = sorted(numbers, reverse=True)
    return ranked[min(1, len(ranked) - 1)] if ranked else None
