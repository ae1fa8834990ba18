"""The values of the usage ledger: counts that can be added up, and where they belong.

Shared by the recorder, the ledger, the store and the routes. Nothing here touches a clock or a database.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from capstan.storage.schema import LATENCY_BUCKETS

# The method under which everything is counted that is no known method, or one too many of them.
OTHER = "other"

MINUTES_PER_DAY = 1_440
SECONDS_PER_MINUTE = 60

# Bucket n holds what took less than 2^(_FIRST_BITS + n) microseconds: 128 microseconds in the first, and the last holds
# what took 16.8 seconds or more. The bucket of a latency is thus found by the number of its bits.
_FIRST_BITS = 7
BUCKET_OF_BITS = tuple(min(max(bits - _FIRST_BITS, 0), LATENCY_BUCKETS - 1) for bits in range(65))


class Counts(msgspec.Struct, frozen=True):
    """What was used. Two of these add up to one."""

    requests: int = 0
    units: int = 0
    errors: int = 0
    cached: int = 0
    microseconds: int = 0
    buckets: tuple[int, ...] = (0,) * LATENCY_BUCKETS

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.requests + other.requests,
            self.units + other.units,
            self.errors + other.errors,
            self.cached + other.cached,
            self.microseconds + other.microseconds,
            tuple(one + two for one, two in zip(self.buckets, other.buckets, strict=True)),
        )

    @property
    def mean_microseconds(self) -> int:
        """The mean latency; zero when there was no request."""
        return self.microseconds // self.requests if self.requests else 0

    def quantile_microseconds(self, percent: int) -> int:
        """The latency that `percent` of the requests did not exceed, as well as the histogram knows it.

        Within a bucket the requests are taken to be spread evenly. What is beyond the last bound counts as that bound.
        """
        return quantile_microseconds(self.buckets, percent)


class Tally:
    """Counts that are still growing. Mutable and small, because one is found and changed for every request.

    The number of requests is the sum of the buckets.
    """

    __slots__ = ("account_id", "buckets", "cached", "errors", "microseconds", "units")

    def __init__(self, account_id: str) -> None:
        self.account_id = account_id
        self.units = 0
        self.errors = 0
        self.cached = 0
        self.microseconds = 0
        self.buckets = [0] * LATENCY_BUCKETS

    @property
    def requests(self) -> int:
        """How many requests were counted."""
        return sum(self.buckets)

    def numbers(self) -> tuple[int, ...]:
        """All counts in the order of the columns in the database."""
        return (self.requests, self.units, self.errors, self.cached, self.microseconds, *self.buckets)


class Delta(NamedTuple):
    """What is to be added to the ledger for one minute (since 1970-01-01 UTC). Sorts as the ledger writes."""

    account_id: str
    key_id: str
    network: str
    method: str
    minute: int
    tally: Tally


class Usage(msgspec.Struct, frozen=True):
    """Counts under a name: a method, a key, a network, a day (`2026-01-31`) or a minute (`2026-01-31T12:00:00Z`)."""

    name: str
    counts: Counts


def quantile_microseconds(buckets: Sequence[int], percent: int) -> int:
    """See `Counts.quantile_microseconds`."""
    if not 0 < percent <= 100:
        raise ValueError(f"a quantile lies between 1 and 100 percent, not at {percent}")
    # The rank of the wanted request, rounded up: the median of three is the second.
    rank = -(-sum(buckets) * percent // 100)
    before = 0
    for number, held in enumerate(buckets):
        if held and before + held >= rank:
            lower = 0 if number == 0 else 1 << (_FIRST_BITS + number - 1)
            if number == len(buckets) - 1:
                return lower
            upper = 1 << (_FIRST_BITS + number)
            return lower + (upper - lower) * (rank - before) // held
        before += held
    return 0
