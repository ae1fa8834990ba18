"""Runs one JSON-RPC call for the playground, as the API would, with the session in place of a key.

Called by the playground. The call is charged to the account and counted in its usage, under the session; the reply is
that of the gateway, with the time, the units and what was tried.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from capstan.access.models import Caller
from capstan.access.plans import PlanBook
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import Forbidden, InvalidRequest
from capstan.limits.models import RateLimiter
from capstan.limits.refusals import rate_limited
from capstan.rpc.service import RpcService

FindNetwork = Callable[[Caller, str, str], Network]
_LONGEST_SHOWN = 200_000


class Attempt(msgspec.Struct, frozen=True):
    """One call to an upstream, as `X-Explain` tells it."""

    upstream: str
    outcome: str
    milliseconds: float
    hedge: bool = False


class CallResult(msgspec.Struct, frozen=True):
    """What a call brought."""

    status: int
    # The reply, indented.
    body: str
    failed: bool
    microseconds: int
    units: int
    # Where the answer came from, as `X-Cache` tells it.
    source: str
    attempts: list[Attempt]


class _Reply(msgspec.Struct):
    error: Any = None


class Calls:
    """Runs calls."""

    def __init__(
        self, rpc: RpcService, limiter: RateLimiter, plans: PlanBook, clock: Clock, *, find_network: FindNetwork
    ) -> None:
        self._rpc = rpc
        self._limiter = limiter
        self._plans = plans
        self._clock = clock
        self._find_network = find_network

    async def run(self, caller: Caller, network: str, method: str, params: Any, *, request_id: str) -> CallResult:
        """One call. What the API would refuse with an HTTP status is raised."""
        if caller.suspended:
            raise Forbidden("this account is suspended; ask the operator of this service")
        chain, _, name = network.partition("/")
        found = self._find_network(caller, chain, name)
        limits, spent = self._plans.limits_of(caller), 0

        async def charge(requests: int, units: int) -> None:
            nonlocal spent
            decision = await self._limiter.take(caller.account_id, limits, requests=requests, units=units)
            if not decision.allowed:
                raise rate_limited(decision, limits, requests, units)
            spent += units

        async def refund(units: int) -> None:
            nonlocal spent
            await self._limiter.refund(caller.account_id, limits, units=units)
            spent -= units

        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        began = self._clock.monotonic()
        reply = await self._rpc.handle(
            caller, found, body, charge=charge, refund=refund, request_id=request_id, explain=True
        )
        microseconds = int((self._clock.monotonic() - began) * 1_000_000)
        headers = {key.lower(): value for key, value in reply.headers}
        return CallResult(
            status=reply.status,
            body=_indented(reply.body),
            failed=msgspec.json.decode(reply.body, type=_Reply).error is not None,
            microseconds=microseconds,
            units=spent,
            source=headers.get("x-cache", ""),
            attempts=msgspec.json.decode(headers.get("x-explain", "[]"), type=list[Attempt]),
        )


def parse_params(text: str) -> Any:
    """The parameters of a call, as they were typed. Raises `InvalidRequest`."""
    try:
        params = msgspec.json.decode(text or "[]")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"params: this is not JSON ({error})") from None
    if not isinstance(params, list | dict):
        raise InvalidRequest("params: expected a list, such as []")
    return params


def _indented(body: bytes) -> str:
    text = msgspec.json.format(body, indent=2).decode()
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[:_LONGEST_SHOWN]}\n… {len(text):,} characters in all"
