"""The reputation of entities, by the arithmetic of ERC-7562.

Kept by the pool: an operation that is accepted counts as seen for each of its entities, one that lands as included.
Both fade by a twenty-fourth every hour. Who is seen much more often than included is throttled, then banned. Integers
only. No I/O: the owner tells the time, and stores and restores the entries.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Standing = Literal["ok", "throttled", "banned"]

_HOUR_SECONDS = 3600
# After so many hours every count has faded to nothing that matters; more need not be computed one by one.
_MOST_HOURS = 24 * 60
# What the inclusion rate counts for in the early form of UREP-020.
_EARLY_RATE_FACTOR = 10


class ReputationRules(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of ERC-7562, as a bundler has them."""

    min_inclusion_rate_denominator: int = 10
    throttling_slack: int = 10
    ban_slack: int = 50
    ban_ops_seen_penalty: int = 10_000
    same_sender_count: int = 4
    same_unstaked_entity_count: int = 10
    most_ops_allowed_unstaked: int = 10_000
    throttled_count: int = 4
    throttled_bundle_count: int = 4
    throttled_live_blocks: int = 10
    min_stake: int = 10**18
    min_unstake_delay: int = 86_400
    # UREP-020 as it was when entry point 0.6 was current, which its test suite still asks for: it limits unstaked
    # factories as well, and every operation that was included allows one more.
    early_unstaked_limits: bool = False


class Reputation(msgspec.Struct, frozen=True):
    """The counts of one address."""

    address: bytes
    seen: int
    included: int


class ReputationBook:
    """The counts of all entities."""

    def __init__(
        self,
        rules: ReputationRules | None = None,
        *,
        never_limited: Iterable[bytes] = (),
        always_banned: Iterable[bytes] = (),
    ) -> None:
        self.rules = rules or ReputationRules()
        self._never_limited = frozenset(never_limited)
        self._always_banned = frozenset(always_banned)
        self._counts: dict[bytes, tuple[int, int]] = {}
        # Addresses whose counts changed since `take_changes`.
        self._changed: set[bytes] = set()
        # The whole hours since 1970 up to which the counts have faded.
        self._hour: int | None = None

    def __iter__(self) -> Iterator[Reputation]:
        return (Reputation(address, seen, included) for address, (seen, included) in self._counts.items())

    def standing(self, address: bytes) -> Standing:
        """What the address is allowed: see `ok`, `throttled` and `banned` of ERC-7562."""
        if address in self._never_limited:
            return "ok"
        if address in self._always_banned:
            return "banned"
        seen, included = self._counts.get(address, (0, 0))
        expected = seen // self.rules.min_inclusion_rate_denominator
        if expected > included + self.rules.ban_slack:
            return "banned"
        return "throttled" if expected > included + self.rules.throttling_slack else "ok"

    def allowed_unstaked(self, address: bytes) -> int:
        """How many operations of the pool may use this unstaked entity (UREP-020)."""
        seen, included = self._counts.get(address, (0, 0))
        rules = self.rules
        most = min(included, rules.most_ops_allowed_unstaked)
        if rules.early_unstaked_limits:
            earned = most + (_EARLY_RATE_FACTOR * included // seen if seen else 0)
        else:
            earned = included * most // seen if seen else 0
        return rules.same_unstaked_entity_count + earned

    def add_seen(self, address: bytes) -> None:
        """An operation that uses the address entered the pool."""
        seen, included = self._counts.get(address, (0, 0))
        self._set(address, seen + 1, included)

    def take_back_seen(self, address: bytes) -> None:
        """It left the pool through no fault of this entity (GREP-050, EREP-015)."""
        seen, included = self._counts.get(address, (0, 0))
        self._set(address, max(0, seen - 1), included)

    def add_included(self, address: bytes) -> None:
        """An operation that uses the address landed."""
        seen, included = self._counts.get(address, (0, 0))
        self._set(address, seen, included + 1)

    def take_back_included(self, address: bytes) -> None:
        """A reorganisation took an operation back that had landed."""
        seen, included = self._counts.get(address, (0, 0))
        self._set(address, seen, max(0, included - 1))

    def condemn(self, address: bytes) -> None:
        """The entity made a bundle fail after its second validation (GREP-040): banned."""
        self._set(address, self.rules.ban_ops_seen_penalty, 0)

    def throttle(self, address: bytes) -> bool:
        """Hold the entity back until its operations land again (EREP-070). False when it is held back already."""
        if self.standing(address) != "ok" or address in self._never_limited:
            return False
        _, included = self._counts.get(address, (0, 0))
        rules = self.rules
        self._set(address, (included + rules.throttling_slack + 1) * rules.min_inclusion_rate_denominator, included)
        return True

    @property
    def hour(self) -> int | None:
        """The whole hours since 1970 up to which the counts have faded."""
        return self._hour

    def get(self, address: bytes) -> Reputation:
        """The counts of one address."""
        return Reputation(address, *self._counts.get(address, (0, 0)))

    def take_changes(self) -> list[Reputation]:
        """The addresses whose counts changed since the last call, as they are now. Fading is not told here."""
        changed, self._changed = self._changed, set()
        return [self.get(address) for address in sorted(changed)]

    def fade(self, now: float) -> bool:
        """Let the counts fade up to this moment, in seconds since 1970. Whether a new hour has begun since."""
        hour = int(now) // _HOUR_SECONDS
        if self._hour is None or hour <= self._hour:
            self._hour = hour if self._hour is None else self._hour
            return False
        for _ in range(min(hour - self._hour, _MOST_HOURS)):
            if not self._counts:
                break
            faded = {
                address: (seen * 23 // 24, included * 23 // 24) for address, (seen, included) in self._counts.items()
            }
            self._counts = {address: counts for address, counts in faded.items() if any(counts)}
        self._hour = hour
        return True

    def restore(self, entries: Iterable[Reputation], *, hour: int | None = None) -> None:
        """Set the counts of these addresses; `hour` is the one up to which they have faded."""
        for entry in entries:
            self._set(entry.address, entry.seen, entry.included)
        if hour is not None:
            self._hour = hour

    def clear(self) -> None:
        """Forget everything."""
        self._counts.clear()

    def _set(self, address: bytes, seen: int, included: int) -> None:
        self._changed.add(address)
        if seen or included:
            self._counts[address] = seen, included
        else:
            self._counts.pop(address, None)
