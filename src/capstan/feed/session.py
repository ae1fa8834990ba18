"""One socket: what its messages mean, what they cost, and what they are answered with.

The server makes a session for each accepted WebSocket, hands it every message, and tells it when the socket is gone. A
message is a JSON-RPC call or a batch, treated as the same body over HTTP: same methods, scopes, limits and units.
Subscription methods are answered here, all others by the RPC gateway. What HTTP says with a status, the socket says
with a JSON-RPC error; it is closed only when a client does not stop sending over its limit. Calls under way are
bounded: while there are too many, nothing more is read from the client.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import structlog
from msgspec import Raw

from capstan.access.models import Caller, Scope
from capstan.chain.registry import Network
from capstan.core import jsonrpc
from capstan.core.clock import Clock
from capstan.core.errors import ApiError, Forbidden, InvalidRequest, RateLimited, UpstreamTimeout
from capstan.core.frames import OVER_LIMIT
from capstan.core.ids import RequestIds
from capstan.core.jsonrpc import Call, Item
from capstan.feed.meter import PushMeter
from capstan.feed.models import Calls, FeedLimits, Late, Socket, Usage
from capstan.feed.subscriptions import Subscriptions
from capstan.limits.models import Decision, Limits, RateLimiter
from capstan.limits.refusals import rate_limited

log = structlog.get_logger(__name__)

_REPLIES = msgspec.json.Decoder(tuple[Raw, ...])


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions share."""

    calls: Calls
    limiter: RateLimiter
    usage: Usage
    meter: PushMeter
    clock: Clock
    request_ids: RequestIds
    limits_of: Callable[[Caller], Limits]
    price: Callable[[str], int]
    limits: FeedLimits


class Session:
    """The conversation on one socket."""

    def __init__(
        self,
        socket: Socket,
        caller: Caller,
        network: Network,
        around: Surroundings,
        *,
        on_end: Callable[["Session"], None],
    ) -> None:
        self.caller = caller
        self.network = network
        self.pushed = 0
        self.subscriptions: Subscriptions
        self._socket = socket
        self._around = around
        self._on_end = on_end
        self._send_frame = socket.send_frame
        self._waiting: deque[bytes] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = 0
        self._ended = False
        self.last_used = around.clock.monotonic()

    @property
    def network_name(self) -> str:
        """`chain/network`."""
        return self.network.name

    @property
    def is_idle(self) -> bool:
        """Whether nothing is subscribed to or under way."""
        return not self._tasks and not len(self.subscriptions)

    def push(self, frame: bytes) -> None:
        """Send one framed notification. On the path of every message to every client."""
        if not self.pushed:
            self._around.meter.note(self)
        self.pushed += 1
        self._send_frame(frame)

    def may_subscribe(self) -> bool:
        """Whether the account has paid for what it was sent so far."""
        return not self._around.meter.is_overdrawn(self.caller)

    def close(self, code: int, reason: str) -> None:
        """Close the socket."""
        self._socket.close(code, reason)

    def end(self) -> None:
        """The socket is gone: stop everything. May be called more than once."""
        if self._ended:
            return
        self._ended = True
        self.subscriptions.end()
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self._on_end(self)

    def receive(self, message: bytes) -> None:
        """Take one message of the client."""
        if self._waiting or len(self._tasks) >= self._around.limits.calls_in_flight:
            self._waiting.append(message)
            self._socket.pause()
            return
        self._handle(message)

    def _handle(self, message: bytes) -> None:
        started = self.last_used = self._around.clock.monotonic()
        prepared = None
        try:
            try:
                prepared = self._around.calls.prepare(self.network, message)
            except ApiError as error:
                self._charge_then(1, 0, started, None, error)
                return
            self._charge_then(len(prepared.items), prepared.units, started, prepared, None)
        except Exception:
            # Past here it would end the socket, with everything that is subscribed to on it.
            self._break(prepared)

    def _charge_then(self, requests: int, units: int, started: float, prepared: Any, error: ApiError | None) -> None:
        """Take the cost from the limits, waiting for shared counters only where that is needed, and go on."""
        around = self._around
        limits = around.limits_of(self.caller)
        decision = around.limiter.take_now(self.caller.account_id, limits, requests=requests, units=units)
        if decision is None:
            self._start(self._charge_slowly(limits, requests, units, started, prepared, error))
        elif not decision.allowed:
            self._refuse(rate_limited(decision, limits, requests, units), prepared)
        else:
            self._go_on(decision, started, prepared, error)

    async def _charge_slowly(
        self, limits: Limits, requests: int, units: int, started: float, prepared: Any, error: ApiError | None
    ) -> None:
        account_id = self.caller.account_id
        try:
            decision = await self._around.limiter.take(account_id, limits, requests=requests, units=units)
        except Exception:
            log.exception("feed_limits_failed")
            self._fail(
                prepared, jsonrpc.INTERNAL_ERROR, "the limits cannot be checked at the moment; try again shortly"
            )
            return
        if not decision.allowed:
            self._refuse(rate_limited(decision, limits, requests, units), prepared)
            return
        try:
            self._go_on(decision, started, prepared, error)
        except Exception:
            self._break(prepared)

    def _go_on(self, decision: Decision, started: float, prepared: Any, error: ApiError | None) -> None:
        """Answer a message that was paid for."""
        self._refused = 0
        if error is not None:
            self._send(jsonrpc.error_reply(jsonrpc.NULL, _code_of(error), error.message))
            return
        items: tuple[Item, ...] = prepared.items
        if not prepared.is_batch:
            if self._is_ours(items[0]):
                reply = self._answer_ours(items[0], started)
                if isinstance(reply, bytes):
                    self._send(reply)
                else:
                    self._start(self._answer_late(reply))
                return
            found = self._around.calls.answer_now(self.caller, self.network, prepared, started)
            if isinstance(found, bytes):
                self._send(found)
                return
            self._start(self._answer(prepared, decision, started, found))
            return
        self._start(self._answer(prepared, decision, started, None))

    async def _answer(self, prepared: Any, decision: Decision, started: float, plan: Any) -> None:
        """Answer what cannot be answered at once."""
        request_id = self._around.request_ids.next()
        try:
            if prepared.is_batch:
                await self._answer_batch(prepared, decision, started, request_id)
            else:
                self._send(await self._ask(prepared, decision, request_id, plan))
        except ApiError as error:
            self._fail(prepared, _code_of(error), error.message)
        except Exception:
            self._break(prepared, request_id)

    async def _answer_batch(self, prepared: Any, decision: Decision, started: float, request_id: str) -> None:
        """Answer a batch, in its order. Subscriptions are made last, right before the replies are sent."""
        items: tuple[Item, ...] = prepared.items
        others = tuple(item for item in items if not self._is_ours(item))
        told: Iterator[Raw] = iter(())
        if others:
            body = await self._ask(msgspec.structs.replace(prepared, items=others), decision, request_id, None)
            told = iter(_REPLIES.decode(body) if body else ())
        answers = [self._answer_ours(item, started) if self._is_ours(item) else None for item in items]
        waiting = [answer for answer in answers if answer is not None and not isinstance(answer, bytes)]
        late = await asyncio.gather(*waiting)
        come = iter(late)
        replies: list[bytes] = []
        for item, answer in zip(items, answers, strict=True):
            if answer is None:
                # Nobody is told of a notification.
                reply = b"" if item.id is None else bytes(next(told, b""))
            else:
                reply = answer if isinstance(answer, bytes) else next(come).reply
            if reply:
                replies.append(reply)
        self._send(jsonrpc.batch_reply(replies) if replies else b"")
        for found in late:
            found.begin()

    async def _answer_late(self, answer: Awaitable[Late]) -> None:
        found = await answer
        self._send(found.reply)
        found.begin()

    async def _ask(self, prepared: Any, decision: Decision, request_id: str, plan: Any) -> bytes:
        async def refund(units: int) -> None:
            limits = around.limits_of(self.caller)
            await around.limiter.refund(self.caller.account_id, limits, units=units, stamp=decision.stamp)

        around = self._around
        reply = await around.calls.answer(
            self.caller, self.network, prepared, refund=refund, request_id=request_id, plan=plan
        )
        return reply.body

    def _is_ours(self, item: Item) -> bool:
        return isinstance(item, Call) and self.subscriptions.handles(item.method)

    def _answer_ours(self, call: Any, started: float) -> bytes | Awaitable[Late]:
        """The reply to a subscription method, or what will give it. Empty for a notification, which has no use."""
        if call.id is None or self._ended:
            return b""
        if not self.caller.has_scope(Scope.RPC_READ):
            message = f"The API key lacks the scope {Scope.RPC_READ}, which {call.method} needs."
            return jsonrpc.error_reply(call.id, jsonrpc.SCOPE_REFUSED, message)
        failed = False
        reply: bytes | Awaitable[Late]
        try:
            reply = self.subscriptions.answer(call.method, call.params, call.id)
            if not isinstance(reply, bytes):
                reply = self._watched(reply, call.id)
        except Exception:
            failed = True
            reply = self._error_of_ours(call.id)
        around = self._around
        around.usage.record(
            account_id=self.caller.account_id,
            key_id=self.caller.key_id,
            network=self.network.name,
            method=call.method,
            units=around.price(call.method),
            failed=failed,
            microseconds=int((around.clock.monotonic() - started) * 1_000_000),
        )
        return reply

    async def _watched(self, answer: Awaitable[Late], call_id: bytes) -> Late:
        """A late answer, or the error in its place."""
        try:
            return await answer
        except Exception:
            return Late(self._error_of_ours(call_id), lambda: None)

    def _error_of_ours(self, call_id: bytes) -> bytes:
        """The reply to one call that failed through a mistake of ours, for the exception that is being handled."""
        return jsonrpc.error_reply(call_id, jsonrpc.INTERNAL_ERROR, self._note_fault(self._around.request_ids.next()))

    def _break(self, prepared: Any, request_id: str | None = None) -> None:
        """Answer a message whose handling failed through a mistake of ours."""
        message = self._note_fault(request_id or self._around.request_ids.next())
        self._fail(prepared, jsonrpc.INTERNAL_ERROR, message)

    def _note_fault(self, request_id: str) -> str:
        log.exception("feed_call_failed", request_id=request_id)
        return f"something went wrong on our side; the request id is {request_id}"

    def _refuse(self, error: RateLimited, prepared: Any) -> None:
        """A limit is spent: say so for each call, and close when the client does not stop."""
        self._refused += 1
        if self._refused >= self._around.limits.refusals:
            self.close(OVER_LIMIT, f"{self._refused} messages in a row were over a limit")
            return
        data = {"retryAfter": int(error.headers["Retry-After"])}
        self._fail(prepared, jsonrpc.LIMIT_EXCEEDED, error.message, data)

    def _fail(self, prepared: Any, code: int, message: str, data: object = None) -> None:
        """Answer everything in a message with the same error."""
        if prepared is None:
            self._send(jsonrpc.error_reply(jsonrpc.NULL, code, message, data))
            return
        replies = [jsonrpc.error_reply(item.id, code, message, data) for item in prepared.items if item.id is not None]
        if replies:
            self._send(jsonrpc.batch_reply(replies) if prepared.is_batch else replies[0])

    def _send(self, reply: bytes) -> None:
        if reply:
            self._socket.send_text(reply)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("feed_message_failed", exc_info=task.exception())
        if self._ended or not self._waiting:
            return
        while self._waiting and len(self._tasks) < self._around.limits.calls_in_flight:
            self._handle(self._waiting.popleft())
        if not self._waiting:
            self._socket.resume()


def _code_of(error: ApiError) -> int:
    """The JSON-RPC code for what HTTP would say with a status."""
    cause = error.__context__
    if isinstance(cause, jsonrpc.Malformed):
        return cause.code
    if isinstance(error, Forbidden):
        return jsonrpc.SCOPE_REFUSED
    if isinstance(error, UpstreamTimeout):
        return jsonrpc.DEADLINE_PASSED
    if isinstance(error, RateLimited):
        return jsonrpc.LIMIT_EXCEEDED
    return jsonrpc.INVALID_REQUEST if isinstance(error, InvalidRequest) else jsonrpc.INTERNAL_ERROR
