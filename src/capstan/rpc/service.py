"""The JSON-RPC gateway: the bytes of a request in, the bytes of the reply out.

Called by the server once the key is known, the network found and the key's right to the network checked. One rule for
failures: what concerns the HTTP request as a whole is raised as an `ApiError`; what concerns one call is a JSON-RPC
error in a reply with status 200. A single call that is refused for its scope, or that no upstream answers, counts as
the whole request; the same in a batch is an error of that item.

How a call gets its answer is the forwarder's business. Every call that is passed on, or answered from memory, is
recorded in the usage ledger with the units it cost.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError, is_log_range_error
from capstan.chain.models import Attempt
from capstan.chain.registry import Network
from capstan.core import jsonrpc
from capstan.core.batches import answer_batch
from capstan.core.clock import Clock
from capstan.core.errors import Forbidden, InvalidRequest, UpstreamError, UpstreamTimeout
from capstan.core.jsonrpc import BadCall, Call, Item
from capstan.core.redact import quoted
from capstan.rpc.blocks import (
    RECENT_BLOCKS,
    LogRange,
    log_range,
    range_advice,
    range_advice_from_node,
)
from capstan.rpc.cache.gateway import Plan
from capstan.rpc.errands import Errand
from capstan.rpc.forwarding import Answer, Asking, Forwarder
from capstan.rpc.methods import Kind, Method, look_up
from capstan.rpc.models import Caller, Charge, Cost, Head, Refund, RpcReply, Usage
from capstan.rpc.preparing import Prepared, PreparedRead, Preparer, RpcLimits
from capstan.rpc.replies import NOTHING, Advice, explained, not_found, ok, with_request_id

log = structlog.get_logger(__name__)

_OUR_FAULT = "Something went wrong on our side."
_RANGE_MESSAGE = "The range of blocks is too wide; ask for fewer blocks at a time."


class _Exchange(msgspec.Struct):
    """One HTTP request under way."""

    caller: Caller
    network: Network
    request_id: str
    started: float
    ends_at: float
    # What was found out about the single call when it was looked for in memory, and what was begun for it.
    plan: Plan | None = None
    errand: Errand | None = None
    # The calls to upstreams, when the caller wants to know.
    attempts: list[Attempt] | None = None
    # Where the answer of a single call came from.
    source: str = ""
    # Units of the answers that failed through our own fault.
    unearned_units: int = 0


class RpcService:
    """Answers JSON-RPC requests to any network."""

    def __init__(
        self,
        *,
        cost: Cost,
        head: Head,
        clock: Clock,
        forwarder: Forwarder,
        usage: Usage,
        archive_depth: Callable[[], int] = lambda: RECENT_BLOCKS,
        limits: RpcLimits | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._look_up = forwarder.look_up
        self._head = head
        self._clock = clock
        self._monotonic = clock.monotonic
        self._limits = limits or RpcLimits()
        self._preparer = Preparer(
            self._limits,
            cost=cost,
            head=head,
            archive_depth=archive_depth,
            topic=forwarder.topic,
            ask=forwarder.question,
            ask_known=forwarder.known_question,
            heads=forwarder.heads,
        )
        # Reads a body and prices it, and what that needs to know of a network; see there.
        self.prepare = self._preparer.prepare
        self.methods = self._preparer.methods
        # Records a call, for those who tell what `look` found.
        self.record_usage = usage.record

    async def handle(
        self,
        caller: Caller,
        network: Network,
        body: bytes,
        *,
        charge: Charge,
        refund: Refund | None = None,
        request_id: str = "",
        explain: bool = False,
    ) -> RpcReply:
        """The reply to the body of one request.

        `charge` is called once, before anything is done. `request_id` appears in the messages of upstream failures.
        """
        try:
            prepared = self.prepare(network, body)
        except InvalidRequest:
            # A malformed request is a request all the same.
            await charge(1, 0)
            raise
        await charge(len(prepared.items), prepared.units)
        return await self.answer(caller, network, prepared, refund=refund, request_id=request_id, explain=explain)

    def answer_now(
        self, caller: Caller, network: Network, prepared: Prepared | PreparedRead, started: float
    ) -> bytes | Plan | None:
        """The body of the reply to a request that was read and charged for, if it can be given without waiting.

        Otherwise what was found out on the way, to be handed to `answer`.
        """
        if not isinstance(prepared, PreparedRead):
            return None
        found = self.look(caller, network, prepared)
        if not isinstance(found, bytes):
            return found
        self._record(caller, network, prepared.treatment.method, prepared.units, started, False, True)
        return jsonrpc.result_reply(prepared.id, found)

    def look(self, caller: Caller, network: Network, read: PreparedRead) -> bytes | Plan | None:
        """The result of a read that was charged for, if it is in memory: whoever tells it records it.

        Otherwise what was found out on the way, to be handed to `begin` or to `answer`.
        """
        treatment = read.treatment
        if not treatment.plain or not caller.has_scope(treatment.scope):
            return None
        if treatment.tells_head:
            return self._forwarder.look(network, treatment.method, treatment.topic, read.question)
        return self._look_up(treatment.topic, read.question, treatment.heads)

    def begin(self, errand: Errand) -> bool:
        """Send the call of a plan that `look` gave to an upstream, without waiting. False: `answer` must be used.

        The errand is told of a result, which goes to `finish`, or to carry on, with `answer`.
        """
        try:
            return self._forwarder.begin(errand, errand.network.spec.deadline_seconds)
        except Exception:
            # Others who ask the same must not wait for what was not sent.
            self._forwarder.abandon(errand)
            raise

    def finish(self, errand: Errand, result: Raw, seconds: float) -> bytes:
        """The result that came to an errand after so long, as its answer, kept and recorded."""
        text = self._forwarder.finish(errand, result)
        caller, read = errand.caller, errand.read
        self.record_usage(
            caller.account_id,
            caller.key_id,
            errand.network.name,
            read.treatment.method,
            read.units,
            False,
            int(seconds * 1_000_000),
            False,
        )
        return text

    def abandon(self, errand: Errand) -> None:
        """Nobody waits for what was begun any more, and it was not carried on: it counts as a call that failed."""
        self._forwarder.abandon(errand)
        read = errand.read
        self._record(errand.caller, errand.network, read.treatment.method, read.units, errand.began, True, False)

    def drop(self, errand: Errand) -> None:
        """A mistake of ours left an errand without its answer: those who ask the same ask by themselves."""
        self._forwarder.abandon(errand)

    async def answer(
        self,
        caller: Caller,
        network: Network,
        prepared: Prepared | PreparedRead,
        *,
        refund: Refund | None,
        request_id: str,
        plan: Plan | None = None,
        explain: bool = False,
        errand: Errand | None = None,
    ) -> RpcReply:
        """The reply to a request that was read and charged for. `errand` is what was begun for it, if anything was."""
        now = self._clock.monotonic() if errand is None else errand.began
        exchange = _Exchange(caller, network, request_id, now, now + network.spec.deadline_seconds, plan, errand)
        exchange.attempts = [] if explain else None
        try:
            if prepared.is_batch:
                reply = await self._handle_batch(exchange, prepared.items)
            else:
                reply = await self._handle_single(exchange, prepared.items[0])
            return explained(reply, exchange.source, exchange.attempts)
        finally:
            if refund is not None and exchange.unearned_units:
                await refund(exchange.unearned_units)

    async def _handle_single(self, exchange: _Exchange, item: Item) -> RpcReply:
        if isinstance(item, BadCall):
            if item.code == jsonrpc.INVALID_REQUEST:
                raise InvalidRequest(item.message)
            return NOTHING if item.id is None else ok(jsonrpc.error_reply(item.id, item.code, item.message))
        try:
            reply = await self._answer(exchange, item)
        except EveryUpstreamFailed as error:
            raise UpstreamError(with_request_id(error.message, exchange.request_id)) from error
        except DeadlinePassed as error:
            raise UpstreamTimeout(with_request_id(error.message, exchange.request_id)) from error
        return NOTHING if reply is None else ok(reply)

    async def _handle_batch(self, exchange: _Exchange, items: Sequence[Item]) -> RpcReply:
        """All items at once, within the bound, answered in the order asked."""
        reply = await answer_batch(
            items,
            lambda item: self._answer_item(exchange, item),
            at_once=self._limits.batch_concurrency,
            most_bytes=self._limits.max_batch_reply_bytes,
            at_hand=lambda item: self._item_at_hand(exchange, item),
        )
        return NOTHING if reply is None else ok(reply)

    def _item_at_hand(self, exchange: _Exchange, item: Item) -> bytes | None:
        """The reply to one item of a batch, if it is a read that is in memory."""
        if isinstance(item, BadCall) or item.id is None:
            return None
        try:
            read = self._preparer.prepare_call(exchange.network, item)
            found = None if read is None else self.answer_now(exchange.caller, exchange.network, read, exchange.started)
        except Exception:
            # The ordinary way meets the same, and says so.
            return None
        if not isinstance(found, bytes):
            return None
        exchange.source = "hit"
        return found

    async def _answer_item(self, exchange: _Exchange, item: Item) -> bytes | None:
        """The reply to one item of a batch, in which every failure is an error of the item."""
        if isinstance(item, BadCall):
            return None if item.id is None else jsonrpc.error_reply(item.id, item.code, item.message)
        try:
            return await self._answer(exchange, item)
        except Forbidden as error:
            code, message = jsonrpc.SCOPE_REFUSED, error.message
        except EveryUpstreamFailed as error:
            code, message = jsonrpc.INTERNAL_ERROR, with_request_id(error.message, exchange.request_id)
        except DeadlinePassed as error:
            code, message = jsonrpc.DEADLINE_PASSED, with_request_id(error.message, exchange.request_id)
        except Exception:
            log.exception("rpc.item_failed", request_id=exchange.request_id, method=quoted(item.method))
            code, message = jsonrpc.INTERNAL_ERROR, with_request_id(_OUR_FAULT, exchange.request_id)
        return None if item.id is None else jsonrpc.error_reply(item.id, code, message)

    async def _answer(self, exchange: _Exchange, call: Call) -> bytes | None:
        """The reply to one call, or None for a notification. Raises `Forbidden` and the failures of the pool."""
        spec = exchange.network.spec
        method = look_up(spec, call.method)
        call_id = jsonrpc.NULL if call.id is None else call.id
        if method.kind in (Kind.UNKNOWN, Kind.BLOCKED):
            reply = not_found(call_id, f"the method {quoted(call.method)} does not exist/is not available")
        elif not exchange.caller.has_scope(method.scope):
            raise Forbidden(f"The API key lacks the scope {method.scope}, which {quoted(call.method)} needs.")
        elif method.kind is Kind.SUBSCRIPTION:
            message = f"notifications not supported over HTTP; subscribe on the WebSocket at /v1/ws/{spec.name}"
            reply = not_found(call_id, message)
        elif method.kind is Kind.DISABLED:
            message = f"the method {quoted(call.method)} is not enabled on {spec.name}"
            reply = jsonrpc.error_reply(call_id, jsonrpc.METHOD_NOT_ENABLED, message)
        elif method.kind is Kind.NO_ACCOUNTS:
            reply = jsonrpc.result_reply(call_id, b"[]")
        elif call.id is None and method.kind is Kind.READ:
            # A read whose answer nobody wants has no effect, so no node is bothered with it.
            return None
        else:
            reply = await self._forward(exchange, call, call_id, method)
        return None if call.id is None else reply

    async def _forward(self, exchange: _Exchange, call: Call, call_id: bytes, method: Method) -> bytes:
        """The reply of the chain to one call, and the record of what it used."""
        began = self._clock.monotonic() if exchange.errand is None else exchange.errand.began
        units = self._preparer.units(call, exchange.network)
        failed, source = True, "miss"
        try:
            answer = await self._ask(exchange, call, method)
            failed, source = False, answer.source
            return jsonrpc.result_reply(call_id, answer.result)
        except Advice as advice:
            return jsonrpc.error_reply(call_id, jsonrpc.INVALID_PARAMS, _RANGE_MESSAGE, advice.data)
        except NodeError as error:
            return jsonrpc.node_error_reply(call_id, error.raw)
        except Exception:
            # No upstream, no time, or a mistake of ours.
            exchange.unearned_units += units
            units = 0
            raise
        finally:
            exchange.source = source
            cached = source != "miss"
            self._record(exchange.caller, exchange.network, call.method, units, began, failed, cached)

    async def _ask(self, exchange: _Exchange, call: Call, method: Method) -> Answer:
        asked = self._log_range(exchange.network, call)
        max_range = exchange.network.spec.max_log_range
        if asked is not None and max_range is not None and asked.blocks > max_range:
            raise Advice(range_advice(asked, max_range))
        asking = Asking(
            network=exchange.network,
            owner=exchange.caller.account_id,
            method=call.method,
            params=call.params,
            kind=method,
            ends_at=exchange.ends_at,
            archive=self._preparer.is_archive(call, exchange.network),
            plan=exchange.plan,
            attempts=exchange.attempts,
            errand=exchange.errand,
        )
        try:
            return await self._forwarder.ask(asking)
        except NodeError as error:
            if call.method == "eth_getLogs" and is_log_range_error(error):
                raise Advice(range_advice_from_node(error, asked)) from error
            raise

    def _record(
        self, caller: Caller, network: Network, method: str, units: int, began: float, failed: bool, cached: bool
    ) -> None:
        microseconds = int((self._monotonic() - began) * 1_000_000)
        self.record_usage(caller.account_id, caller.key_id, network.name, method, units, failed, microseconds, cached)

    def _log_range(self, network: Network, call: Call) -> LogRange | None:
        return log_range(call.params, self._head(network)) if call.method == "eth_getLogs" else None
