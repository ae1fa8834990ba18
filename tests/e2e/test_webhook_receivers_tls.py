"""Receivers with a bad certificate, or none, and receivers inside: no body leaves for the former, no connection is made
to the latter."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import SSLContext

import pytest

from capstan.webhooks.delivery.models import Outcome
from tests.e2e.test_webhook_receivers import Names, sending
from tests.support.certificates import Authority

HOST = "receiver.example"


class Counting:
    """A server on loopback that counts connections and the requests it could read."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def counting(context: SSLContext | None = None) -> AsyncIterator[Counting]:
    made = Counting()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def attempt(tmp_path: Path, port: int, *, seconds: float = 30) -> Outcome:
    """One attempt at a name that stands for this machine, as development mode allows."""
    async with sending(tmp_path, seconds=seconds, allow_loopback=True, resolver=Names("127.0.0.1")) as send:
        outcome: Outcome = await send(f"https://{HOST}:{port}/hook")
        return outcome


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """One that the client trusts."""
    directory = tmp_path / "certificates"
    directory.mkdir()
    made = Authority(directory)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


async def test_a_good_certificate_is_taken(tmp_path: Path, authority: Authority) -> None:
    async with counting(authority.server(HOST)) as server:
        outcome = await attempt(tmp_path, server.port)
    assert (outcome.status, outcome.response, server.requests) == (200, b"ok", 1)


@pytest.mark.parametrize("fault", ["self-signed", "other host", "expired", "parent host"])
async def test_a_bad_certificate_gets_no_body(tmp_path: Path, authority: Authority, fault: str) -> None:
    context = {
        "self-signed": lambda: authority.server(HOST, trusted=False),
        "other host": lambda: authority.server("other.example"),
        "expired": lambda: authority.server(HOST, expired=True),
        "parent host": lambda: authority.server("example"),
    }[fault]()
    async with counting(context) as server:
        outcome = await attempt(tmp_path, server.port)
    assert (outcome.status, server.requests) == (None, 0)
    assert outcome.error is not None
    assert "certificate" in outcome.error, outcome.error


async def test_a_server_without_tls_gets_no_body(tmp_path: Path, authority: Authority) -> None:
    async with counting() as server:
        outcome = await attempt(tmp_path, server.port, seconds=2)
    assert (outcome.status, server.requests) == (None, 0)
    assert outcome.error is not None


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "2130706433",
            "0x7f000001",
            "017700000001",
            "127.1",
            "0177.0.0.1",
            "0.0.0.0",
            "[::ffff:127.0.0.1]",
        ),
        *("inside.example", "localhost", "INSIDE.example", "inside.example."),
    ],
)
async def test_nobody_inside_gets_a_connection(tmp_path: Path, host: str) -> None:
    """A real server listens there: it must hear of nobody but the test itself."""
    async with counting() as server:
        async with sending(tmp_path, resolver=Names("127.0.0.1")) as send:
            outcome: Outcome = await send(f"https://{host}:{server.port}/hook")
        # Connections are taken in their order: one that was made before would be counted by now.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert b"200" in await reader.read()
        writer.close()
    assert (outcome.status, server.connections) == (None, 1)
    assert outcome.error is not None
