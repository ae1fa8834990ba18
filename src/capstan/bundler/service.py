"""The JSON-RPC endpoint of the bundler: the bytes of a request in, the bytes of the reply out.

Called by the route once the key is known and the network found. It reads the request, charges for it, finds each
method in the table and turns what goes wrong into JSON-RPC errors, by the same rule as the gateway: what concerns the
HTTP request as a whole is raised as an `ApiError`, what concerns one call is an error in a reply with status 200. A
single call that is refused for its scope, or that no upstream answers, counts as the whole request.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import structlog

from capstan.access.models import Caller
from capstan.bundler.calls import AnyMethod, Methods
from capstan.bundler.network import NetworkBundler
from capstan.bundler.refusals import Refusal
from capstan.chain.errors import NodeError
from capstan.core import jsonrpc
from capstan.core.batches import answer_batch
from capstan.core.clock import Clock
from capstan.core.errors import ApiError, Forbidden, InvalidRequest, PayloadTooLarge, UpstreamError, UpstreamTimeout
from capstan.core.jsonrpc import BadCall, Call, Item
from capstan.core.redact import quoted

log = structlog.get_logger(__name__)

_AT_ONCE = 16
_MOST_REPLY_BYTES = 64 * 1024 * 1024
_OUR_FAULT = "Something went wrong on our side."

# The units a method costs; give units back; take requests and units, or raise `RateLimited`.
Cost: TypeAlias = Callable[[str], int]
Refund: TypeAlias = Callable[[int], Awaitable[None]]
Charge: TypeAlias = Callable[[int, int], Awaitable[None]]


class Usage(Protocol):
    """The ledger of what was used."""

    def record(
        self,
        *,
        account_id: str,
        key_id: str,
        network: str,
        method: str,
        units: int,
        failed: bool,
        microseconds: int,
        cached: bool = False,
    ) -> None:
        """Count one call."""
        ...


class Exchange(msgspec.Struct):
    """One HTTP request under way."""

    caller: Caller
    bundler: NetworkBundler
    request_id: str
    # Units of the answers that failed through our own fault.
    unearned_units: int = 0


class BundlerService:
    """Answers JSON-RPC requests to the bundler of any network."""

    def __init__(
        self, methods: Methods, *, cost: Cost, usage: Usage, clock: Clock, max_body_bytes: int, max_batch_items: int
    ) -> None:
        self._methods = methods
        self._cost = cost
        self._usage = usage
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._parser = jsonrpc.RequestParser(max_items=max_batch_items)

    async def handle(
        self,
        caller: Caller,
        bundler: NetworkBundler,
        body: bytes,
        *,
        charge: Charge,
        refund: Refund,
        request_id: str,
    ) -> bytes | None:
        """The reply to the body of one request; None when nothing is to be said. Raises `ApiError`."""
        try:
            request = self._read(body)
        except InvalidRequest:
            # A malformed request is a request all the same.
            await charge(1, 0)
            raise
        await charge(len(request.items), sum(map(self._units, request.items)))
        exchange = Exchange(caller, bundler, request_id)
        try:
            if not request.is_batch:
                return await self._single(exchange, request.items[0])
            return await answer_batch(
                request.items,
                lambda item: self._item(exchange, item),
                at_once=_AT_ONCE,
                most_bytes=_MOST_REPLY_BYTES,
            )
        finally:
            if exchange.unearned_units:
                await refund(exchange.unearned_units)

    def _read(self, body: bytes) -> jsonrpc.Request:
        if len(body) > self._max_body_bytes:
            raise PayloadTooLarge(f"The body is larger than {self._max_body_bytes} bytes.")
        try:
            return self._parser.parse(body)
        except jsonrpc.Malformed as error:
            raise InvalidRequest(error.message) from None

    async def _single(self, exchange: Exchange, item: Item) -> bytes | None:
        if isinstance(item, BadCall):
            if item.code == jsonrpc.INVALID_REQUEST:
                raise InvalidRequest(item.message)
            return None if item.id is None else jsonrpc.error_reply(item.id, item.code, item.message)
        try:
            return await self._answer(exchange, item)
        except UpstreamError as error:
            raise UpstreamError(_with_request_id(error.message, exchange)) from error
        except UpstreamTimeout as error:
            raise UpstreamTimeout(_with_request_id(error.message, exchange)) from error

    async def _item(self, exchange: Exchange, item: Item) -> bytes | None:
        """The reply to one item of a batch, in which every failure is an error of the item."""
        if isinstance(item, BadCall):
            return None if item.id is None else jsonrpc.error_reply(item.id, item.code, item.message)
        try:
            return await self._answer(exchange, item)
        except Forbidden as error:
            code, message = jsonrpc.SCOPE_REFUSED, error.message
        except UpstreamTimeout as error:
            code, message = jsonrpc.DEADLINE_PASSED, _with_request_id(error.message, exchange)
        except ApiError as error:
            code, message = jsonrpc.INTERNAL_ERROR, _with_request_id(error.message, exchange)
        except Exception:
            log.exception("bundler.item_failed", request_id=exchange.request_id, method=quoted(item.method))
            code, message = jsonrpc.INTERNAL_ERROR, _with_request_id(_OUR_FAULT, exchange)
        return None if item.id is None else jsonrpc.error_reply(item.id, code, message)

    async def _answer(self, exchange: Exchange, call: Call) -> bytes | None:
        """The reply to one call, or None for a notification. Raises `Forbidden` and the failures of the upstreams."""
        call_id = jsonrpc.NULL if call.id is None else call.id
        method = self._methods.get(call.method)
        if method is None or (method.debug and not exchange.bundler.debug):
            message = f"the method {quoted(call.method)} does not exist/is not available"
            reply = jsonrpc.error_reply(call_id, jsonrpc.METHOD_NOT_FOUND, message)
        elif not any(exchange.caller.has_scope(scope) for scope in method.scopes):
            scopes = " or ".join(method.scopes)
            raise Forbidden(f"The API key lacks the scope {scopes}, which {quoted(call.method)} needs.")
        else:
            reply = await self._run(exchange, call, call_id, method)
        return None if call.id is None else reply

    async def _run(self, exchange: Exchange, call: Call, call_id: bytes, method: AnyMethod) -> bytes:
        began, units, failed = self._clock.monotonic(), self._units(call), True
        try:
            params: list[Any] = msgspec.json.decode(call.params, type=list[Any])
            result = msgspec.json.encode(await method.answer(exchange.caller, exchange.bundler, params))
            failed = False
            return jsonrpc.result_reply(call_id, result)
        except Refusal as refusal:
            return jsonrpc.error_reply(call_id, refusal.code, refusal.message, dict(refusal.data) or None)
        except NodeError as error:
            return jsonrpc.node_error_reply(call_id, error.raw)
        except Exception:
            # No upstream, no time, or a mistake of ours.
            exchange.unearned_units += units
            units = 0
            raise
        finally:
            self._usage.record(
                account_id=exchange.caller.account_id,
                key_id=exchange.caller.key_id,
                network=exchange.bundler.name,
                method=call.method,
                units=units,
                failed=failed,
                microseconds=int((self._clock.monotonic() - began) * 1_000_000),
            )

    def _units(self, item: Item) -> int:
        return 0 if isinstance(item, BadCall) else self._cost(item.method)


def _with_request_id(message: str, exchange: Exchange) -> str:
    return f"{message} Request id: {exchange.request_id}." if exchange.request_id else message
