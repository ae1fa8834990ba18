"""The short way of a JSON-RPC request: from the parsed HTTP request to the bytes of the response, without ASGI.

The protocol hands over `POST /v1/rpc/…` here. For a key, a network and limits that are all at hand, what is in memory
is answered at once, and a single read that is not is sent to an upstream at once; everything else becomes a coroutine
that the protocol runs as a task. All ways use the same admission, the same service and the same error rendering as the
ordinary server, and give the same answers.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from msgspec import Raw

from capstan.access.directory import KeyDirectory
from capstan.access.models import Caller
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError, InternalError, NotFound, render
from capstan.core.ids import RequestIds
from capstan.core.redact import quoted
from capstan.limits.models import Decision, Limits, RateLimiter
from capstan.limits.refusals import rate_limited
from capstan.rpc.cache.gateway import Plan
from capstan.rpc.models import RpcReply
from capstan.rpc.preparing import Prepared, PreparedRead
from capstan.rpc.service import RpcService
from capstan.server.accesslog import AccessLine, AccessLog
from capstan.server.admission import Admission, RequestMeter
from capstan.server.context import RequestContext
from capstan.server.heads import Headers, HeadMemo, RequestHead, Standing
from capstan.server.identity import ClientAddress, request_id_of
from capstan.server.rendering import to_api_error
from capstan.server.responses import RESULT_FRAME, ResponseEncoder
from capstan.server.sent import Sent
from capstan.server.telemetry import Telemetry

FindNetwork = Callable[[Caller, str, str], Network]

PREFIX = b"/v1/rpc/"
_ROUTE = "/v1/rpc/{chain}/{network}"
_MOST_TARGETS = 10_000
_LONGEST_TARGET = 128
# v1, rpc, chain, network.
_PATH_PARTS = 4


class FastPath:
    """Answers JSON-RPC requests for the protocol."""

    def __init__(
        self,
        directory: KeyDirectory,
        limiter: RateLimiter,
        admission: Admission,
        service: RpcService,
        encoder: ResponseEncoder,
        clock: Clock,
        *,
        find_network: FindNetwork,
        limits_of: Callable[[Caller], Limits],
        addresses: ClientAddress,
        telemetry: Telemetry,
        access_log: AccessLog,
        request_ids: RequestIds,
    ) -> None:
        self._find_known = directory.find_known
        self._take_now = limiter.take_now
        self._admission = admission
        self._service = service
        self._prepare = service.prepare
        self._look = service.look
        self._begin = service.begin
        self._record_usage = service.record_usage
        self._encoder = encoder
        self._encode_result = encoder.encode_result
        self._clock = clock
        self._monotonic = clock.monotonic
        self._find_network = find_network
        self._limits_of = limits_of
        self._addresses = addresses
        self._telemetry = telemetry
        self._access_log = access_log
        self._request_ids = request_ids
        self._count_ok = telemetry.series("POST", _ROUTE, 200).add
        # Networks by the target of the request and the key's mode, so that paths are not taken apart again.
        self._targets: dict[tuple[bytes, str], Network] = {}
        # What the parser made of heads, for the protocol.
        self.heads = HeadMemo()

    def forget_networks(self) -> None:
        """Call after the networks were replaced."""
        self._targets.clear()
        self.heads.clear()

    def answer(
        self, head: RequestHead, body: bytes, client: str, keep_alive: bool
    ) -> bytes | Sent | Coroutine[Any, Any, bytes]:
        """The whole response, or what will give it."""
        started = self._monotonic()
        try:
            digest = head.digest
            caller = None if digest is None else self._find_known(digest, started)
            standing = head.standing
            if standing is None or standing.caller is not caller:
                standing = self._standing(head, caller)
                if standing is None or caller is None:
                    return self._answer_slowly(head, body, client, keep_alive, started)
            network = standing.network
            prepared = self._prepare(network, body, standing.methods)
            requests, units = prepared.requests, prepared.units
            decision = self._take_now(standing.account_id, standing.limits, requests, units)
        except Exception:
            # Nothing was charged yet. The longer way meets the same, a mistake of ours too, and answers it.
            return self._answer_slowly(head, body, client, keep_alive, started)
        if decision is None:
            return self._answer_slowly(head, body, client, keep_alive, started)
        if not decision.allowed:
            context = self._context(head, client, caller, decision, started, units=0)
            return self._error(context, rate_limited(decision, standing.limits, requests, units), keep_alive)
        plan: Plan | None = None
        try:
            if isinstance(prepared, PreparedRead):
                found = self._look(caller, network, prepared)
                if isinstance(found, bytes):
                    return self._hit(prepared, found, decision, caller, network, head, client, keep_alive, started)
                plan = found
                if plan is not None:
                    sent = Sent(caller, network, prepared, plan, started, head, client, decision, keep_alive, self)
                    if self._begin(sent):
                        return sent
        except Exception as error:
            # Past here it would end the connection.
            return self._fault(self._context(head, client, caller, decision, started, units=units), error, keep_alive)
        context = self._context(head, client, caller, decision, started, units=units)
        return self._finish(context, network, prepared, plan, keep_alive)

    def _standing(self, head: RequestHead, caller: Caller | None) -> Standing | None:
        """What follows from the caller for this head, to be kept with it; None for those who take the longer way."""
        if caller is None or caller.suspended:
            return None
        network = self._targets.get((head.target, caller.mode))
        if network is None:
            return None
        standing = head.standing = Standing(caller, network, self._limits_of(caller), self._service.methods(network))
        return standing

    def _context(
        self, head: RequestHead, client: str, caller: Caller, decision: Decision, started: float, *, units: int
    ) -> RequestContext:
        return RequestContext(
            request_id=self._request_ids.next(),
            client=client,
            method="POST",
            path=head.path,
            started=started,
            caller=caller,
            decision=decision,
            units=units,
        )

    def _hit(
        self,
        read: PreparedRead,
        result: bytes,
        decision: Decision,
        caller: Caller,
        network: Network,
        head: RequestHead,
        client: str,
        keep_alive: bool,
        started: float,
    ) -> bytes:
        """The response to a call that was answered from memory."""
        seconds = self._monotonic() - started
        method, microseconds = read.treatment.method, int(seconds * 1_000_000)
        self._record_usage(
            caller.account_id, caller.key_id, network.name, method, read.units, False, microseconds, True
        )
        self._count_ok(seconds)
        ids = self._request_ids
        count = ids.count = ids.count + 1
        if self._access_log.enabled:
            size = RESULT_FRAME + len(read.id) + len(result)
            self._log(ids.of(count), 200, size, read.units, client, caller, head.path, seconds)
        return self._encode_result(b"hit", decision, ids.prefix, count, read.id, result, keep_alive)

    def respond(self, sent: Sent, result: Raw) -> bytes:
        """The response to a call that was sent and that its first upstream answered."""
        seconds = self._monotonic() - sent.began
        text = self._service.finish(sent, result, seconds)
        self._count_ok(seconds)
        ids, read = self._request_ids, sent.read
        count = ids.count = ids.count + 1
        if self._access_log.enabled:
            size = RESULT_FRAME + len(read.id) + len(text)
            self._log(ids.of(count), 200, size, read.units, sent.client, sent.caller, sent.head.path, seconds)
        return self._encode_result(b"miss", sent.decision, ids.prefix, count, read.id, text, sent.keep_alive)

    def regret(self, sent: Sent) -> bytes:
        """The response to a call that was sent and whose reply was lost through a mistake of ours, which was logged."""
        self._service.drop(sent)
        context = self._context_of(sent)
        message = f"something went wrong on our side; the request id is {context.request_id}"
        return self._error(context, InternalError(message), sent.keep_alive)

    def _context_of(self, sent: Sent) -> RequestContext:
        units = sent.read.units
        return self._context(sent.head, sent.client, sent.caller, sent.decision, sent.began, units=units)

    async def carry_on(self, sent: Sent) -> bytes:
        """Answer a call that was sent and that its first upstream did not answer plainly."""
        assert sent.take(), "carried on once"
        context = self._context_of(sent)
        return await self._finish(context, sent.network, sent.read, sent.plan, sent.keep_alive, sent)

    def abandon(self, sent: Sent) -> None:
        """Nobody wants the reply to what was sent any more."""
        self._service.abandon(sent)

    async def _finish(
        self,
        context: RequestContext,
        network: Network,
        prepared: Prepared | PreparedRead,
        plan: Plan | None,
        keep_alive: bool,
        errand: Sent | None = None,
    ) -> bytes:
        """Answer a request that was admitted and charged for, asking upstreams."""
        assert context.caller is not None
        meter = RequestMeter(self._admission, context)
        try:
            reply = await self._service.answer(
                context.caller,
                network,
                prepared,
                refund=meter.refund,
                request_id=context.request_id,
                plan=plan,
                errand=errand,
            )
        except Exception as error:
            return self._fault(context, error, keep_alive)
        return self._success(context, reply, keep_alive)

    async def _answer_slowly(
        self, head: RequestHead, body: bytes, client: str, keep_alive: bool, started: float
    ) -> bytes:
        """Do everything step by step, waiting where needed."""
        headers = head.headers
        context = RequestContext(
            request_id=request_id_of(headers) or self._request_ids.next(),
            client=self._addresses.of(client, headers),
            method="POST",
            path=head.path,
            started=started,
        )
        meter = RequestMeter(self._admission, context)
        try:
            caller = await self._admission.identify(context, headers)
            network = self._find_network(caller, *_names(context.path))
            self._remember(head.target, caller, network)
            reply = await self._service.handle(
                caller,
                network,
                body,
                charge=meter.charge,
                refund=meter.refund,
                request_id=context.request_id,
                explain=any(name == b"x-explain" and value == b"1" for name, value in headers),
            )
        except Exception as error:
            return await self._refused(context, headers, error, keep_alive)
        return self._success(context, reply, keep_alive)

    async def refuse(self, head: RequestHead, client: str, error: ApiError) -> bytes:
        """The response to a request that the protocol refuses, counted against its key or address; then it closes."""
        context = RequestContext(
            request_id=request_id_of(head.headers) or self._request_ids.next(),
            client=self._addresses.of(client, head.headers),
            method="POST",
            path=head.path,
            started=self._clock.monotonic(),
        )
        return await self._refused(context, head.headers, error, keep_alive=False)

    def note_refusal(self, status: int, size: int, client: str, request_id: str) -> None:
        """Record an answer that the protocol gave before there was a request to speak of."""
        self._telemetry.request("other", "unrouted", status, 0.0)
        if self._access_log.enabled:
            self._log(request_id, status, size, 0, client, None, "-", 0.0)

    async def _refused(self, context: RequestContext, headers: Headers, error: Exception, keep_alive: bool) -> bytes:
        if context.decision is None:
            try:
                error = await self._admission.count_refused(context, headers) or error
            except Exception as other:
                error = other
        if context.decision is None:
            # Not even the limits could be asked: say what holds for an address that has asked for nothing.
            context.decision = self._unknown_limits()
        return self._fault(context, error, keep_alive)

    def _unknown_limits(self) -> Decision:
        return Decision(True, 0, 0, int(self._clock.now()) + 1, 0, "")

    def _remember(self, target: bytes, caller: Caller, network: Network) -> None:
        if len(target) > _LONGEST_TARGET or b"?" in target:
            return
        if len(self._targets) >= _MOST_TARGETS:
            self._targets.clear()
        self._targets[(target, caller.mode)] = network

    def _success(self, context: RequestContext, reply: RpcReply, keep_alive: bool) -> bytes:
        context.status = reply.status
        self._record(context, len(reply.body))
        return self._encoder.encode(
            reply.status, reply.body, reply.headers, _decision(context), context.request_id, keep_alive
        )

    def _fault(self, context: RequestContext, error: Exception, keep_alive: bool) -> bytes:
        shown = to_api_error(error, path=context.path, method=context.method, request_id=context.request_id)
        return self._error(context, shown, keep_alive)

    def _error(self, context: RequestContext, error: ApiError, keep_alive: bool) -> bytes:
        body = render(error)
        context.status = error.status
        self._record(context, len(body))
        headers: Iterable[tuple[str, str]] = (("Content-Type", "application/json"), *error.headers.items())
        return self._encoder.encode(error.status, body, headers, _decision(context), context.request_id, keep_alive)

    def _record(self, context: RequestContext, size: int) -> None:
        seconds = self._clock.monotonic() - context.started
        self._telemetry.request("POST", _ROUTE, context.status, seconds)
        if self._access_log.enabled:
            self._log(
                context.request_id,
                context.status,
                size,
                context.units,
                context.client,
                context.caller,
                context.path,
                seconds,
            )

    def _log(
        self,
        request_id: str,
        status: int,
        size: int,
        units: int,
        client: str,
        caller: Caller | None,
        path: str,
        seconds: float,
    ) -> None:
        self._access_log.add(
            AccessLine(
                request_id=request_id,
                method="POST",
                path=path,
                status=status,
                milliseconds=round(seconds * 1000, 3),
                bytes=size,
                units=units,
                client=client,
                account=caller.account_id if caller else None,
                key=caller.key_id if caller else None,
            )
        )


def _decision(context: RequestContext) -> Decision:
    assert context.decision is not None, "every request is counted before it is answered"
    return context.decision


def _names(path: str) -> tuple[str, str]:
    parts = path.strip("/").split("/")
    if len(parts) != _PATH_PARTS:
        raise NotFound(f"there is nothing at {quoted(path)}; see /docs for every path")
    return parts[2], parts[3]
