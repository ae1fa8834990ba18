"""Fetching documents: gateways in a race, and names that lead inside."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from capstan.nfts.fetching import DocumentFetcher, FetchFailed, FetchOptions
from capstan.nfts.uris import Gateways
from capstan.outbound.client import GuardedClient
from tests.support.web import MetadataServer

CID = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKnsH7"
OPTIONS = FetchOptions(seconds=6, bytes=100_000, redirects=3)


class Names(AbstractResolver):
    """A resolver that gives the next of its answers each time, as a rebinding name server does."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self._addresses[min(self.asked, len(self._addresses) - 1)]
        self.asked += 1
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def fetcher(
    *gateways: str, resolver: AbstractResolver | None = None, loopback: bool = True
) -> AsyncIterator[DocumentFetcher]:
    client = GuardedClient(allow_http=True, allow_loopback=loopback, resolver=resolver)
    try:
        yield DocumentFetcher(client, Gateways(gateways, ()), OPTIONS)
    finally:
        await client.close()


async def test_slow_gateway_is_overtaken() -> None:
    async with MetadataServer() as slow, MetadataServer() as fast:
        slow.redirect = "/bad/slow"
        fast.documents[f"/ipfs/{CID}"] = {"name": "quick"}
        async with fetcher(slow.url, fast.url) as found:
            # The slow one would take longer than the whole fetch may.
            assert (await found.fetch(f"ipfs://{CID}", None)).name == "quick"
        assert slow.asked
        assert fast.asked == [f"/ipfs/{CID}"]


async def test_failing_gateway_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Patience would not do here: the failure itself must bring the next one in.
    monkeypatch.setattr("capstan.nfts.fetching._PATIENCE_SECONDS", 1_000.0)
    async with MetadataServer() as empty, MetadataServer() as good:
        good.documents[f"/ipfs/{CID}"] = {"name": "found"}
        async with fetcher("http://127.0.0.1:1", empty.url, good.url) as found:
            assert (await found.fetch(f"ipfs://{CID}", None)).name == "found"


async def test_large_document_is_read_whole() -> None:
    async with MetadataServer() as server, fetcher() as found:
        server.documents["/large"] = {"description": "d" * 90_000, "name": "large"}
        assert (await found.fetch(f"{server.url}/large", None)).name == "large"


async def test_when_all_fail_the_reason_is_told() -> None:
    async with MetadataServer() as empty, fetcher(empty.url, empty.url) as found:
        with pytest.raises(FetchFailed, match="status 404"):
            await found.fetch(f"ipfs://{CID}", None)
    async with fetcher() as found:
        with pytest.raises(FetchFailed, match="leads nowhere"):
            await found.fetch(f"ipfs://{CID}", None)


async def test_redirects_are_followed_within_the_bound() -> None:
    async with MetadataServer() as server, fetcher() as found:
        server.documents["/end"] = {"name": "there"}
        server.hops = {"/a": "/b", "/b": "/c", "/c": "/end", "/start": "/a"}
        assert (await found.fetch(f"{server.url}/a", None)).name == "there"
        with pytest.raises(FetchFailed, match="redirects more than 3 times"):
            await found.fetch(f"{server.url}/start", None)


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("169.254.169.254",),
        ("10.1.2.3",),
        ("::1",),
        ("64:ff9b::7f00:1",),
        ("64:ff9b::a9fe:a9fe",),
        ("2002:7f00:1::",),
        ("::ffff:127.0.0.1",),
        ("fd00::1",),
        # The first look is at a good address, the second at another: there is only one look.
        ("127.0.0.1", "203.0.113.1"),
    ],
)
async def test_name_that_leads_inside_is_not_asked(addresses: tuple[str, ...]) -> None:
    names = Names(*addresses)
    async with MetadataServer() as server, fetcher(resolver=names, loopback=False) as found:
        server.documents["/1"] = {"name": "secret"}
        port = server.url.rpartition(":")[2]
        with pytest.raises(FetchFailed, match=r"not a public address|no connection"):
            await found.fetch(f"http://rebinding.example:{port}/1", None)
        assert server.asked == []


async def test_redirect_to_a_name_that_leads_inside_is_not_followed() -> None:
    """The first hop is allowed here because it is the test's own server; the second has another address."""
    async with MetadataServer() as server, fetcher(resolver=Names("169.254.169.254")) as found:
        server.hops = {"/1": "http://metadata.internal/latest/meta-data"}
        with pytest.raises(FetchFailed, match="not a public address"):
            await found.fetch(f"{server.url}/1", None)
