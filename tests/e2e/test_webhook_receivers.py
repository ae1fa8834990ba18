"""Receivers that mean harm, or are merely broken: forbidden addresses, rebinding, redirects, drips, floods, bombs.

Each goes through the sender of deliveries with the guarded client. No forbidden address is connected to, and time and
memory are bounded whatever a receiver does.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_INET, AddressFamily

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from capstan.core.clock import SystemClock
from capstan.outbound.client import GuardedClient
from capstan.outbound.errors import OutboundError
from capstan.webhooks.delivery.models import Outcome, Target
from capstan.webhooks.delivery.sender import Sender
from capstan.webhooks.kinds import EVENT_TYPES
from capstan.webhooks.sealing import Seal, new_signing_secret

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

FORBIDDEN = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255"),
    *("192.168.0.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.2.1"),
    *("198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("192.88.99.1", "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[2002:a00:1::]", "[fe80::1]", "[fec0::1]"),
    *(
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[2001:db8::1]",
        "[2001::1]",
        "[100::1]",
        "[3fff::1]",
        "[::127.0.0.1]",
    ),
    # Old spellings of 127.0.0.1, 10.0.0.1 and 169.254.169.254.
    *("2130706433", "0x7f000001", "017700000001", "127.1", "0x7f.1", "0177.0.0.1", "127.0.1", "0xa.1", "2852039166"),
]
NOT_ADDRESSES = [
    *("http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "//example.com/"),
    *("https://", "https:///path", "https://user:password@example.com/", "https://user@example.com/", "javascript:1"),
    *("https://[::1", "https://exa mple.com:port/", "https://example.com:99999/", "", "https://" + "x" * 3000),
]


class Names(AbstractResolver):
    """Every name stands for the address that is next in the list; the last one stays."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_INET) -> list[ResolveResult]:
        address = self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]
        return [ResolveResult(hostname=host, host=address, port=port, family=AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing to close."""


@asynccontextmanager
async def sending(
    tmp_path: Path, *, seconds: float = 15, **options: object
) -> AsyncIterator[Callable[[str], Awaitable[Outcome]]]:
    """A function that makes one attempt at an address."""
    client = GuardedClient(**options)  # type: ignore[arg-type]  # what each test says
    seal = Seal.open("", tmp_path)
    sender = Sender(client, seal, SystemClock(), seconds=seconds)

    async def send(url: str) -> Outcome:
        sealed = seal.seal(new_signing_secret(), "wh_1")
        target = Target("wh_1", "acc_1", "ethereum/devnet", EVENT_TYPES["log"], url, sealed, None, None)
        return await sender.send(target, "evt_1", b"{}")

    try:
        yield send
    finally:
        await client.close()


@asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[int]:
    """A server on loopback that behaves as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize("host", FORBIDDEN)
async def test_forbidden_addresses_are_never_dialled(tmp_path: Path, host: str) -> None:
    async with sending(tmp_path) as send:
        outcome: Outcome = await send(f"https://{host}/hook")
    assert outcome.status is None
    assert outcome.error is not None


@pytest.mark.parametrize("address", NOT_ADDRESSES)
async def test_what_is_no_https_address_is_refused(tmp_path: Path, address: str) -> None:
    async with sending(tmp_path) as send:
        outcome: Outcome = await send(address)
    assert outcome.status is None


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1"])
async def test_a_name_that_changes_its_mind_gets_no_connection(tmp_path: Path, address: str) -> None:
    """Rebinding: public when it is looked at, something inside when it is dialled."""
    names = Names("93.184.215.14", address)
    client = GuardedClient(resolver=names)
    await client.vet("https://rebinding.example/hook")
    await client.close()
    async with sending(tmp_path, resolver=names) as send:
        outcome: Outcome = await send("https://rebinding.example/hook")
    assert (outcome.status, "not a public address" in (outcome.error or "")) == (None, True)
    client = GuardedClient(resolver=Names(address))
    with pytest.raises(OutboundError):
        await client.vet("https://inside.example/hook")
    await client.close()


def _answer(head: bytes, body: bytes = b"") -> Talk:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"\r\n\r\n" + body)
        await writer.drain()

    return talk


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_answers_and_not_followed(tmp_path: Path, status: int) -> None:
    head = b"HTTP/1.1 %d Moved\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0" % status
    async with listening(_answer(head)) as port, sending(tmp_path, allow_http=True, allow_loopback=True) as send:
        outcome: Outcome = await send(f"http://127.0.0.1:{port}/")
    assert (outcome.status, outcome.accepted) == (status, False)


async def _flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def _drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _silence(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _endless_headers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Header: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


_BOMB = gzip.compress(b"\0" * 50_000_000)


@pytest.mark.parametrize(
    ("talk", "status"),
    [
        (_flood, 200),
        (_drip, None),
        (_silence, None),
        (_endless_headers, None),
        (_answer(b"nonsense"), None),
        (_answer(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d" % len(_BOMB), _BOMB), 200),
        (_answer(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3", b"abc"), None),
        (_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 100", b"cut off"), None),
    ],
)
async def test_whatever_a_receiver_does_costs_bounded_time_and_memory(
    tmp_path: Path, talk: Talk, status: int | None
) -> None:
    # Only those that never end must run into the limit, however slow the machine is.
    seconds = 2 if status is None else 60
    async with (
        listening(talk) as port,
        sending(tmp_path, seconds=seconds, allow_http=True, allow_loopback=True) as send,
        asyncio.timeout(120),
    ):
        outcome: Outcome = await send(f"http://127.0.0.1:{port}/")
    assert outcome.status == status
    assert len(outcome.response or b"") <= 1_024
    assert (outcome.error is None) == (status is not None)
