"""The words for a request that a limit refused. Used by everything that charges: the HTTP server and the feed."""

from capstan.core.errors import RateLimited
from capstan.limits.models import Decision, Limits

_REASONS = {
    "requests_per_second": "{limit} requests per second",
    "units_per_second": "{limit} compute units per second",
    "requests_per_day": "{limit} requests per day (UTC)",
}


def rate_limited(decision: Decision, limits: Limits, requests: int, units: int) -> RateLimited:
    """The error for a refused request: which limit, and what to do."""
    limit = getattr(limits, decision.reason)
    what = _REASONS[decision.reason].format(limit=limit)
    if decision.fits_never:
        cost = f"{requests} requests and {units} compute units"
        message = f"this call costs {cost}, more than the limit of {what} can ever admit; split it"
    else:
        message = f"the limit of {what} is reached; wait {decision.retry_after} s and try again"
    return RateLimited(message, retry_after=decision.retry_after)
