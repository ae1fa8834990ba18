"""Decision hooks: asked before a sponsorship, with a signature, and replaced by the configured answer on failure."""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from tests.support.devnet import EvmDevnet
from tests.support.gas import Gas, Sender, serving_gas
from tests.support.http import assert_error


class Receiver(BaseHTTPRequestHandler):
    """Answers as the test says, and remembers what it was asked."""

    answer: ClassVar[tuple[int, bytes]] = (200, b"{}")
    asked: ClassVar[list[tuple[dict[str, str], bytes]]] = []
    held: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Receiver.asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
        if Receiver.answer[0] == 0:
            Receiver.held.wait(60)
            return
        self.send_response(Receiver.answer[0])
        self.send_header("Content-Length", str(len(Receiver.answer[1])))
        self.end_headers()
        self.wfile.write(Receiver.answer[1])

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def gas(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Gas]:
    with serving_gas(tmp_path_factory.mktemp("hooks"), evm_devnet) as running:
        yield running


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/decide"
    Receiver.held.set()
    server.shutdown()
    thread.join(30)
    server.server_close()


def hooked(gas: Gas, url: str, **hook: Any) -> dict[str, Any]:
    return gas.policy({"max_gas_usd": "1000"}, decision_hook={"url": url, "timeout_seconds": 10, **hook})


def test_a_hook_is_asked_with_a_signature_and_may_refuse(gas: Gas, url: str) -> None:
    policy, sender = hooked(gas, url), Sender(gas.devnet, "0.8")
    Receiver.answer = (200, b'{"sponsor": true}')
    answer = gas.sponsored(policy["id"], sender.operation())
    headers, body = Receiver.asked[-1]
    signed = f"{headers['x-service-timestamp']}.".encode() + body
    assert (
        headers["x-service-signature"] == hmac.new(policy["hook_secret"].encode(), signed, hashlib.sha256).hexdigest()
    )
    question = json.loads(body)
    assert question["event_type"] == "sponsorship_requested"
    assert question["data"]["policy_id"] == policy["id"]
    assert question["data"]["user_operation"]["sender"].lower() == sender.address
    assert question["data"]["sponsored_gas_usd"] == answer["sponsored_gas_usd"]
    Receiver.answer = (200, b'{"sponsor": false, "reason": "not one of ours"}')
    message = assert_error(gas.sponsor(policy["id"], sender.operation()), 403, "forbidden")
    assert "decision_hook" in message
    assert "not one of ours" in message


@pytest.mark.parametrize("answer", [(500, b'{"sponsor": true}'), (200, b"yes"), (200, b"{}"), (0, b"")])
def test_a_hook_that_fails_counts_as_the_policy_says(gas: Gas, url: str, answer: tuple[int, bytes]) -> None:
    Receiver.answer = answer
    seconds = 0.3 if answer[0] == 0 else 10
    sender = Sender(gas.devnet, "0.8")
    refusing = hooked(gas, url, timeout_seconds=seconds)
    assert "decision_hook" in assert_error(gas.sponsor(refusing["id"], sender.operation()), 403, "forbidden")
    gas.sponsored(hooked(gas, url, timeout_seconds=seconds, on_failure="sponsor")["id"], sender.operation())


def test_what_the_rules_refuse_is_not_asked_about(gas: Gas, url: str) -> None:
    policy = gas.policy({"max_gas_usd": "0.000000001"}, decision_hook={"url": url})
    before = len(Receiver.asked)
    assert "max_gas_usd" in assert_error(
        gas.sponsor(policy["id"], Sender(gas.devnet, "0.8").operation()), 403, "forbidden"
    )
    assert len(Receiver.asked) == before


def test_a_hook_can_be_set_and_removed_and_its_secret_is_told_once(gas: Gas, url: str) -> None:
    policy = gas.policy()
    assert policy["hook_secret"] is None
    changed = gas.change(policy["id"], decision_hook={"url": url}).json()
    assert changed["hook_secret"].startswith("whsec_")
    assert "hook_secret" not in gas.read(policy["id"]).json()
    assert gas.change(policy["id"], decision_hook=None).json()["decision_hook"] is None


@pytest.mark.parametrize(
    "address", ["ftp://example.com", "http://", "https://user:pass@example.com/", "https://10.0.0.1/"]
)
def test_addresses_that_are_never_asked_are_refused(gas: Gas, address: str) -> None:
    answer = gas.create({"max_gas_usd": "1"}, decision_hook={"url": address})
    assert "url" in assert_error(answer, 400, "invalid_request")
