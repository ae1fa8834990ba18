"""One upstream node over HTTP: a call goes out, its result comes back as bytes, or a `chain.errors` error is raised.

Called by the pool only. All upstreams share one session and its pooled connections. This is the single place where the
errors of the HTTP library are translated. It does not choose upstreams, and it does not follow redirects, keep cookies
or read proxy settings from the environment.
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from msgspec import Raw

from capstan.chain.errors import (
    UpstreamBadReply,
    UpstreamDisconnected,
    UpstreamRefused,
    UpstreamTimeoutError,
    UpstreamUnreachable,
    error_from_node,
)
from capstan.chain.models import Family, UpstreamSpec
from capstan.core import jsonrpc

# Below the 5 seconds after which Node.js servers close an idle connection, so that we close first and do not write into
# a connection that is going away.
_KEEP_ALIVE_SECONDS = 4.0
_DEFAULT_CONNECTIONS = 512
_REFUSING_STATUSES = frozenset({401, 402, 403, 407, 429})
# What a proxy in front of a node says. Its body, JSON or not, is not the node's.
_GATEWAY_STATUSES = frozenset({502, 503, 504})


def open_session(*, max_connections: int = _DEFAULT_CONNECTIONS) -> aiohttp.ClientSession:
    """The session that all upstreams share. Must be called with the event loop running; the registry closes it."""
    connector = aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=_KEEP_ALIVE_SECONDS)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "capstan"},
        trust_env=False,
    )


class Upstream:
    """A client of one upstream."""

    def __init__(self, spec: UpstreamSpec, family: Family, session: aiohttp.ClientSession) -> None:
        self.spec = spec
        self.name = spec.name
        self._family: Family = family
        self._session = session
        self._ids = itertools.count(1)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "gzip" if spec.gzip else "identity",
            **dict(spec.headers),
        }
        # The whole attempt is bounded in `call`; the library only bounds the connecting.
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=spec.connect_timeout_seconds)

    async def call(self, method: str, params: bytes, *, timeout: float, repeatable: bool = True) -> Raw:
        """The result of one call, as JSON text. `params` is a JSON array.

        `repeatable` allows a second delivery to this upstream when a pooled connection turned out to be dead.
        """
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

    async def _exchange(self, method: str, params: bytes) -> Raw:
        call_id = next(self._ids)
        body = jsonrpc.encode_call(call_id, method, params)
        if self._session.closed:
            raise UpstreamUnreachable(self.name, "the service is shutting down")
        with self._translated_errors():
            async with self._session.post(
                self.spec.url, data=body, headers=self._headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                text = await self._read(response)
        return self._judge(response.status, call_id, text)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, decompressed, never more than the bound in memory."""
        limit = self.spec.max_response_bytes
        chunks: list[bytes] = []
        size = response.content_length or 0
        if size <= limit:
            size = 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > limit:
                    break
                chunks.append(chunk)
        if size > limit:
            # The rest is not wanted, so the connection cannot be used again.
            response.close()
            raise UpstreamBadReply(self.name, f"the answer is larger than {limit} bytes")
        return b"".join(chunks)

    def _judge(self, status: int, call_id: int, text: bytes) -> Raw:
        """The result in a complete HTTP answer, if it is a reply to the call `call_id`."""
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
        expected = (b"%d" % call_id,) if error is None else (b"%d" % call_id, jsonrpc.NULL, b"")
        if reply.id not in expected:
            raise UpstreamBadReply(self.name, "the answer carries the id of another call")
        if error is not None and reply.error is not None:
            raise error_from_node(self._family, self.name, error, reply.error)
        if not 200 <= status < 300 or reply.result is None:
            raise UpstreamBadReply(self.name, f"HTTP status {status}")
        return reply.result

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UpstreamUnreachable(self.name, f"cannot connect ({type(error).__name__})") from None
        except aiohttp.InvalidURL:
            raise UpstreamUnreachable(self.name, "its address is not a valid URL") from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
            raise UpstreamDisconnected(self.name, f"the connection ended ({type(error).__name__})") from None
        except aiohttp.ClientPayloadError:
            raise UpstreamBadReply(self.name, "the answer broke off or cannot be decompressed") from None
        except aiohttp.ClientError as error:
            raise UpstreamBadReply(self.name, f"not an HTTP answer ({type(error).__name__})") from None
