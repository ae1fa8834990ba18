"""What a limit is, what the answer to a request is, and the interface every limiter has.

The server and the RPC fast path speak `RateLimiter` and read `Decision`; `app.py` chooses between the limiter of one
process (`memory`) and the one shared through Redis (`redis`). Nothing here counts anything.
"""

from typing import Protocol

import msgspec

REQUESTS_PER_SECOND = "requests_per_second"
REQUESTS_PER_DAY = "requests_per_day"
UNITS_PER_SECOND = "units_per_second"

# The window of the two per-second limits, in seconds.
WINDOW = 1.0


class Limits(msgspec.Struct, frozen=True):
    """The three limits of one account. Zero means no limit."""

    requests_per_second: int
    requests_per_day: int
    units_per_second: int


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Whether a request may pass, and the figures of its response headers.

    `limit`, `remaining` and `reset` describe the requests-per-second window; `limit` and `remaining` are zero when it
    is unlimited. `reset` is the Unix second at which the window is empty again if nothing more comes. `retry_after` is
    zero when allowed. `reason` names the limit that refused. `fits_never` says that waiting cannot help, because the
    request alone costs more than the limit. `stamp` is opaque: it goes back into `refund`.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: int
    retry_after: int
    reason: str
    fits_never: bool = False
    stamp: float = 0.0


class RateLimiter(Protocol):
    """Counts what each subject uses. A request passes when all three limits have room; else it uses nothing."""

    def take_now(self, subject: str, limits: Limits, requests: int = 1, units: int = 1) -> Decision | None:
        """Decide without waiting, or return None, having used nothing, when the caller must await `take`."""
        ...

    async def take(self, subject: str, limits: Limits, *, requests: int = 1, units: int = 1) -> Decision:
        """Decide, asking the shared counters where that is needed."""
        ...

    async def peek(self, subject: str, limits: Limits) -> Decision:
        """The figures for a response that used nothing."""
        ...

    async def refund(self, subject: str, limits: Limits, *, units: int, stamp: float = 0.0) -> None:
        """Give back units of an answer that failed through our own fault.

        `stamp` is that of the decision which took them: units that have already left the window are then not given back
        a second time. Without it they come off the oldest units in the window.
        """
        ...

    async def start(self) -> None:
        """Begin background work. Called once, before the first request."""
        ...

    async def close(self) -> None:
        """Stop background work and give back unused day reservations."""
        ...


def never_fits(limits: Limits, requests: int, units: int) -> str:
    """The limit that a request breaks all by itself, or an empty string."""
    if 0 < limits.requests_per_second < requests:
        return REQUESTS_PER_SECOND
    if 0 < limits.units_per_second < units:
        return UNITS_PER_SECOND
    if 0 < limits.requests_per_day < requests:
        return REQUESTS_PER_DAY
    return ""


def check_cost(requests: int, units: int) -> None:
    """Refuse a negative cost, which would give back what others used."""
    if requests < 0 or units < 0:
        raise ValueError(f"a request costs zero or more, not {requests} requests and {units} units")
