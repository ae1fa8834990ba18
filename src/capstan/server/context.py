"""What is known of one HTTP request while it is being answered.

The gate makes it, admission fills in who is calling and what is left of the limits, and the gate writes the response
headers, the access log line and the metrics from it.
"""

from typing import Any

import msgspec

from capstan.access.models import Caller
from capstan.limits.models import Decision

_KEY = "capstan"


class RequestContext(msgspec.Struct, kw_only=True):
    """One request."""

    request_id: str
    client: str
    method: str
    path: str
    started: float
    caller: Caller | None = None
    decision: Decision | None = None
    status: int = 0
    response_bytes: int = 0
    units: int = 0


def attach(scope: Any, context: RequestContext) -> None:
    """Put the context where `context_of` finds it."""
    scope[_KEY] = context


def context_of(scope: Any) -> RequestContext:
    """The context of the request behind an ASGI scope."""
    found = scope[_KEY]
    assert isinstance(found, RequestContext)
    return found
