"""Decides about WebSocket handshakes: may this request become a socket, and whose is it.

The WebSocket protocol calls `admit` for every upgrade of `/v1/ws/…`. The checks are those of any request, with the same
admission, and in the same order: key, network, limits, scope. The key may also stand in the query, because browsers
cannot set headers on a WebSocket; the query is never logged. A refusal is an ordinary HTTP answer with the error body
of the API.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Collection
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler

from capstan.access.models import Caller, Scope
from capstan.access.secrets import digest
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import Forbidden, InvalidRequest, NotFound, Unauthorized, UpgradeRequired, render
from capstan.core.ids import RequestIds
from capstan.core.redact import quoted
from capstan.limits.models import Decision
from capstan.server.accesslog import AccessLine, AccessLog
from capstan.server.admission import Admission, require_scope
from capstan.server.context import RequestContext
from capstan.server.identity import ClientAddress, presented_key, request_id_of
from capstan.server.rendering import to_api_error
from capstan.server.responses import ResponseEncoder
from capstan.server.telemetry import Telemetry

Headers = list[tuple[bytes, bytes]]

PREFIX = b"/v1/ws/"
_ROUTE = "/v1/ws/{chain}/{network}"
# RFC 6455, section 1.3.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION = b"13"
_KEY_BYTES = 16
# v1, ws, chain, network.
_PATH_PARTS = 4
_QUERY_KEY = "apiKey"
_MOST_FIELDS = 100
_PAGE = "docs/reference/websocket.md"
_SCOPES = (Scope.RPC_READ, Scope.RPC_WRITE)


class Admitted(msgspec.Struct, frozen=True):
    """A handshake that may go on."""

    context: RequestContext
    caller: Caller
    # The SHA-256 of the key, by which it can be looked up again.
    key_digest: bytes
    network: Network
    accept: bytes


class Refused(Exception):
    """The handshake is answered with these bytes, and the connection ends."""

    def __init__(self, response: bytes) -> None:
        super().__init__("the handshake was refused")
        self.response = response


class Handshakes:
    """Admits handshakes."""

    def __init__(
        self,
        admission: Admission,
        encoder: ResponseEncoder,
        clock: Clock,
        *,
        find_network: Callable[[Caller, str, str], Network],
        addresses: ClientAddress,
        telemetry: Telemetry,
        access_log: AccessLog,
        request_ids: RequestIds,
        origins: Collection[str] = (),
    ) -> None:
        self._admission = admission
        self._encoder = encoder
        self._clock = clock
        self._find_network = find_network
        self._addresses = addresses
        self._telemetry = telemetry
        self._access_log = access_log
        self._request_ids = request_ids
        self._origins = frozenset(origins)

    async def admit(self, target: bytes, headers: Headers, peer: str) -> Admitted:
        """Check everything. Raises `Refused` with the answer."""
        path, _, query = target.partition(b"?")
        context = RequestContext(
            request_id=request_id_of(headers) or self._request_ids.next(),
            client=self._addresses.of(peer, headers),
            method="GET",
            path=unquote(path.decode("latin-1")),
            started=self._clock.monotonic(),
        )
        identified = _with_query_key(headers, query)
        try:
            return await self._check(context, headers, identified)
        except Exception as error:
            raise Refused(await self.refusal(context, identified, error)) from error

    def accepted(self, admitted: Admitted) -> bytes:
        """The answer to a handshake that has become a socket."""
        admitted.context.status = 101
        self._record(admitted.context, 0)
        return self._encoder.encode_switch(
            admitted.accept, _decision(admitted.context, self._clock), admitted.context.request_id
        )

    async def refusal(self, context: RequestContext, headers: Headers, error: Exception) -> bytes:
        """The answer to a handshake that fails."""
        if context.decision is None:
            try:
                error = await self._admission.count_refused(context, headers) or error
            except Exception as other:
                error = other
        shown = to_api_error(error, path=context.path, method=context.method, request_id=context.request_id)
        body = render(shown)
        context.status = shown.status
        self._record(context, len(body))
        own = (("Content-Type", "application/json"), *shown.headers.items())
        decision = _decision(context, self._clock)
        return self._encoder.encode(shown.status, body, own, decision, context.request_id, keep_alive=False)

    async def _check(self, context: RequestContext, headers: Headers, identified: Headers) -> Admitted:
        parts = context.path.strip("/").split("/")
        if len(parts) != _PATH_PARTS:
            raise NotFound(f"there is nothing at {quoted(context.path)}; see /docs for every path")
        accept = _accept(headers)
        self._check_origin(headers)
        key = presented_key(identified)
        if key is None:
            await self._admission.charge_anonymous(context)
            raise Unauthorized(
                "an API key is required; put it into the address as ?apiKey=, or send it as the header X-API-Key"
            )
        caller = await self._admission.identify(context, identified)
        network = self._find_network(caller, parts[2], parts[3])
        await self._admission.charge(context, requests=1, units=0)
        require_scope(caller, _SCOPES)
        return Admitted(context, caller, digest(key), network, accept)

    def _check_origin(self, headers: Headers) -> None:
        """Where origins are configured, pages of others may not connect. Programs send no origin."""
        if not self._origins or "*" in self._origins:
            return
        values = dict(headers)
        origin = values.get(b"origin", b"").decode("latin-1")
        host = values.get(b"host", b"").decode("latin-1")
        if origin and origin not in self._origins and urlsplit(origin).netloc != host:
            raise Forbidden(f"pages of {quoted(origin)} may not call this service; see server.cors_origins")

    def _record(self, context: RequestContext, size: int) -> None:
        seconds = self._clock.monotonic() - context.started
        self._telemetry.request("GET", _ROUTE, context.status, seconds)
        caller = context.caller
        self._access_log.add(
            AccessLine(
                request_id=context.request_id,
                method="GET",
                path=context.path,
                status=context.status,
                milliseconds=round(seconds * 1000, 3),
                bytes=size,
                units=0,
                client=context.client,
                account=caller.account_id if caller else None,
                key=caller.key_id if caller else None,
            )
        )


def socket_routes() -> list[HTTPRouteHandler]:
    """What an ordinary request to the address of a socket is told."""

    @get("/v1/ws/{chain:str}/{network:str}", opt={"units": "rest.control"}, include_in_schema=False)
    async def no_upgrade(chain: str, network: str) -> None:
        raise UpgradeRequired(f"this is the address of a WebSocket; connect to it as ws:// or wss://, see {_PAGE}")

    return [no_upgrade]


def _with_query_key(headers: Headers, query: bytes) -> Headers:
    """The headers, with the key of the query as if it were one of them."""
    if not query:
        return headers
    try:
        keys = parse_qs(query.decode("latin-1"), max_num_fields=_MOST_FIELDS).get(_QUERY_KEY, ())
    except ValueError:
        return headers
    return [*headers, *((b"x-api-key", key.encode("latin-1", "replace")) for key in keys)]


def _accept(headers: Headers) -> bytes:
    """The proof that the handshake was understood. Raises when it is not a handshake of version 13."""
    values = dict(headers)
    if values.get(b"sec-websocket-version", b"").strip() != _VERSION:
        raise UpgradeRequired("this server speaks version 13 of the WebSocket protocol")
    key = values.get(b"sec-websocket-key", b"").strip()
    try:
        nonce = base64.b64decode(key, validate=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != _KEY_BYTES:
        raise InvalidRequest("the header Sec-WebSocket-Key must be 16 bytes in base64")
    return base64.b64encode(hashlib.sha1(key + _GUID).digest())  # noqa: S324 - RFC 6455 says SHA-1; it protects nothing


def _decision(context: RequestContext, clock: Clock) -> Decision:
    return context.decision or Decision(True, 0, 0, int(clock.now()) + 1, 0, "")
