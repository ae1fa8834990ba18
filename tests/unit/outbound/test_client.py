"""The guarded client against real servers on loopback, and against addresses that must never be dialled."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from socket import AF_INET, AF_INET6, AddressFamily

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from capstan.outbound.client import GuardedClient, OutboundLimits
from capstan.outbound.errors import OutboundFailed, OutboundRefused

LIMITS = OutboundLimits(seconds=30, bytes=1000)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FixedResolver(AbstractResolver):
    """Names from a table."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_INET) -> list[ResolveResult]:
        if host not in self._names:
            raise OSError(f"the name {host} is not known")
        address = self._names[host]
        found = AF_INET6 if ":" in address else AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=found, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing to close."""


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A real HTTP server; gives its address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(*, loopback: bool = True, names: dict[str, str] | None = None) -> AsyncIterator[GuardedClient]:
    """A client, of development mode unless said otherwise."""
    made = GuardedClient(
        allow_http=True, allow_loopback=loopback, resolver=FixedResolver(names) if names is not None else None
    )
    try:
        yield made
    finally:
        await made.close()


async def hello(_request: web.Request) -> web.Response:
    """An ordinary answer."""
    return web.Response(text="hello")


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[::ffff:10.0.0.1]/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://user:password@example.com/",
        "https:///nothing",
        "not an address",
        "https://example.com/" + "a" * 3000,
        "http://example.com/",
    ],
)
async def test_addresses_that_are_never_asked(address: str) -> None:
    """Refused before any lookup."""
    guarded = GuardedClient()
    try:
        with pytest.raises(OutboundRefused):
            guarded.check(address)
    finally:
        await guarded.close()


async def test_a_name_that_leads_inside_is_not_dialled() -> None:
    """The server is there and would answer; the check of the dialled address prevents it."""
    async with serving(hello) as base, client(loopback=False, names={"innocent.example": "127.0.0.1"}) as guarded:
        port = base.rpartition(":")[2]
        with pytest.raises(OutboundRefused, match="not a public address"):
            await guarded.fetch("GET", f"http://innocent.example:{port}/", limits=LIMITS)


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f.0.0.1", "0177.0.0.1"])
async def test_other_spellings_of_loopback_are_refused(host: str) -> None:
    """Whoever turns them into an address, the address is looked at."""
    async with serving(hello) as base, client(loopback=False) as guarded:
        with pytest.raises((OutboundRefused, OutboundFailed)):
            await guarded.fetch("GET", f"http://{host}:{base.rpartition(':')[2]}/", limits=LIMITS)


async def test_an_answer_comes_back_whole() -> None:
    """Status, headers and body; any status is an answer."""

    async def teapot(request: web.Request) -> web.Response:
        return web.Response(status=418, body=await request.read(), headers={"X-Seen": request.headers["X-Mine"]})

    async with serving(teapot) as base, client() as guarded:
        answer = await guarded.fetch("POST", base + "/x", limits=LIMITS, headers={"X-Mine": "1"}, body=b"tea")
    assert (answer.status, answer.body, answer.headers["X-Seen"]) == (418, b"tea", "1")


async def test_redirects_are_followed_as_often_as_allowed_and_checked() -> None:
    """Not at all by default; a redirect to the inside is refused."""

    async def redirect(request: web.Request) -> web.Response:
        left = int(request.query["left"])
        if left == 0:
            return web.Response(text="arrived")
        target = "http://10.0.0.1/" if left == 99 else f"/?left={left - 1}"
        raise web.HTTPFound(target)

    async with serving(redirect) as base, client() as guarded:
        kept = await guarded.fetch("GET", base + "/?left=2", limits=LIMITS)
        assert kept.status == 302
        allowed = OutboundLimits(seconds=30, bytes=1000, redirects=2)
        assert (await guarded.fetch("GET", base + "/?left=2", limits=allowed)).body == b"arrived"
        with pytest.raises(OutboundFailed, match="more than 2 times"):
            await guarded.fetch("GET", base + "/?left=3", limits=allowed)
        with pytest.raises(OutboundRefused, match="not a public address"):
            await guarded.fetch("GET", base + "/?left=99", limits=allowed)


async def test_secrets_do_not_follow_a_redirect_to_another_origin() -> None:
    """Only harmless headers go on."""
    seen: list[str | None] = []

    async def second(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text=request.headers.get("Accept", ""))

    async with serving(second) as other:

        async def first(_request: web.Request) -> web.Response:
            raise web.HTTPFound(other + "/")

        async with serving(first) as base, client() as guarded:
            answer = await guarded.fetch(
                "GET",
                base,
                limits=OutboundLimits(seconds=30, bytes=1000, redirects=1),
                headers={"Authorization": "Bearer secret", "Accept": "application/json"},
            )
    assert answer.body == b"application/json"
    assert seen == [None]


async def test_a_large_answer_is_refused_or_cut() -> None:
    """However long it goes on, and however small it came."""

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10_000):
            await response.write(b"x" * 10_000)
        return response

    async def bomb(_request: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(b"x" * 900_000), headers={"Content-Encoding": "gzip"})

    for handler in (endless, bomb):
        async with serving(handler) as base, client() as guarded:
            with pytest.raises(OutboundFailed, match="larger than 1000 bytes"):
                await guarded.fetch("GET", base, limits=LIMITS)
            cut = await guarded.fetch("GET", base, limits=OutboundLimits(seconds=30, bytes=1000, whole=False))
            assert cut.body == b"x" * 1000


async def test_a_slow_answer_ends_at_the_limit() -> None:
    """The limit holds for the whole exchange, not from byte to byte."""

    async def dripping(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b"x")
            await asyncio.sleep(0.05)
        return response

    async with serving(dripping) as base, client() as guarded:
        with pytest.raises(OutboundFailed, match=r"did not answer within 0\.4 seconds"):
            await guarded.fetch("GET", base, limits=OutboundLimits(seconds=0.4, bytes=10_000))


async def test_no_server_and_no_name_are_told_apart() -> None:
    """In words that are safe to show."""
    async with client(names={}) as guarded:
        with pytest.raises(OutboundFailed, match=r"cannot be resolved|no connection"):
            await guarded.fetch("GET", "http://nowhere.example/?secret=1", limits=LIMITS)
        with pytest.raises(OutboundFailed, match=r"no connection to 127\.0\.0\.1"):
            await guarded.fetch("GET", "http://127.0.0.1:1/", limits=LIMITS)
