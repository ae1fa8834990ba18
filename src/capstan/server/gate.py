"""The outermost ASGI layer: what happens to every HTTP request, whatever it asks for.

Gives it an id, finds the client's address, bounds the time it may take, adds the rate-limit and request-id headers to
the response, counts requests that matched no route, and writes the access log line and the metrics. Routing, keys and
bodies are the business of the layers inside.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Send

from capstan.core.clock import Clock
from capstan.core.errors import ApiError, Forbidden, Unavailable, render
from capstan.core.ids import RequestIds
from capstan.core.redact import quoted
from capstan.limits.models import Decision
from capstan.rpc.models import Usage
from capstan.server.accesslog import AccessLine, AccessLog
from capstan.server.admission import Admission
from capstan.server.context import RequestContext, attach
from capstan.server.identity import ClientAddress, request_id_of
from capstan.server.rendering import to_api_error
from capstan.server.telemetry import Telemetry

_RPC_ROUTE = "/v1/rpc/{chain}/{network}"


class Gate:
    """Wraps the Litestar application."""

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        telemetry: Telemetry,
        clock: Clock,
        *,
        addresses: ClientAddress,
        request_timeout_seconds: float,
        access_log: AccessLog,
        request_ids: RequestIds,
        usage: Usage,
        origins: Collection[str] = (),
    ) -> None:
        self._app = app
        self._admission = admission
        self._telemetry = telemetry
        self._clock = clock
        self._addresses = addresses
        self._timeout = request_timeout_seconds
        self._access_log = access_log
        self._request_ids = request_ids
        self._usage = usage
        self._origins = frozenset(origins)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = self._context(scope)
        if scope["method"] == "HEAD":
            # Answered as GET; uvicorn, which keeps the scope it made, leaves the body out.
            scope = {**scope, "method": "GET"}
        attach(scope, context)
        response = _Response(send, context, self._admission, scope["headers"])
        try:
            async with asyncio.timeout(self._timeout):
                self._check_preflight(scope)
                await self._app(scope, receive, response.send)
        except TimeoutError:
            await response.fail(Unavailable("the request took too long and was stopped; try again", retry_after=1))
        except Exception as error:
            await response.fail(
                to_api_error(error, path=context.path, method=context.method, request_id=context.request_id)
            )
        finally:
            self._record(scope, context)

    def _context(self, scope: Any) -> RequestContext:
        headers = scope["headers"]
        peer = scope["client"][0] if scope.get("client") else "unknown"
        return RequestContext(
            request_id=request_id_of(headers) or self._request_ids.next(),
            client=self._addresses.of(peer, headers),
            method=scope["method"],
            path=scope["path"],
            started=self._clock.monotonic(),
        )

    def _check_preflight(self, scope: Any) -> None:
        """Refuse a browser's question for an origin that is not allowed, in the words of the API."""
        if scope["method"] != "OPTIONS" or not self._origins or "*" in self._origins:
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        if b"access-control-request-method" in headers and origin not in self._origins:
            raise Forbidden(f"pages of {quoted(origin)} may not call this service; see server.cors_origins")

    def _record(self, scope: Any, context: RequestContext) -> None:
        seconds = self._clock.monotonic() - context.started
        route = scope.get("path_template") or "unrouted"
        self._telemetry.request(context.method, route, context.status, seconds)
        if context.caller is not None and route != _RPC_ROUTE:
            # The RPC service records its own calls, one by one.
            self._usage.record(
                account_id=context.caller.account_id,
                key_id=context.caller.key_id,
                network="",
                method=f"{context.method} {route}",
                units=context.units,
                failed=context.status >= 400,
                microseconds=int(seconds * 1_000_000),
            )
        caller = context.caller
        self._access_log.add(
            AccessLine(
                request_id=context.request_id,
                method=context.method,
                path=context.path,
                status=context.status,
                milliseconds=round(seconds * 1000, 3),
                bytes=context.response_bytes,
                units=context.units,
                client=context.client,
                account=caller.account_id if caller else None,
                key=caller.key_id if caller else None,
            )
        )


class _Response:
    """The way out: adds the headers, and replaces the answer when a limit says so."""

    def __init__(
        self, send: Send, context: RequestContext, admission: Admission, request_headers: list[tuple[bytes, bytes]]
    ) -> None:
        self._send = send
        self._context = context
        self._admission = admission
        self._request_headers = request_headers
        self._started = False
        self._replaced = False

    async def send(self, message: Message) -> None:
        """Pass one ASGI message on."""
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            over = await self._count_refusal(message["status"])
            if over is not None:
                self._replaced = True
                await self._write(over)
                return
            await self._start(message["status"], list(message.get("headers", ())))
            return
        if message["type"] == "http.response.body":
            self._context.response_bytes += len(message.get("body", b""))
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, unless an answer is under way already."""
        if not self._started:
            await self._write(error)

    async def _count_refusal(self, status: int) -> ApiError | None:
        """Count a request that was refused before it was counted: no such path, wrong method, no such network."""
        if self._context.decision is None and 400 <= status < 500:
            return await self._admission.count_refused(self._context, self._request_headers)
        return None

    async def _write(self, error: ApiError) -> None:
        body = render(error)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        await self._start(error.status, headers)
        self._context.response_bytes += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        self._context.status = status
        decision = self._context.decision or await self._admission.describe(self._context)
        headers += rate_headers(decision)
        headers.append((b"x-request-id", self._context.request_id.encode()))
        headers.append((b"x-content-type-options", b"nosniff"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def rate_headers(decision: Decision) -> list[tuple[bytes, bytes]]:
    """The three headers that describe the requests-per-second window."""
    return [
        (b"x-ratelimit-limit", b"%d" % decision.limit),
        (b"x-ratelimit-remaining", b"%d" % decision.remaining),
        (b"x-ratelimit-reset", b"%d" % decision.reset),
    ]
