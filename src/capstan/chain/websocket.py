"""One upstream over WebSocket: many calls at once on a single connection, told apart by their ids.

Used by the pool like an HTTP `Upstream`, for addresses that begin with ws:// or wss://. The connection is made when the
first call needs it and again after it was lost, not more often than a growing pause allows. What is in flight when the
connection ends fails as `UpstreamDisconnected`. Calls in flight and the size of a message are bounded. A subscription
(`newHeads` and the like) lives on the connection it was made on and ends with it; whoever made it makes it again.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
import structlog
from msgspec import Raw

from capstan.chain.errors import (
    ChainError,
    UpstreamBadReply,
    UpstreamDisconnected,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeoutError,
    UpstreamUnreachable,
    error_from_node,
)
from capstan.chain.models import Family, UpstreamSpec
from capstan.core import jsonrpc

log = structlog.get_logger(__name__)

# Beyond this, a call goes to another upstream rather than into a queue.
_MAX_IN_FLIGHT = 1_024
# A connection on which nothing comes back for so long, not even to a ping, is dead.
_HEARTBEAT_SECONDS = 20.0
_CLOSE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_REFUSING_STATUSES = frozenset({401, 402, 403, 407, 429})
# So many calls to subscribe may be unanswered on a connection; those of long ago will not be answered any more.
_MAX_UNANSWERED = 1_024
_UNANSWERED_SECONDS = 600.0

Pending = dict[int, "asyncio.Future[jsonrpc.Reply]"]


# Notifications that came before we knew of their subscription: the answer to the subscribing call is still being read.
_EARLY_NOTIFICATIONS = 64


class _Told(msgspec.Struct, frozen=True):
    subscription: Raw
    result: Raw


class _Notification(msgspec.Struct, frozen=True):
    method: str
    params: Raw = Raw(b"null")


_notification_decoder = msgspec.json.Decoder(_Notification)
_told_decoder = msgspec.json.Decoder(_Told)

Listener = Callable[[Raw], None]
# Called with a reply for which nobody waits any more.
TooLate = Callable[[jsonrpc.Reply], None]


class UpstreamSubscription:
    """A subscription at an upstream, as long as its connection lives."""

    def __init__(self, connection: "_Connection", key: bytes, end: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._key = key
        self._end = end

    async def wait_lost(self) -> None:
        """Wait until the connection has ended, and the subscription with it."""
        await self._connection.ended.wait()

    async def close(self) -> None:
        """End the subscription. The upstream is told, if it still listens."""
        self._connection.listeners.pop(self._key, None)
        if self._connection.usable:
            await self._end()


class WebSocketUpstream:
    """A client of one upstream over WebSocket."""

    def __init__(self, spec: UpstreamSpec, family: Family, session: aiohttp.ClientSession) -> None:
        self.spec = spec
        self.name = spec.name
        self._family: Family = family
        self._session = session
        self._ids = itertools.count(1)
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._next_connect_at = -math.inf
        self._in_flight = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Raw:
        """The result of one call, as JSON text. `params` is a JSON array.

        `repeatable` allows a second delivery when the connection was lost before the answer.
        """
        if self._in_flight >= _MAX_IN_FLIGHT:
            raise UpstreamRefused(self.name, f"{_MAX_IN_FLIGHT} calls are in flight already")
        self._in_flight += 1
        try:
            async with asyncio.timeout(min(timeout, self.spec.timeout_seconds)):
                try:
                    return await self._exchange(method, params)
                except UpstreamDisconnected:
                    if not repeatable:
                        raise
                return await self._exchange(method, params)
        except TimeoutError:
            raise UpstreamTimeoutError(self.name, "no answer in time") from None
        finally:
            self._in_flight -= 1
            if self._retired and not self._in_flight:
                await self.close()

    async def subscribe(
        self, method: str, params: bytes, listener: Listener, *, unsubscribe: str, timeout: float
    ) -> UpstreamSubscription:
        """Subscribe with this method; `listener` is called on the event loop with each result. Raises `ChainError`.

        When the node answers after the time is over or the caller has left, the subscription is ended at once.
        """
        try:
            async with asyncio.timeout(min(timeout, self.spec.timeout_seconds)):
                connection = await self._connected()
                if not connection.takes_subscriptions:
                    raise UpstreamRefused(self.name, f"{_MAX_UNANSWERED} calls to subscribe are unanswered")

                def too_late(reply: jsonrpc.Reply) -> None:
                    if reply.error is None and reply.result is not None:
                        self._end_soon(connection, unsubscribe, bytes(reply.result))

                key = bytes(await self._ask(connection, method, params, too_late))
        except TimeoutError:
            raise UpstreamTimeoutError(self.name, "no answer in time") from None
        connection.listen(key, listener)
        return UpstreamSubscription(connection, key, lambda: self._end(connection, unsubscribe, key))

    def _end_soon(self, connection: "_Connection", method: str, key: bytes) -> None:
        task = asyncio.create_task(self._end(connection, method, key), name=f"unsubscribing at {self.name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, connection: "_Connection", method: str, key: bytes) -> None:
        """End a subscription, on the connection it was made on: elsewhere the same id may be another one."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._ask(connection, method, b"[" + key + b"]")
        except (ChainError, TimeoutError) as error:
            log.debug("upstream.not_unsubscribed", upstream=self.name, method=method, reason=str(error))
        finally:
            if self._retired:
                self.retire()

    async def close(self) -> None:
        """Close the connection. Calls in flight fail as disconnected."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close("closed by us")
        await asyncio.gather(*self._ending, return_exceptions=True)

    def retire(self) -> None:
        """No new calls will come. Close once those in flight are answered."""
        self._retired = True
        if not self._in_flight and self._connection is not None:
            self._closing = asyncio.create_task(self.close(), name=f"closing {self.name}")

    async def _exchange(self, method: str, params: bytes) -> Raw:
        return await self._ask(await self._connected(), method, params)

    async def _connected(self) -> "_Connection":
        connection = self._connection
        if connection is None or not connection.usable:
            connection = await self._connect()
        return connection

    async def _ask(self, connection: "_Connection", method: str, params: bytes, too_late: TooLate | None = None) -> Raw:
        call_id = next(self._ids)
        reply = await connection.ask(call_id, jsonrpc.encode_call(call_id, method, params).decode(), too_late)
        if reply.error is not None:
            try:
                error = jsonrpc.decode_error(reply.error)
            except ValueError as problem:
                raise UpstreamBadReply(self.name, str(problem)) from None
            raise error_from_node(self._family, self.name, error, reply.error)
        if reply.result is None:
            raise UpstreamBadReply(self.name, "neither result nor error")
        return reply.result

    async def _connect(self) -> "_Connection":
        """The connection, made anew if need be. Calls that come meanwhile wait for the same attempt."""
        async with self._connecting:
            if self._connection is not None and self._connection.usable:
                return self._connection
            now = asyncio.get_running_loop().time()
            if self._session.closed:
                raise UpstreamUnreachable(self.name, "the service is shutting down")
            if now < self._next_connect_at:
                raise UpstreamUnreachable(self.name, "the last attempt to connect failed a moment ago")
            try:
                socket = await self._open()
            except UpstreamFailure:
                pause = min(_FIRST_PAUSE_SECONDS * (1 << min(self._failures, 10)), _LONGEST_PAUSE_SECONDS)
                self._failures += 1
                self._next_connect_at = asyncio.get_running_loop().time() + pause
                raise
            self._failures = 0
            self._connection = _Connection(self.name, socket)
            return self._connection

    async def _open(self) -> "aiohttp.ClientWebSocketResponse":
        try:
            async with asyncio.timeout(self.spec.connect_timeout_seconds):
                return await self._session.ws_connect(
                    self.spec.url,
                    headers=dict(self.spec.headers),
                    heartbeat=_HEARTBEAT_SECONDS,
                    max_msg_size=self.spec.max_response_bytes,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
                )
        except TimeoutError:
            raise UpstreamUnreachable(self.name, "cannot connect in time") from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _REFUSING_STATUSES:
                raise UpstreamRefused(self.name, f"HTTP status {error.status}") from None
            raise UpstreamUnreachable(self.name, f"no WebSocket there (HTTP status {error.status})") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamUnreachable(self.name, f"cannot connect ({type(error).__name__})") from None


class _Connection:
    """An open WebSocket, the calls that wait on it, and the task that reads from it."""

    def __init__(self, upstream: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._upstream = upstream
        self._socket = socket
        self._pending: Pending = {}
        # Calls whose reply matters even when nobody waits for it any more, with the time they were sent; oldest first.
        self._unanswered: dict[int, tuple[float, TooLate]] = {}
        self._lost = ""
        self.ended = asyncio.Event()
        self.listeners: dict[bytes, Listener] = {}
        self._early: deque[tuple[bytes, Raw]] = deque(maxlen=_EARLY_NOTIFICATIONS)
        self._reader = asyncio.create_task(self._read(), name=f"websocket to {upstream}")

    @property
    def usable(self) -> bool:
        """Whether calls can be sent."""
        return not self._lost and not self._socket.closed

    @property
    def takes_subscriptions(self) -> bool:
        """Whether not too many calls are unanswered whose reply matters."""
        long_ago = asyncio.get_running_loop().time() - _UNANSWERED_SECONDS
        while self._unanswered:
            oldest = next(iter(self._unanswered))
            if self._unanswered[oldest][0] > long_ago:
                break
            del self._unanswered[oldest]
        return len(self._unanswered) < _MAX_UNANSWERED

    async def ask(self, call_id: int, text: str, too_late: TooLate | None = None) -> jsonrpc.Reply:
        """Send a call and wait for the reply with its id. Without `too_late`, a reply that finds nobody is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[jsonrpc.Reply] = loop.create_future()
        self._pending[call_id] = future
        if too_late is not None:
            self._unanswered[call_id] = (loop.time(), too_late)
        given_up = False
        try:
            await self._socket.send_str(text)
            return await future
        except (aiohttp.ClientError, ConnectionError) as error:
            raise UpstreamDisconnected(self._upstream, f"the connection ended ({type(error).__name__})") from None
        except asyncio.CancelledError:
            given_up = True
            raise
        finally:
            self._pending.pop(call_id, None)
            has_reply = future.done() and not future.cancelled() and future.exception() is None
            if not given_up:
                self._unanswered.pop(call_id, None)
            elif has_reply:
                # It came in the moment of leaving.
                self._came_too_late(call_id, future.result())

    def _came_too_late(self, call_id: int, reply: jsonrpc.Reply) -> None:
        _, too_late = self._unanswered.pop(call_id, (0.0, None))
        if too_late is not None:
            too_late(reply)

    def listen(self, key: bytes, listener: Listener) -> None:
        """Hand every result of this subscription to the listener, those that have come already included."""
        self.listeners[key] = listener
        early, self._early = self._early, deque(maxlen=_EARLY_NOTIFICATIONS)
        for told, result in early:
            self._tell(told, result)

    async def close(self, reason: str) -> None:
        """Fail what waits, and close."""
        self._fail(reason)
        if self._reader is not asyncio.current_task():
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()

    async def _read(self) -> None:
        reason = "the connection ended"
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.ERROR:
                    break
                if not self._take(message):
                    reason = "something came that is not a JSON-RPC reply"
                    break
            if self._socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                reason = "a message was too large"
        except (aiohttp.ClientError, OSError) as error:
            reason = f"the connection ended ({type(error).__name__})"
        finally:
            self._fail(reason)
        await self._socket.close()

    def _take(self, message: aiohttp.WSMessage) -> bool:
        """Hand a reply to the call that waits for it. False when the connection cannot be trusted any more."""
        if message.type is aiohttp.WSMsgType.TEXT:
            data = message.data.encode()
        elif message.type is aiohttp.WSMsgType.BINARY:
            data = message.data
        else:
            return True
        try:
            reply = jsonrpc.decode_reply(data)
        except ValueError:
            return self._notified(data)
        if not reply.id.isdigit() or len(reply.id) >= 20:
            return True
        call_id = int(reply.id)
        future = self._pending.get(call_id)
        if future is not None and not future.done():
            future.set_result(reply)
        elif future is None or future.cancelled():
            self._came_too_late(call_id, reply)
        return True

    def _notified(self, data: bytes) -> bool:
        """Whether it is JSON that calls a method, as subscriptions do. If it is one of ours, its listener is called."""
        try:
            notification = _notification_decoder.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return False
        try:
            told = _told_decoder.decode(notification.params)
        except msgspec.DecodeError:
            # Of some other kind; nobody here waits for it.
            return True
        self._tell(bytes(told.subscription), told.result)
        return True

    def _tell(self, key: bytes, result: Raw) -> None:
        listener = self.listeners.get(key)
        if listener is None:
            self._early.append((key, result))
            return
        try:
            listener(result)
        except Exception:
            # A mistake of ours must not end the connection, on which others wait.
            log.exception("upstream.listener_failed", upstream=self._upstream)

    def _fail(self, reason: str) -> None:
        if self._lost:
            return
        self._lost = reason
        self._unanswered.clear()
        self.ended.set()
        for future in tuple(self._pending.values()):
            if not future.done():
                future.set_exception(UpstreamDisconnected(self._upstream, reason))
        if self._pending:
            log.debug("upstream.websocket_lost", upstream=self._upstream, reason=reason, calls=len(self._pending))
