"""The paths for machines that watch the service: is it alive, is it ready, what are its numbers.

`/healthz` says that the process runs. `/readyz` says whether it should get traffic: it asks every named check and
answers 503 while one fails or the process is stopping, and names the networks that are halted. `/metrics` is Prometheus
text, for the operator only.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from capstan.core.errors import Forbidden, Unauthorized, Unavailable

# Raises when it does not hold; a text says more than `ok`.
Check = Callable[[], Awaitable[str | None]]

_CHECK_SECONDS = 2.0
_OPEN: dict[str, Any] = {"open": True}
_OPERATOR: dict[str, Any] = {
    **_OPEN,
    "security": ("operator",),
    "media_types": ("text/plain",),
    "errors": ("unauthorized", "forbidden"),
}


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: str
    version: str


class Readiness(msgspec.Struct, frozen=True):
    """Every check passed. `status` is `degraded` while networks are halted, else `ready`."""

    status: str
    checks: dict[str, str]
    # Networks whose stream has stopped, and why; a person must look into that.
    halted: dict[str, str]


class ReadinessChecks:
    """What must hold before the process gets traffic. Each check raises when it does not hold."""

    def __init__(self, checks: Mapping[str, Check], *, halted: Callable[[], Mapping[str, str]] = dict) -> None:
        self._checks = dict(checks)
        self._halted = halted
        self.stopping = False

    async def run(self) -> Readiness:
        """Ask every check, with a bound on time."""
        if self.stopping:
            raise Unavailable("this process is stopping", retry_after=1)
        results: dict[str, str] = {}
        for name, check in self._checks.items():
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    told = await check()
            except Exception as error:
                raise Unavailable(f"not ready: {name} ({type(error).__name__})", retry_after=1) from error
            results[name] = told or "ok"
        # Not a failed check: another process would say the same, and everything else of this one works.
        halted = dict(self._halted())
        return Readiness("degraded" if halted else "ready", results, halted)


def health_routes(
    checks: ReadinessChecks, registry: CollectorRegistry, *, version: str, operator_token: str
) -> list[HTTPRouteHandler]:
    """The handlers of the three paths."""

    @get("/healthz", opt=_OPEN, tags=["operation"], summary="Is the process alive")
    async def healthz() -> Health:
        """Answers as long as the process runs."""
        return Health("ok", version)

    @get("/readyz", opt=_OPEN, tags=["operation"], summary="Should the process get traffic")
    async def readyz() -> Readiness:
        """503 while a check fails or the process is stopping. Networks whose stream has stopped are named."""
        return await checks.run()

    @get("/metrics", opt=_OPERATOR, tags=["operation"], summary="The numbers of the process")
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Prometheus text, for the operator; also on a port of its own with `server.metrics_port`."""
        require_operator(request, operator_token)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [healthz, readyz, metrics]


def require_operator(request: Request[Any, Any, Any], operator_token: str) -> None:
    """Raise unless the request carries the operator token."""
    presented = request.headers.get("authorization", "")
    if not presented:
        raise Unauthorized("this path needs the operator token (server.operator_token) as Authorization: Bearer")
    if not operator_token:
        raise Forbidden("this path needs server.operator_token to be set")
    if not secrets.compare_digest(presented.encode(), f"Bearer {operator_token}".encode()):
        raise Unauthorized("this is not the operator token; it is set as server.operator_token")
