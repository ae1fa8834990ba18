"""Sends the mail that was written down with the change it tells of.

Runs in each process that delivers. With `mail.smtp_url` it is sent by SMTP; in development mode it is written to files
instead; with neither it is dropped, and the log says so. A message is removed once it is sent, so a crash can send it
twice but never lose it.
"""

import asyncio
import smtplib
import ssl
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import unquote, urlsplit

import structlog
from sqlalchemy import bindparam, delete, select, update

from capstan.core.clock import Clock
from capstan.storage.database import Database
from capstan.storage.errors import StorageError
from capstan.storage.webhook_schema import mails

log = structlog.get_logger(__name__)

_POLL_SECONDS = 1.0
_CLAIM_SECONDS = 120
_MOST_ATTEMPTS = 10
_AT_ONCE = 20
_MICROSECONDS = 1_000_000

# Gives one message away. Raises `OSError` or `smtplib.SMTPException`. May block: it is called in a thread.
Transport = Callable[[EmailMessage], None]


class Mailer:
    """Construct, `start`, and `close` at the end."""

    def __init__(self, database: Database, clock: Clock, transport: Transport | None, *, sender: str) -> None:
        self._database = database
        self._glance = database.glance(select(mails.c.id).where(mails.c.due_at <= bindparam("now")).limit(1))
        self._clock = clock
        self._transport = transport
        self._sender = sender
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="mail")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.work()
            except StorageError as error:
                log.warning("mail.storage_unavailable", reason=str(error))
            except Exception:
                log.exception("mail.failed")
            await asyncio.sleep(_POLL_SECONDS)

    async def work(self) -> None:
        """Send what is due."""
        now = int(self._clock.now() * _MICROSECONDS)
        if not await self._glance.ask(now=now):
            return
        async with self._database.write() as connection:
            query = select(mails).where(mails.c.due_at <= now).limit(_AT_ONCE).with_for_update(skip_locked=True)
            rows = (await connection.execute(query)).all()
            # Doubled with every try; also what keeps other processes off meanwhile.
            for row in rows:
                due_at = now + (_CLAIM_SECONDS * 2**row.attempts) * _MICROSECONDS
                values = {"due_at": due_at, "attempts": row.attempts + 1}
                await connection.execute(update(mails).where(mails.c.id == row.id).values(**values))
        for row in rows:
            if await self._send(row.id, row.recipient, row.subject, row.body) or row.attempts + 1 >= _MOST_ATTEMPTS:
                async with self._database.write() as connection:
                    await connection.execute(delete(mails).where(mails.c.id == row.id))

    async def _send(self, mail_id: str, recipient: str, subject: str, body: str) -> bool:
        if self._transport is None:
            log.warning("mail.not_configured", subject=subject)
            return True
        message = EmailMessage()
        message["Message-ID"] = f"<{mail_id}@capstan>"
        message["From"], message["To"], message["Subject"] = self._sender, recipient, subject
        message.set_content(body)
        try:
            await asyncio.to_thread(self._transport, message)
        except (OSError, smtplib.SMTPException) as error:
            log.warning("mail.not_sent", subject=subject, reason=type(error).__name__)
            return False
        log.info("mail.sent", subject=subject)
        return True


def to_files(directory: Path) -> Transport:
    """Writes each message to a file of its own."""

    def write(message: EmailMessage) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = str(message["Message-ID"]).strip("<>").partition("@")[0]
        draft = directory / f".{name}"
        draft.write_bytes(message.as_bytes())
        draft.rename(directory / f"{name}.eml")

    return write


def to_smtp(url: str, *, seconds: float) -> Transport:
    """Sends by SMTP: `smtp://user:password@host:587`, with STARTTLS when offered, or `smtps://…`."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "localhost", parts.scheme == "smtps"
    port = parts.port or (465 if secure else 587)

    def send(message: EmailMessage) -> None:
        context = ssl.create_default_context()
        client = (
            smtplib.SMTP_SSL(host, port, timeout=seconds, context=context)
            if secure
            else smtplib.SMTP(host, port, timeout=seconds)
        )
        with client:
            client.ehlo()
            if not secure and client.has_extn("starttls"):
                client.starttls(context=context)
                client.ehlo()
            if parts.username:
                client.login(unquote(parts.username), unquote(parts.password or ""))
            client.send_message(message)

    return send
