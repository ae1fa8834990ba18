"""The JSON-RPC gateway: the bytes of a request in, the bytes of the reply out.

Called by the server once the key is known, the network found and the key's right to the network checked. One rule for
failures: what concerns the HTTP request as a whole is raised as an `ApiError`; what concerns one call is a JSON-RPC
error in a reply with status 200. A single call that is refused for its scope, or that no upstream answers, counts as
the whole request; the same in a batch is an error of that item.

Calls go to one upstream after another. Caching, hedging, coalescing and the splitting of log ranges are not built yet.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError, is_log_range_error
from capstan.chain.pool import Repeat
from capstan.chain.registry import Network
from capstan.core import jsonrpc
from capstan.core.clock import Clock
from capstan.core.errors import Forbidden, InvalidRequest, PayloadTooLarge, UpstreamError, UpstreamTimeout
from capstan.core.jsonrpc import BadCall, Call, Item
from capstan.core.redact import quoted
from capstan.rpc.blocks import (
    RECENT_BLOCKS,
    LogRange,
    is_archive_read,
    log_range,
    range_advice,
    range_advice_from_node,
)
from capstan.rpc.methods import READ_SCOPE, STATE_READS, Kind, Method, look_up
from capstan.rpc.models import Caller, Charge, Cost, Head, Refund, RpcReply

_MEBIBYTE = 1024 * 1024
_JSON_HEADERS = (("Content-Type", "application/json"),)
# Nothing is returned for notifications. 204 says so, and carries no Content-Type, which clients take for "parse this".
_NOTHING = RpcReply(204, b"", ())
_REPEATS = {Kind.READ: Repeat.FREELY, Kind.SUBMIT: Repeat.ELSEWHERE, Kind.ACTION: Repeat.NEVER}
_RANGE_MESSAGE = "The range of blocks is too wide; ask for fewer blocks at a time."


class RpcLimits(msgspec.Struct, frozen=True):
    """The sizes the gateway accepts and the work it does at once for one request."""

    max_body_bytes: int = 5 * _MEBIBYTE
    max_batch_items: int = jsonrpc.DEFAULT_MAX_ITEMS
    max_depth: int = jsonrpc.DEFAULT_MAX_DEPTH
    batch_concurrency: int = 16
    # Once the answers of a batch are larger than this together, its remaining items are not asked any more.
    max_batch_reply_bytes: int = 64 * _MEBIBYTE


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A request that was read: its calls and what they cost together."""

    items: tuple[Item, ...]
    is_batch: bool
    units: int


class _Exchange(msgspec.Struct):
    """One HTTP request under way."""

    caller: Caller
    network: Network
    request_id: str
    ends_at: float
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
        archive_depth: Callable[[], int] = lambda: RECENT_BLOCKS,
        limits: RpcLimits | None = None,
    ) -> None:
        self._cost = cost
        self._archive_depth = archive_depth
        self._head = head
        self._clock = clock
        self._limits = limits or RpcLimits()
        self._parser = jsonrpc.RequestParser(max_items=self._limits.max_batch_items, max_depth=self._limits.max_depth)

    def prepare(self, network: Network, body: bytes) -> Prepared:
        """Read the body and price it. Raises `PayloadTooLarge`, or `InvalidRequest` when it is no JSON-RPC."""
        if len(body) > self._limits.max_body_bytes:
            raise PayloadTooLarge(f"The body is larger than {self._limits.max_body_bytes} bytes.")
        try:
            request = self._parser.parse(body)
        except jsonrpc.Malformed as error:
            raise InvalidRequest(error.message) from None
        items = request.items
        units = self._units(items[0], network) if len(items) == 1 else sum(self._units(i, network) for i in items)
        return Prepared(items, request.is_batch, units)

    async def handle(
        self,
        caller: Caller,
        network: Network,
        body: bytes,
        *,
        charge: Charge,
        refund: Refund | None = None,
        request_id: str = "",
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
        return await self.answer(caller, network, prepared, refund=refund, request_id=request_id)

    def answer_now(self, caller: Caller, network: Network, prepared: Prepared) -> bytes | None:
        """The body of the reply to a request that was read and charged for, if it can be given without waiting."""
        item = prepared.items[0]
        if prepared.is_batch or isinstance(item, BadCall) or item.id is None:
            return None
        if look_up(network.spec, item.method).kind is Kind.NO_ACCOUNTS and caller.has_scope(READ_SCOPE):
            return jsonrpc.result_reply(item.id, b"[]")
        return None

    async def answer(
        self, caller: Caller, network: Network, prepared: Prepared, *, refund: Refund | None, request_id: str
    ) -> RpcReply:
        """The reply to a request that was read and charged for."""
        ends_at = self._clock.monotonic() + network.spec.deadline_seconds
        exchange = _Exchange(caller, network, request_id, ends_at)
        try:
            if prepared.is_batch:
                return await self._handle_batch(exchange, prepared.items)
            return await self._handle_single(exchange, prepared.items[0])
        finally:
            if refund is not None and exchange.unearned_units:
                await refund(exchange.unearned_units)

    async def _handle_single(self, exchange: _Exchange, item: Item) -> RpcReply:
        if isinstance(item, BadCall):
            if item.code == jsonrpc.INVALID_REQUEST:
                raise InvalidRequest(item.message)
            return _NOTHING if item.id is None else _ok(jsonrpc.error_reply(item.id, item.code, item.message))
        try:
            reply = await self._answer(exchange, item)
        except EveryUpstreamFailed as error:
            raise UpstreamError(_with_request_id(error.message, exchange)) from error
        except DeadlinePassed as error:
            raise UpstreamTimeout(_with_request_id(error.message, exchange)) from error
        return _NOTHING if reply is None else _ok(reply)

    async def _handle_batch(self, exchange: _Exchange, items: Sequence[Item]) -> RpcReply:
        """All items at once, within the bound, answered in the order asked."""
        places = asyncio.Semaphore(self._limits.batch_concurrency)
        replies: list[bytes | None] = [None] * len(items)
        answered_bytes = 0

        async def answer(position: int, item: Item) -> None:
            nonlocal answered_bytes
            async with places:
                if answered_bytes > self._limits.max_batch_reply_bytes:
                    replies[position] = _reply_too_large(item)
                    return
                reply = await self._answer_item(exchange, item)
            replies[position] = reply
            answered_bytes += len(reply or b"")

        async with asyncio.TaskGroup() as tasks:
            for position, item in enumerate(items):
                tasks.create_task(answer(position, item))
        present = [reply for reply in replies if reply is not None]
        return _ok(jsonrpc.batch_reply(present)) if present else _NOTHING

    async def _answer_item(self, exchange: _Exchange, item: Item) -> bytes | None:
        """The reply to one item of a batch, in which every failure is an error of the item."""
        if isinstance(item, BadCall):
            return None if item.id is None else jsonrpc.error_reply(item.id, item.code, item.message)
        try:
            return await self._answer(exchange, item)
        except Forbidden as error:
            code, message = jsonrpc.SCOPE_REFUSED, error.message
        except EveryUpstreamFailed as error:
            code, message = jsonrpc.INTERNAL_ERROR, _with_request_id(error.message, exchange)
        except DeadlinePassed as error:
            code, message = jsonrpc.DEADLINE_PASSED, _with_request_id(error.message, exchange)
        return None if item.id is None else jsonrpc.error_reply(item.id, code, message)

    async def _answer(self, exchange: _Exchange, call: Call) -> bytes | None:
        """The reply to one call, or None for a notification. Raises `Forbidden` and the failures of the pool."""
        spec = exchange.network.spec
        method = look_up(spec, call.method)
        call_id = jsonrpc.NULL if call.id is None else call.id
        if method.kind in (Kind.UNKNOWN, Kind.BLOCKED):
            reply = _not_found(call_id, f"the method {quoted(call.method)} does not exist/is not available")
        elif not exchange.caller.has_scope(method.scope):
            raise Forbidden(f"The API key lacks the scope {method.scope}, which {quoted(call.method)} needs.")
        elif method.kind is Kind.SUBSCRIPTION:
            reply = _not_found(call_id, "notifications not supported over HTTP; the WebSocket feed is not built yet")
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
        asked = self._log_range(exchange.network, call)
        max_range = exchange.network.spec.max_log_range
        if asked is not None and max_range is not None and asked.blocks > max_range:
            advice = range_advice(asked, max_range)
            return jsonrpc.error_reply(call_id, jsonrpc.INVALID_PARAMS, _RANGE_MESSAGE, advice)
        remaining = exchange.ends_at - self._clock.monotonic()
        try:
            result = await exchange.network.pool.call(
                call.method, call.params, timeout=remaining, repeat=_REPEATS[method.kind]
            )
        except NodeError as error:
            if call.method == "eth_getLogs" and is_log_range_error(error):
                advice = range_advice_from_node(error, asked)
                return jsonrpc.error_reply(call_id, jsonrpc.INVALID_PARAMS, _RANGE_MESSAGE, advice)
            return jsonrpc.node_error_reply(call_id, error.raw)
        except (EveryUpstreamFailed, DeadlinePassed):
            exchange.unearned_units += self._units(call, exchange.network)
            raise
        return jsonrpc.result_reply(call_id, result)

    def _log_range(self, network: Network, call: Call) -> LogRange | None:
        return log_range(call.params, self._head(network)) if call.method == "eth_getLogs" else None

    def _units(self, item: Item, network: Network) -> int:
        """What an item costs: by its method, refused or not; nothing if it is no call at all."""
        if isinstance(item, BadCall):
            return 0
        # The head is asked for only where it matters: looking at it may cost the network a call.
        archive = item.method in STATE_READS and is_archive_read(
            item.method, item.params, self._head(network), self._archive_depth()
        )
        return self._cost(item.method, archive)


def _ok(body: bytes) -> RpcReply:
    return RpcReply(200, body, _JSON_HEADERS)


def _not_found(call_id: bytes, message: str) -> bytes:
    return jsonrpc.error_reply(call_id, jsonrpc.METHOD_NOT_FOUND, message)


def _reply_too_large(item: Item) -> bytes | None:
    message = "The answers of this batch are too large together; send the call again on its own."
    return None if item.id is None else jsonrpc.error_reply(item.id, jsonrpc.INTERNAL_ERROR, message)


def _with_request_id(message: str, exchange: _Exchange) -> str:
    return f"{message} Request id: {exchange.request_id}." if exchange.request_id else message
