"""Decides whether a request may go on: who calls, within which limits, with which scope. In that order.

Called for every routed request by the guard below, and by the gate for requests that were refused before that. A call
without a valid key is counted against the client's address, so that guessing keys is slow. The routes say what they
need in their `opt`: `open` for paths without a key (`counted` if they count against the address), `units` for the
price, `scopes` for the scopes of which one suffices, `charged_by_handler` when only the handler knows the price.
"""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from capstan.access.directory import KeyDirectory
from capstan.access.models import Caller, Scope
from capstan.core.errors import ApiError, Forbidden, NotFound, Unavailable
from capstan.core.redact import quoted
from capstan.limits.models import Decision, Limits, RateLimiter
from capstan.limits.refusals import rate_limited
from capstan.server.context import RequestContext, context_of
from capstan.server.identity import Headers, invalid_key, missing_key, presented_key
from capstan.storage.errors import StorageError


class Admission:
    """Authentication, limits and scopes of requests."""

    def __init__(
        self,
        directory: KeyDirectory,
        limiter: RateLimiter,
        *,
        limits_of: Callable[[Caller], Limits],
        anonymous_limits: Callable[[], Limits],
        price: Callable[[str], int],
    ) -> None:
        self._directory = directory
        self._limiter = limiter
        self._limits_of = limits_of
        self._anonymous_limits = anonymous_limits
        self._price = price

    async def admit(self, context: RequestContext, headers: Headers, *, units: str, scopes: Sequence[Scope]) -> None:
        """Let a request with a key through, or raise the error that it gets."""
        caller = await self._identify(context, headers)
        await self.charge(context, requests=1, units=self._price(units))
        require_scope(caller, scopes)

    async def identify(self, context: RequestContext, headers: Headers) -> Caller:
        """The caller of a request whose price is known only later; follow with `charge`."""
        return await self._identify(context, headers)

    async def charge(self, context: RequestContext, *, requests: int, units: int) -> None:
        """Take `requests` and `units` from the caller's limits, or raise `RateLimited`."""
        assert context.caller is not None
        limits = self._limits_of(context.caller)
        decision = await self._take(context.caller.account_id, limits, requests, units)
        context.decision = decision
        context.units += units if decision.allowed else 0
        if not decision.allowed:
            raise rate_limited(decision, limits, requests, units)

    async def refund(self, context: RequestContext, *, units: int) -> None:
        """Give back units of an answer that failed through our own fault."""
        assert context.caller is not None
        stamp = context.decision.stamp if context.decision else 0.0
        await self._limiter.refund(context.caller.account_id, self._limits_of(context.caller), units=units, stamp=stamp)
        context.units -= units

    async def charge_anonymous(self, context: RequestContext) -> None:
        """Count a call without a valid key against the client's address, or raise `RateLimited`."""
        limits = self._anonymous_limits()
        decision = await self._take(anonymous_subject(context.client), limits, 1, 0)
        context.decision = decision
        if not decision.allowed:
            raise rate_limited(decision, limits, 1, 0)

    async def count_refused(self, context: RequestContext, headers: Headers) -> ApiError | None:
        """Count a request that was refused uncounted. Returns the error that replaces its answer when over a limit."""
        caller = context.caller
        if caller is None:
            try:
                key = presented_key(headers)
                caller = await self._directory.find(key) if key else None
            except (ApiError, StorageError):
                caller = None
        context.caller = caller
        limits = self._limits_of(caller) if caller else self._anonymous_limits()
        subject = caller.account_id if caller else anonymous_subject(context.client)
        decision = await self._take(subject, limits, 1, 0)
        context.decision = decision
        return None if decision.allowed else rate_limited(decision, limits, 1, 0)

    async def describe(self, context: RequestContext) -> Decision:
        """The state of the limits for a response that was not counted."""
        if context.caller is not None:
            return await self._limiter.peek(context.caller.account_id, self._limits_of(context.caller))
        return await self._limiter.peek(anonymous_subject(context.client), self._anonymous_limits())

    async def _identify(self, context: RequestContext, headers: Headers) -> Caller:
        try:
            key = presented_key(headers)
            if key is None:
                raise missing_key()
            caller = await self._directory.find(key)
            if caller is None:
                raise invalid_key()
        except StorageError as error:
            raise Unavailable("keys cannot be checked at the moment; try again shortly", retry_after=1) from error
        except ApiError:
            await self.charge_anonymous(context)
            raise
        context.caller = caller
        if caller.suspended:
            raise Forbidden("this account is suspended; ask the operator of this service")
        return caller

    async def _take(self, subject: str, limits: Limits, requests: int, units: int) -> Decision:
        at_once = self._limiter.take_now(subject, limits, requests=requests, units=units)
        return at_once or await self._limiter.take(subject, limits, requests=requests, units=units)


class RequestMeter:
    """The limits of the caller of one request, as a route that knows its own price uses them."""

    def __init__(self, admission: Admission, context: RequestContext) -> None:
        self._admission = admission
        self._context = context

    async def charge(self, requests: int, units: int) -> None:
        """Take from the limits, or raise `RateLimited`."""
        await self._admission.charge(self._context, requests=requests, units=units)

    async def refund(self, units: int) -> None:
        """Give units back."""
        await self._admission.refund(self._context, units=units)


def require_scope(caller: Caller, scopes: Sequence[Scope]) -> None:
    """Raise `Forbidden` unless the key has one of `scopes`. No scopes means any key will do."""
    if not scopes or any(caller.has_scope(scope) for scope in scopes):
        return
    wanted = " or ".join(scopes)
    raise Forbidden(f"this key lacks the scope {wanted}; create a key that has it")


def guard(admission: Admission) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Any]:
    """The Litestar guard that admits every routed request."""

    async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        scope: Any = connection.scope
        context = context_of(scope)
        if handler.opt.get("open") or scope["method"] == "OPTIONS":
            if handler.opt.get("counted"):
                await admission.charge_anonymous(context)
            return
        headers = scope["headers"]
        if handler.opt.get("charged_by_handler"):
            await admission.identify(context, headers)
            return
        units = handler.opt.get("units")
        if units is None:
            # A route that the framework made and nobody priced is not ours to serve.
            raise NotFound(f"there is nothing at {quoted(context.path)}; see /docs for every path")
        await admission.admit(context, headers, units=units, scopes=handler.opt.get("scopes", ()))

    return admit


def anonymous_subject(client: str) -> str:
    """What a call without a key is counted against: its address, or for IPv6 its /64, which is one customer's."""
    if ":" in client:
        try:
            return f"addr:{ipaddress.ip_network((client.partition('%')[0], 64), strict=False).network_address}"
        except ValueError:
            return "addr:unknown"
    return f"addr:{client}"
