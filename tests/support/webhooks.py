"""A running service with webhooks on a development chain, and a receiver that keeps what it is sent.

Used by the tests of webhooks. The service is a process, as users have it; the chain and the receiver are real ones.
"""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from capstan.devnet.models import DevAccount
from tests.support.devnet import EvmDevnet
from tests.support.gateway import Gateway, serving
from tests.support.service import run_json

_SECONDS = 30.0


class Received(msgspec.Struct, frozen=True):
    """One request to a receiver."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body, decoded."""
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


class Receiver:
    """An HTTP server on loopback. `answer` decides what it says to the request of that path."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answer: Callable[[Received], tuple[int, dict[str, str], bytes]] = lambda _request: (200, {}, b"ok")
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Received(self.path, dict(self.headers.items()), body)
                receiver.received.append(request)
                status, headers, content = receiver.answer(request)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_arguments: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # Connections that end with the service are no news.
        self._server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def url(self, path: str = "/hook") -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def at(self, path: str) -> list[Received]:
        """What came to one path."""
        return [request for request in list(self.received) if request.path == path]

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


def mint(devnet: EvmDevnet, account: DevAccount, contract: str, to: str, *numbers: int) -> dict[str, Any]:
    """Mints of a sample contract: an amount, an id, or an id and an amount. Returns the receipt."""
    types = ["address", *(["uint256"] * len(numbers))]
    data = keccak(f"mint({','.join(types)})".encode())[:4] + encode(types, [to, *numbers])
    receipt = devnet.send(account, contract, data=data, gas=500_000)
    assert receipt["status"] == "0x1", receipt
    return receipt


def openssl_hmac(key: bytes, content: bytes) -> bytes:
    """HMAC-SHA256 as the openssl command computes it."""
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-binary"]
    return subprocess.run(command, input=content, capture_output=True, check=True).stdout


class Hooks:
    """The webhook paths of a running service, for one key."""

    def __init__(self, gateway: Gateway, devnet: EvmDevnet, directory: Path, key: str | None = None) -> None:
        self.gateway = gateway
        self.devnet = devnet
        self.directory = directory
        self.key = key or gateway.key
        self._client = httpx.Client(
            base_url=gateway.service.base_url, headers={"X-API-Key": self.key}, timeout=_SECONDS, trust_env=False
        )

    def post(self, body: Any) -> httpx.Response:
        """POST /webhooks with any body."""
        return self._client.post("/webhooks", json=body)

    def create(self, **body: Any) -> httpx.Response:
        """POST /webhooks; the chain is ethereum unless told otherwise."""
        return self.post({"chain": "ethereum", **body})

    def created(self, url: str = "http://127.0.0.1:9/hook", **body: Any) -> dict[str, Any]:
        """A new webhook."""
        answer = self.create(url=url, **body)
        assert answer.status_code == 201, answer.text
        webhook: dict[str, Any] = answer.json()
        return webhook

    def page(self, **query: Any) -> httpx.Response:
        """GET /webhooks."""
        return self._client.get("/webhooks", params=query)

    def change(self, webhook_id: str, **body: Any) -> httpx.Response:
        """PATCH /webhooks/{id}."""
        return self._client.patch(f"/webhooks/{webhook_id}", json=body)

    def delete(self, webhook_id: str) -> httpx.Response:
        """DELETE /webhooks/{id}."""
        return self._client.delete(f"/webhooks/{webhook_id}")

    def with_key(self, *options: str) -> "Hooks":
        """The same service for a new key, of a new account."""
        plan = () if "--plan" in options else ("--plan", "enterprise")
        made = self.run("keys", "create", *options, *plan)
        return Hooks(self.gateway, self.devnet, self.directory, made["key"])

    def run(self, *arguments: str) -> Any:
        """A command, on the same data."""
        return run_json(*arguments, "--data-dir", str(self.directory / "data"))


@contextlib.contextmanager
def serving_webhooks(
    directory: Path, devnet: EvmDevnet, settings: Mapping[str, Any] | None = None, **network: Any
) -> Iterator[Hooks]:
    """`capstan serve` in development mode; `network` are further settings of the network."""
    # A busy machine must not make symbols null.
    chosen = {"mode": "development", "webhooks.lookup_seconds": 60, **(settings or {})}
    with serving(directory, [devnet.url], settings=chosen, **network) as gateway:
        yield Hooks(gateway, devnet, directory)
