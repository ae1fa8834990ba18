"""The queries of people, sessions, second factors, links and failed tries. Nothing else.

Called by the sign-in service. What belongs together is written in one transaction: a link is used up with the change it
allows, and mail is written down with what it tells of.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, Select, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.access.models import Account
from capstan.access.store import account_of, from_micros, insert_account, insert_user, to_micros
from capstan.core.ids import new_id
from capstan.signin.models import Link, Mail, Session, SignedIn, User
from capstan.storage.database import Database
from capstan.storage.schema import accounts
from capstan.storage.signin_schema import sign_in_failures, user_links, user_sessions, user_totp, users
from capstan.storage.webhook_schema import mails

_failures = sign_in_failures.c


class SignInStore:
    """Rows of people and their sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def any_user(self) -> bool:
        """Whether anybody can sign in."""
        async with self._database.read() as connection:
            return (await connection.scalar(select(users.c.id).limit(1))) is not None

    async def user(self, user_id: str) -> User | None:
        """One person."""
        row = await self._first(select(users).where(users.c.id == user_id))
        return None if row is None else _user(row)

    async def user_by_email(self, email: str) -> tuple[User, str] | None:
        """A person and the hash of the password."""
        row = await self._first(select(users).where(users.c.email == email))
        return None if row is None else (_user(row), row["password_hash"])

    async def users(self, account_id: str) -> list[User]:
        """The people of an account, in the order in which they came."""
        query = select(users).where(users.c.account_id == account_id).order_by(users.c.created_at, users.c.id)
        async with self._database.read() as connection:
            return [_user(row) for row in (await connection.execute(query)).mappings()]

    async def set_password(self, user_id: str, password_hash: str, *, keep_session: str | None) -> None:
        """A new password. Every session but one ends, and links for a new password no longer work."""
        async with self._database.write() as connection:
            await connection.execute(update(users).where(users.c.id == user_id).values(password_hash=password_hash))
            others = delete(user_sessions).where(user_sessions.c.user_id == user_id)
            if keep_session is not None:
                others = others.where(user_sessions.c.id != keep_session)
            await connection.execute(others)
            await connection.execute(delete(user_links).where(user_links.c.user_id == user_id))

    async def add_session(self, session: Session, digest: bytes, *, instead_of: bytes | None, most: int) -> None:
        """Write a new session; the one it replaces ends, and so do the oldest when there are too many."""
        async with self._database.write() as connection:
            mine = user_sessions.c.user_id == session.user_id
            if instead_of is not None:
                await connection.execute(delete(user_sessions).where(user_sessions.c.digest == instead_of))
            old = select(user_sessions.c.id).where(mine).order_by(user_sessions.c.seen_at.desc()).offset(most - 1)
            excess = list(await connection.scalars(old))
            expired = user_sessions.c.expires_at <= to_micros(session.created_at)
            await connection.execute(delete(user_sessions).where(user_sessions.c.id.in_(excess) | expired))
            await connection.execute(
                insert(user_sessions).values(
                    id=session.id,
                    digest=digest,
                    user_id=session.user_id,
                    client=session.client,
                    agent=session.agent,
                    created_at=to_micros(session.created_at),
                    seen_at=to_micros(session.seen_at),
                    expires_at=to_micros(session.expires_at),
                )
            )

    async def session(self, digest: bytes) -> SignedIn | None:
        """Whoever is behind a session, expired or not."""
        async with self._database.read() as connection:
            found = await _one(connection, select(user_sessions).where(user_sessions.c.digest == digest))
            if found is None:
                return None
            person = await _one(connection, select(users).where(users.c.id == found["user_id"]))
            assert person is not None, "a session refers to its user"
            owner = await _one(connection, select(accounts).where(accounts.c.id == person["account_id"]))
            assert owner is not None, "a user refers to its account"
            return SignedIn(_session(found), _user(person), account_of(owner))

    async def touch_session(self, session_id: str, at: datetime) -> None:
        """Note that a session is in use."""
        async with self._database.write() as connection:
            await connection.execute(
                update(user_sessions).where(user_sessions.c.id == session_id).values(seen_at=to_micros(at))
            )

    async def sessions(self, user_id: str) -> list[Session]:
        """Where somebody is signed in, the latest use first."""
        mine = user_sessions.c.user_id == user_id
        query = select(user_sessions).where(mine).order_by(user_sessions.c.seen_at.desc(), user_sessions.c.id)
        async with self._database.read() as connection:
            return [_session(row) for row in (await connection.execute(query)).mappings()]

    async def end_session(self, user_id: str, session_id: str) -> bool:
        """End one session of this person. False when there is none."""
        mine = (user_sessions.c.user_id == user_id, user_sessions.c.id == session_id)
        async with self._database.write() as connection:
            return (await connection.execute(delete(user_sessions).where(*mine))).rowcount == 1

    async def end_other_sessions(self, user_id: str, session_id: str) -> int:
        """End every session of this person but one."""
        others = (user_sessions.c.user_id == user_id, user_sessions.c.id != session_id)
        async with self._database.write() as connection:
            return int((await connection.execute(delete(user_sessions).where(*others))).rowcount)

    async def totp(self, user_id: str) -> tuple[bytes, int] | None:
        """The encrypted second factor and the last step that was used."""
        row = await self._first(select(user_totp).where(user_totp.c.user_id == user_id))
        return None if row is None else (row["secret"], row["last_step"])

    async def set_totp(self, user_id: str, secret: bytes, last_step: int, at: datetime) -> None:
        """Ask for a second factor from now on."""
        async with self._database.write() as connection:
            await connection.execute(delete(user_totp).where(user_totp.c.user_id == user_id))
            values = {"user_id": user_id, "secret": secret, "last_step": last_step, "created_at": to_micros(at)}
            await connection.execute(insert(user_totp).values(**values))

    async def use_totp_step(self, user_id: str, step: int) -> bool:
        """Use up a step. False when it, or a later one, was used already."""
        later = (user_totp.c.user_id == user_id, user_totp.c.last_step < step)
        async with self._database.write() as connection:
            return (await connection.execute(update(user_totp).where(*later).values(last_step=step))).rowcount == 1

    async def remove_totp(self, user_id: str) -> bool:
        """Ask for no second factor any more. False when none was asked for."""
        async with self._database.write() as connection:
            return (await connection.execute(delete(user_totp).where(user_totp.c.user_id == user_id))).rowcount == 1

    async def add_link(self, digest: bytes, link: Link, at: datetime, mail: Mail | None) -> None:
        """Write a link, with the mail that carries it, and forget links that no longer work."""
        async with self._database.write() as connection:
            await connection.execute(delete(user_links).where(user_links.c.expires_at <= to_micros(at)))
            await connection.execute(
                insert(user_links).values(
                    digest=digest,
                    kind=link.kind,
                    user_id=link.user_id,
                    account_id=link.account_id,
                    email=link.email,
                    role=link.role,
                    created_at=to_micros(at),
                    expires_at=to_micros(link.expires_at),
                )
            )
            if mail is not None:
                await _add_mail(connection, mail, to_micros(at))

    async def link(self, digest: bytes) -> Link | None:
        """What a link is for, expired or not."""
        row = await self._first(select(user_links).where(user_links.c.digest == digest))
        if row is None:
            return None
        expires_at = from_micros(row["expires_at"])
        return Link(row["kind"], row["user_id"], row["account_id"], row["email"], row["role"], expires_at)

    async def accept(self, digest: bytes, account: Account | None, user: User, password_hash: str) -> bool:
        """Use up an invitation: write the person, and the account when it is new. False when it was used up already."""
        async with self._database.write() as connection:
            used = await connection.execute(delete(user_links).where(user_links.c.digest == digest))
            if used.rowcount != 1:
                return False
            if account is not None:
                await insert_account(connection, account)
            await insert_user(
                connection, user.id, user.account_id, user.email, password_hash, user.role, user.created_at
            )
            return True

    async def failures(self, subjects: Sequence[str], now: int) -> dict[str, int]:
        """How often each failed in its present window."""
        query = select(_failures.subject, _failures.failures).where(
            _failures.subject.in_(subjects), _failures.window_ends_at > now
        )
        async with self._database.read() as connection:
            return {row.subject: row.failures for row in await connection.execute(query)}

    async def add_failure(self, subjects: Sequence[str], now: int, window: int) -> None:
        """Count a failure for each, in the present window or a new one."""
        dialect: Any = sqlite if self._database.is_sqlite else postgresql
        async with self._database.write() as connection:
            await connection.execute(delete(sign_in_failures).where(_failures.window_ends_at <= now))
            # In one order, so that two processes never wait for one another in turn.
            for subject in sorted(subjects):
                statement = dialect.insert(sign_in_failures).values(
                    subject=subject, window_ends_at=now + window, failures=1
                )
                await connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=["subject"], set_={"failures": _failures.failures + 1}
                    )
                )

    async def forget_failures(self, subject: str) -> None:
        """Begin anew for one subject."""
        async with self._database.write() as connection:
            await connection.execute(delete(sign_in_failures).where(_failures.subject == subject))

    async def _first(self, query: Select[Any]) -> RowMapping | None:
        async with self._database.read() as connection:
            return await _one(connection, query)


async def _one(connection: AsyncConnection, query: Select[Any]) -> RowMapping | None:
    row: RowMapping | None = (await connection.execute(query)).mappings().first()
    return row


async def _add_mail(connection: AsyncConnection, mail: Mail, now: int) -> None:
    values = {"recipient": mail.recipient, "subject": mail.subject, "body": mail.body}
    await connection.execute(insert(mails).values(id=new_id("mail"), **values, created_at=now, due_at=now, attempts=0))


def _user(row: RowMapping) -> User:
    return User(row["id"], row["account_id"], row["email"], row["role"], from_micros(row["created_at"]))


def _session(row: RowMapping) -> Session:
    return Session(
        id=row["id"],
        user_id=row["user_id"],
        client=row["client"],
        agent=row["agent"],
        created_at=from_micros(row["created_at"]),
        seen_at=from_micros(row["seen_at"]),
        expires_at=from_micros(row["expires_at"]),
    )
