"""One upstream node over HTTP: a call goes out, its result comes back as bytes, or a `chain.errors` error is raised.

Called by the pool only. Each upstream has connections of its own, in `wire`, whose errors are translated here and
nowhere else. It does not choose upstreams.
"""

import asyncio
import itertools
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Raw

from capstan.chain.errors import (
    ReplyTooLarge,
    UpstreamBadReply,
    UpstreamDisconnected,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeoutError,
    UpstreamUnreachable,
    error_from_node,
)
from capstan.chain.models import Family, UpstreamSpec
from capstan.chain.wire import WireClient, WireError, WireOptions
from capstan.core import jsonrpc

# Below the 5 seconds after which Node.js servers close an idle connection, so that we close first and do not write into
# a connection that is going away.
_KEEP_ALIVE_SECONDS = 4.0
# Each upstream bounds its own connections. A bound over all would let a few that stall hold up the others.
_UNBOUNDED = 0
_OK = 200
_REFUSING_STATUSES = frozenset({401, 402, 403, 407, 429})
# What a proxy in front of a node says. Its body, JSON or not, is not the node's.
_GATEWAY_STATUSES = frozenset({502, 503, 504})
_FAILURES: dict[str, type[UpstreamFailure]] = {
    "connect": UpstreamUnreachable,
    "busy": UpstreamRefused,
    "timeout": UpstreamTimeoutError,
    "disconnect": UpstreamDisconnected,
    "malformed": UpstreamBadReply,
    "too_large": ReplyTooLarge,
}


def open_session(*, max_connections: int = _UNBOUNDED) -> aiohttp.ClientSession:
    """The session of all WebSocket upstreams. Must be called with the event loop running; the registry closes it."""
    connector = aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=_KEEP_ALIVE_SECONDS)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "capstan"},
        trust_env=False,
    )


class UpstreamClient(Protocol):
    """What the pool asks of a client of one upstream, whatever it speaks."""

    @property
    def spec(self) -> UpstreamSpec: ...
    @property
    def name(self) -> str: ...
    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Raw: ...
    def retire(self) -> None: ...
    async def close(self) -> None: ...


class Upstream:
    """A client of one upstream over HTTP."""

    def __init__(self, spec: UpstreamSpec, family: Family) -> None:
        self.spec = spec
        self.name = spec.name
        self._family: Family = family
        self._ids = itertools.count(1)
        # Requests of methods, to be filled in, and the length of their bodies before that, for calls that are begun.
        # These are methods of the tables, so they are few.
        self._forms: dict[str, tuple[bytes, int]] = {}
        self._closed = False
        self._timeout = spec.timeout_seconds
        self._is_address = urlsplit(spec.url).scheme in ("http", "https") and bool(urlsplit(spec.url).hostname)
        self._wire = WireClient(
            WireOptions(
                url=spec.url,
                headers=spec.headers,
                connect_timeout_seconds=spec.connect_timeout_seconds,
                max_response_bytes=spec.max_response_bytes,
                connections=spec.connections,
                gzip=spec.gzip,
            )
        )
        # Sends what `compose` gave, without waiting for its answer, which the sending is told.
        self.begin = self._wire.send

    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Raw:
        """The result of one call, as JSON text. `params` is a JSON array.

        `repeatable` allows a second delivery to this upstream when a pooled connection turned out to be dead.
        """
        if self._closed:
            raise UpstreamUnreachable(self.name, "the service is shutting down")
        if not self._is_address:
            raise UpstreamUnreachable(self.name, "its address is not a valid URL")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout, self.spec.timeout_seconds)
        call_id = next(self._ids)
        body = jsonrpc.encode_call(call_id, method, params)
        try:
            try:
                answer = await self._wire.post(body, deadline - loop.time(), repeatable=repeatable)
            except WireError as error:
                if error.kind != "disconnect" or not repeatable or loop.time() >= deadline:
                    raise
                # Cut off without a word: a restart, perhaps. Once more, before the upstream counts as failed, but only
                # for what is left of the time.
                answer = await self._wire.post(body, deadline - loop.time(), repeatable=False)
        except WireError as error:
            raise self.failure(error) from None
        return self.judge(answer.status, b"%d" % call_id, answer.body)

    def compose(self, method: str, params: bytes, timeout: float) -> tuple[bytes, bytes, float] | None:
        """A call that can be sent without waiting: its id, for `judge`, the bytes of the request, and its deadline.

        None when nothing can be sent at once: then `call` says why.
        """
        wire = self._wire
        if self._closed or (not wire.idle and not (self._is_address and wire.accepts())):
            return None
        form = self._forms.get(method)
        if form is None:
            form = self._forms[method] = self._form(method)
        call_id = b"%d" % next(self._ids)
        seconds = min(timeout, self._timeout)
        size = form[1] + len(call_id) + len(params)
        return call_id, form[0] % (size, call_id, params), wire.time() + seconds

    def _form(self, method: str) -> tuple[bytes, int]:
        name = msgspec.json.encode(method)
        body = b'{"jsonrpc":"2.0","id":%%b,"method":%b,"params":%%b}' % name.replace(b"%", b"%%")
        head = self._wire.head.replace(b"%", b"%%")
        return b"%b%%d\r\n\r\n%b" % (head, body), len(body % (b"", b""))

    def failure(self, error: WireError) -> UpstreamFailure:
        """What an error of the wire means for a call."""
        return _FAILURES[error.kind](self.name, error.reason)

    def retire(self) -> None:
        """No new calls will come. Connections close by themselves once they are idle."""

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        self._closed = True
        await self._wire.close()

    def judge(self, status: int, call_id: bytes, text: bytes) -> Raw:
        """The result in a complete HTTP answer, if it is a reply to the call `call_id`."""
        if status == _OK:
            result = jsonrpc.plain_result(text, call_id)
            if result is not None:
                return result
        if status in _REFUSING_STATUSES:
            raise UpstreamRefused(self.name, f"HTTP status {status}")
        if status in _GATEWAY_STATUSES:
            raise UpstreamBadReply(self.name, f"HTTP status {status}")
        try:
            reply = jsonrpc.decode_reply(text)
            error = None if reply.error is None else jsonrpc.decode_error(reply.error)
        except ValueError as problem:
            raise UpstreamBadReply(self.name, f"HTTP status {status}, body {problem}") from None
        # A node that could not read our id answers with null (JSON-RPC 2.0, section 5).
        expected = (call_id,) if error is None else (call_id, jsonrpc.NULL, b"")
        if reply.id not in expected:
            raise UpstreamBadReply(self.name, "the answer carries the id of another call")
        if error is not None and reply.error is not None:
            raise error_from_node(self._family, self.name, error, reply.error)
        if not 200 <= status < 300 or reply.result is None:
            raise UpstreamBadReply(self.name, f"HTTP status {status}")
        return reply.result
