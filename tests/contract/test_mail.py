"""Mail that was written down: to a file in development, kept and tried again when it cannot be sent, never lost."""

import smtplib
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path

import pytest
from sqlalchemy import select

from capstan.storage.database import Database
from capstan.storage.webhook_schema import mails
from capstan.webhooks.mailer import Mailer, to_files, to_smtp
from tests.support.servers import free_port
from tests.support.webhook_world import FORMAT_A, WATCHED, World, block


@pytest.fixture
async def world(database: Database) -> World:
    """A webhook that was just paused, with mail to its owner."""
    made = World(database)
    await made.open()
    await made.hook("address_activity", addresses=[WATCHED])
    made.sender.status = lambda _id: 500
    await made.apply(block(1, values=(5,)))
    for delay in (0, *FORMAT_A):
        made.clock.advance(delay * 1.1 + 1)
        await made.deliver()
    assert await made.status() == ("paused", "failures")
    return made


async def waiting(world: World) -> int:
    async with world.database.read() as connection:
        return len((await connection.execute(select(mails))).all())


async def test_in_development_mail_is_a_file(world: World, tmp_path: Path) -> None:
    mailer = Mailer(world.database, world.clock, to_files(tmp_path / "mail"), sender="capstan@localhost")
    await mailer.work()
    (file,) = (tmp_path / "mail").iterdir()
    message = message_from_bytes(file.read_bytes())
    assert (file.suffix, message["To"], message["From"]) == (".eml", "a@example.com", "capstan@localhost")
    assert message["Subject"] == "Webhook wh_1 is paused"
    assert await waiting(world) == 0


async def test_mail_that_cannot_be_sent_is_kept_and_tried_again(world: World) -> None:
    sent: list[EmailMessage] = []

    def refuse(_message: EmailMessage) -> None:
        raise smtplib.SMTPServerDisconnected("gone")

    await Mailer(world.database, world.clock, refuse, sender="capstan@localhost").work()
    nobody = to_smtp(f"smtp://127.0.0.1:{free_port()}", seconds=5)
    world.clock.advance(200)
    await Mailer(world.database, world.clock, nobody, sender="capstan@localhost").work()
    assert await waiting(world) == 1
    later = Mailer(world.database, world.clock, sent.append, sender="capstan@localhost")
    await later.work()
    assert sent == []
    world.clock.advance(600)
    await later.work()
    await later.work()
    assert [message["To"] for message in sent] == ["a@example.com"]
    assert await waiting(world) == 0
