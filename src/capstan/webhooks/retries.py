"""When a delivery that failed is tried again. Called by delivery. Pure, but for the dice of the jitter.

A wait is never shorter than the schedule says, and at most a tenth longer, so that the receivers of one outage do not
all come back at the same instant. A receiver may ask for a longer wait with `Retry-After`, up to the longest of the
schedule.
"""

import random
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime

JITTER = 0.1
_DIGITS = 10


def next_delay(
    delays: Sequence[float], retries: int, retry_after: float | None = None, *, dice: random.Random | None = None
) -> float | None:
    """Seconds to wait after a failure when `retries` were made before; None when the schedule is exhausted."""
    if retries >= len(delays):
        return None
    share = (dice or random).random()
    planned = delays[retries] * (1 + JITTER * share)
    if retry_after is None:
        return planned
    return max(planned, min(retry_after, max(delays)))


def parse_retry_after(text: str | None, now: float) -> float | None:
    """The seconds that a `Retry-After` asks for: a number, or a date. Anything else asks for nothing."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:_DIGITS])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now)
