"""Mistakes of our own on the short way: each is a 500 with the error body of the API, and the connection lives on."""

import asyncio
import json
from hashlib import sha256
from typing import Any

import pytest
import uvicorn
from msgspec import Raw
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from capstan.access.models import Caller
from capstan.core.clock import SystemClock
from capstan.core.ids import RequestIds
from capstan.limits.models import Decision
from capstan.rpc.preparing import PreparedRead
from capstan.server.accesslog import AccessLog
from capstan.server.fastpath import FastPath
from capstan.server.identity import ClientAddress
from capstan.server.protocol import CapstanProtocol, ConnectionLimits, Surroundings, protocol_class
from capstan.server.responses import ResponseEncoder
from capstan.server.sent import Sent
from capstan.server.telemetry import Telemetry
from tests.support.feed import caller
from tests.support.http import RawAnswer, assert_error

SECRET = "the password is hunter2"
CALL = b'{"jsonrpc":"2.0","id":1,"method":"m","params":[]}'
REQUEST = b"POST /v1/rpc/a/b HTTP/1.1\r\nX-API-Key: svc_test_x\r\nContent-Length: %d\r\n\r\n%b" % (len(CALL), CALL)
LIMITS = ConnectionLimits(
    header_timeout_seconds=10,
    body_timeout_seconds=10,
    keep_alive_seconds=10,
    max_header_bytes=2_000,
    max_body_bytes=100,
    max_connections=10,
)


class Parts:
    """The parts behind the fast path, any of which breaks when told to. What nobody breaks answers at once."""

    def __init__(self) -> None:
        self.broken = ""
        self.asker: Sent | None = None
        self.dropped = 0
        # What is known of the method.
        self.method = "m"
        self.name = "a/b"

    def _pass(self, part: str) -> None:
        if self.broken == part:
            raise TypeError(SECRET)

    # The directory of keys.
    def find_known(self, digest: bytes, _now: float) -> Caller:
        self._pass("find_known")
        assert digest == sha256(b"svc_test_x").digest()
        return caller()

    # The limits.
    def take_now(self, *_: object, **__: object) -> Decision:
        self._pass("take_now")
        return Decision(True, 10, 9, 1, 0, "")

    # Admission.
    async def identify(self, context: Any, _headers: object) -> Caller:
        context.caller = caller()
        return caller()

    async def charge(self, context: Any, **_: object) -> None:
        context.decision = self.take_now()

    async def refund(self, *_: object, **__: object) -> None:
        """Nothing is counted here."""

    async def count_refused(self, context: Any, _headers: object) -> None:
        context.decision = Decision(True, 10, 9, 1, 0, "")

    # The service.
    def methods(self, _network: object) -> dict[bytes, Any]:
        return {}

    def prepare(self, _network: object, _body: bytes, _methods: object) -> PreparedRead:
        self._pass("prepare")
        treatment: Any = self
        question: Any = None
        return PreparedRead(b"1", b"[]", 1, False, treatment, question)

    def look(self, *_: object) -> Any:
        self._pass("look")
        return object() if self.broken in ("begin", "finish") else b"1"

    def record_usage(self, *_: object) -> None:
        self._pass("record_usage")

    def begin(self, sent: Sent) -> bool:
        self._pass("begin")
        self.asker = sent
        return True

    def finish(self, *_: object) -> bytes:
        self._pass("finish")
        return b"1"

    def drop(self, sent: object) -> None:
        assert sent is self.asker
        self.dropped += 1

    async def handle(self, *_: object, charge: Any, **__: object) -> Any:
        self._pass("prepare")
        await charge(1, 1)
        raise TypeError(SECRET)


class Transport:
    """Collects what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, _name: str) -> None:
        """Nothing is known of the peer."""


def connected(parts: Any) -> tuple[CapstanProtocol, Transport]:
    clock = SystemClock()
    fast_path = FastPath(
        parts,
        parts,
        parts,
        parts,
        ResponseEncoder(),
        clock,
        find_network=lambda *_: parts,
        limits_of=lambda _: None,  # type: ignore[arg-type,return-value] # nobody looks at it
        addresses=ClientAddress([]),
        telemetry=Telemetry(CollectorRegistry()),
        access_log=AccessLog(clock, enabled=False, style="json"),
        request_ids=RequestIds(),
    )
    fast_path._targets[(b"/v1/rpc/a/b", caller().mode)] = parts
    surroundings = Surroundings(
        limits=LIMITS,
        fast_path=fast_path,
        encoder=ResponseEncoder(),
        request_ids=RequestIds(),
        sockets=object,  # type: ignore[arg-type] # nothing is upgraded here
        decide=lambda _client: Decision(True, 0, 0, 0, 0, ""),
    )
    kind = protocol_class(surroundings)
    config = uvicorn.Config(_application, http=kind, ws="none", lifespan="off", log_config=None)
    config.load()
    transport = Transport()
    protocol = kind(config, ServerState(), {}, asyncio.get_running_loop())
    protocol.connection_made(transport)  # type: ignore[arg-type] # has what the protocol uses
    return protocol, transport


async def _application(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("everything goes the short way")


async def answered(transport: Transport) -> RawAnswer:
    async with asyncio.timeout(30):
        while not transport.written:
            await asyncio.sleep(0)
    head, _, body = transport.written.partition(b"\r\n\r\n")
    transport.written = b""
    first, *lines = head.decode().split("\r\n")
    return RawAnswer(int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("part", ["find_known", "prepare", "take_now", "look", "record_usage", "begin", "finish"])
async def test_a_fault_at_once_is_a_500_and_the_connection_lives_on(part: str, known: bool) -> None:
    parts = Parts()
    protocol, transport = connected(parts)
    if known:
        protocol.data_received(REQUEST)
        assert (await answered(transport)).status == 200
    parts.broken = part
    protocol.data_received(REQUEST)
    if part == "finish":
        assert parts.asker is not None
        parts.asker.answered(Raw(b"1"))
        assert parts.dropped == 1, "those who ask the same must not wait for it"
    answer = await answered(transport)
    message = assert_error(answer, 500, "internal_error")
    assert answer.headers["x-request-id"] in message
    assert "hunter2" not in json.dumps(answer.json())
    assert "connection" not in answer.headers
    assert not transport.closed
    parts.broken = ""
    protocol.data_received(REQUEST)
    assert (await answered(transport)).status == 200
