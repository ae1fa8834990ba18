"""Receivers that refuse, in real time on a short ladder: retries, a pause, mail by a real SMTP server, a resumption.

The long ladders are climbed on a clock that is moved by hand, in the contract tests.
"""

import asyncio
import time
import warnings
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from eth_account import Account

from capstan.access.store import AccessStore
from capstan.core.clock import SystemClock, utc
from capstan.storage.database import Database, DatabaseOptions, sqlite_url
from tests.support.devnet import EvmDevnet, wait_until
from tests.support.servers import free_port
from tests.support.webhooks import Hooks, Received, Receiver, serving_webhooks

SENDER = 12
OWNER = "owner@example.com"
# Long enough that nothing but the schedule explains the wait.
DELAYS = [0.5, 1.0]


class Letters:
    """What an SMTP server was given, by those who know its password."""

    def __init__(self) -> None:
        self.received: list[tuple[list[str], Message]] = []

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name
        content = envelope.content
        assert isinstance(content, bytes)
        self.received.append((list(envelope.rcpt_tos), message_from_bytes(content)))
        return "250 taken"


def _password(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
    known = isinstance(data, LoginPassword) and (data.login, data.password) == (b"capstan", b"p@ss word")
    return AuthResult(success=known)


@pytest.fixture(scope="module")
def letters() -> Iterator[tuple[Letters, int]]:
    """An SMTP server, and its port."""
    found, port = Letters(), free_port()
    controller = Controller(
        found, hostname="127.0.0.1", port=port, authenticator=_password, auth_required=True, auth_require_tls=False
    )
    with warnings.catch_warnings():
        # It would rather have TLS.
        warnings.simplefilter("ignore", UserWarning)
        controller.start()
    yield found, port
    controller.stop()


@pytest.fixture(scope="module")
def hooks(
    tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet, letters: tuple[Letters, int]
) -> Iterator[Hooks]:
    directory = tmp_path_factory.mktemp("hooks")
    settings = {
        "webhooks.format_a_delays": DELAYS,
        "webhooks.format_b_delays": DELAYS,
        "mail.smtp_url": f"smtp://capstan:p%40ss%20word@127.0.0.1:{letters[1]}",
        "mail.from": "capstan@example.com",
    }
    with serving_webhooks(directory, evm_devnet, settings) as running:
        asyncio.run(_with_user(directory / "data" / "capstan.db", running.run("accounts", "list")[0]["id"]))
        yield running


async def _with_user(database_file: Path, account_id: str) -> None:
    database = Database(DatabaseOptions(url=sqlite_url(database_file)))
    await AccessStore(database).add_user(
        user_id="usr_1", account_id=account_id, email=OWNER, password_hash="x", role="member", at=utc(SystemClock())
    )
    await database.close()


class Refusing:
    """A receiver that refuses until told otherwise, and notes when it was asked."""

    def __init__(self, **headers: str) -> None:
        self.receiver = Receiver()
        self.moments: list[float] = []
        self.takes = False
        self._headers = headers
        self.receiver.answer = self._answer

    def _answer(self, _request: Received) -> tuple[int, dict[str, str], bytes]:
        self.moments.append(time.monotonic())
        return (200, {}, b"ok") if self.takes else (503, self._headers, b"not now")

    def ids(self) -> list[str]:
        return [request.json["id"] for request in self.receiver.at("/hook")]


def _status(hooks: Hooks, webhook_id: str) -> str:
    return {each["id"]: str(each["status"]) for each in hooks.page(limit=100).json()["webhooks"]}[webhook_id]


def test_format_a_pauses_writes_to_its_owner_and_delivers_what_was_kept(
    hooks: Hooks, letters: tuple[Letters, int]
) -> None:
    refusing, to, sender = Refusing(), str(Account.create().address), hooks.devnet.deployment.accounts[SENDER]
    webhook = hooks.created(refusing.receiver.url(), event_type="address_activity", config={"addresses": [to]})
    hooks.devnet.send(sender, to, value=1)
    wait_until(lambda: _status(hooks, webhook["id"]) == "paused", 90, "the pause")
    assert len(refusing.moments) == len(DELAYS) + 1
    waits = [later - earlier for earlier, later in zip(refusing.moments, refusing.moments[1:], strict=False)]
    assert all(wait >= delay for wait, delay in zip(waits, DELAYS, strict=True)), waits
    assert len(set(refusing.ids())) == 1
    wait_until(lambda: bool(letters[0].received), 60, "mail")
    ((recipients, message),) = letters[0].received
    assert (recipients, message["From"], message["To"]) == ([OWNER], "capstan@example.com", OWNER)
    assert webhook["id"] in message["Subject"]
    assert "answered 503" in str(message.get_payload(decode=True))
    # What happens while it is paused is kept.
    hooks.devnet.send(sender, to, value=2)
    hooks.devnet.mine(1)
    refusing.takes = True
    assert hooks.change(webhook["id"], status="active").status_code == 200
    wait_until(lambda: len(refusing.ids()) >= len(DELAYS) + 3, 60, "what was kept")
    delivered = [request.json for request in refusing.receiver.at("/hook")[len(DELAYS) + 1 :]]
    assert [event["data"]["value"] for event in delivered] == ["1", "2"]
    assert delivered[0]["id"] == refusing.ids()[0]
    refusing.receiver.close()


def test_format_b_gives_an_event_up_and_stays_active(hooks: Hooks) -> None:
    # It asks for more than the longest wait of the schedule, which is what it gets.
    refusing, to = Refusing(**{"Retry-After": "3600"}), str(Account.create().address)
    sender = hooks.devnet.deployment.accounts[SENDER]
    webhook = hooks.created(refusing.receiver.url(), event_type="ADDRESS_ACTIVITY", config={"addresses": [to]})
    hooks.devnet.send(sender, to, value=1)

    def attempts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = hooks.run("webhooks", "attempts", webhook["id"])
        return found

    wait_until(lambda: len(attempts()) == len(DELAYS) + 1, 90, "all attempts")
    waits = [later - earlier for earlier, later in zip(refusing.moments, refusing.moments[1:], strict=False)]
    assert all(wait >= max(DELAYS) for wait in waits), waits
    assert {(each["status"], each["response"]) for each in attempts()} == {(503, "not now")}
    assert _status(hooks, webhook["id"]) == "active"
    refusing.takes = True
    hooks.devnet.send(sender, to, value=2)
    wait_until(lambda: len(refusing.ids()) == len(DELAYS) + 2, 60, "the next event")
    assert refusing.ids()[-1] != refusing.ids()[0]
    refusing.receiver.close()
