"""Plain HTTP for tests: raw bytes on a socket, and assertions that hold for every answer of the service."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

_SECONDS = 20.0
RATE_HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


class RawAnswer(msgspec.Struct, frozen=True):
    """What came back on a socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def exchange(origin: str, request: bytes, *, seconds: float = _SECONDS) -> RawAnswer:
    """Send bytes and read one answer until the connection closes or the body is complete."""
    parts = urlsplit(origin)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=seconds) as connection:
        connection.sendall(request)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> RawAnswer:
    """Read one answer from an open connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            raise AssertionError(f"the connection closed without an answer: {received!r}")
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    wanted = int(headers.get("content-length", "0"))
    while len(body) < wanted:
        piece = connection.recv(65536)
        if not piece:
            break
        body += piece
    return RawAnswer(int(first.split()[1]), headers, body)


def assert_error(answer: httpx.Response | RawAnswer, status: int, code: str) -> str:
    """Check the error body and the headers of an answer, and return the message."""
    found = answer.status_code if isinstance(answer, httpx.Response) else answer.status
    assert found == status, f"{found}: {answer}"
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "status"}
    assert body["error"]["status"] == status
    assert body["error"]["code"] == code
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    assert answer.headers["content-type"] == "application/json"
    assert_standard_headers(answer)
    return str(body["error"]["message"])


def assert_standard_headers(answer: httpx.Response | RawAnswer) -> None:
    """Check the headers that every answer has."""
    for name in RATE_HEADERS:
        assert answer.headers[name].isdigit(), name
    assert answer.headers["x-request-id"]
