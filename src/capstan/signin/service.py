"""The rules of signing in: who gets a session, how long it lasts, and what a link allows.

Called by the dashboard and by `capstan accounts invite`. A token is given out once and kept as its SHA-256; a failed
try costs as much time whether or not the person exists, and is counted for the address, for the person, and for both.
"""

import hashlib
import secrets
from datetime import datetime, timedelta

import msgspec
import structlog

from capstan.access.models import Account, Overrides
from capstan.core.clock import Clock, utc
from capstan.core.errors import Conflict, InvalidRequest, NotFound, RateLimited
from capstan.core.ids import new_id
from capstan.signin.models import Link, LinkKind, Mail, Role, Secrets, Session, SignedIn, User, Visit
from capstan.signin.passwords import Passwords, check_new_password
from capstan.signin.store import SignInStore
from capstan.signin.totp import matching_step
from capstan.storage.errors import AlreadyExists

log = structlog.get_logger(__name__)

# Failed tries within one window before further ones are refused: of a person from one address, of a person, of an
# address.
_WINDOW_SECONDS = 900
_MOST_OF_BOTH, _MOST_OF_PERSON, _MOST_OF_ADDRESS = 5, 50, 100
_MOST_SESSIONS = 50
_TOUCH_SECONDS = 60
_MICROSECONDS = 1_000_000
_LASTS: dict[LinkKind, timedelta] = {
    "reset": timedelta(minutes=30),
    "invite": timedelta(days=7),
    "setup": timedelta(days=365),
}
_LONGEST_AGENT = 200
_RESET_TEXT = """Somebody, most likely you, asked for a new password on Capstan.

Choose one here, within half an hour:

{url}

If it was not you, do nothing.
"""


class Refused(InvalidRequest):
    """The address, the password or the code is wrong. It does not say which."""


class CodeNeeded(Exception):
    """The password is right; the code of the second factor is still to be asked for."""


class Lifetimes(msgspec.Struct, frozen=True):
    """How long a session lasts: unused, and in all."""

    idle: timedelta
    longest: timedelta


class SignIn:
    """Sessions, links and second factors of all people."""

    def __init__(
        self,
        store: SignInStore,
        clock: Clock,
        sealed: Secrets,
        *,
        lifetimes: Lifetimes,
        dashboard_url: str,
        passwords: Passwords | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._secrets = sealed
        self._lifetimes = lifetimes
        self._url = dashboard_url
        self._passwords = passwords or Passwords()

    async def nobody_yet(self) -> bool:
        """Whether the first operator is still to be made."""
        return not await self._store.any_user()

    async def sign_in(
        self, email: str, password: str, code: str, visit: Visit, *, present: str | None = None
    ) -> tuple[str, User]:
        """A token for a new session. Raises `Refused`, `CodeNeeded` or `RateLimited`. The present session ends."""
        email = _cleaned(email)
        both, limits = _subjects(email, visit.client)
        now = int(self._clock.now() * _MICROSECONDS)
        failed = await self._store.failures(list(limits), now)
        if any(failed.get(subject, 0) >= most for subject, most in limits.items()):
            log.warning("sign_in_refused", client=visit.client, reason="too many failed tries")
            raise RateLimited("too many failed tries; wait a quarter of an hour", retry_after=_WINDOW_SECONDS)
        found = await self._store.user_by_email(email)
        user, stored = found or (None, None)
        right = await self._passwords.matches(stored, password)
        if right and user is not None and not code and await self._store.totp(user.id) is not None:
            raise CodeNeeded
        if not right or user is None or not await self._second_factor_counts(user, code):
            await self._store.add_failure(list(limits), now, _WINDOW_SECONDS * _MICROSECONDS)
            log.warning("sign_in_failed", client=visit.client)
            raise Refused("the e-mail address, the password or the code is not right")
        await self._store.forget_failures(both)
        return await self._new_session(user, visit, present), user

    async def find(self, token: str, *, looking: bool = True) -> SignedIn | None:
        """Whoever the token belongs to, if the session has not expired. Without `looking`, it does not count as use."""
        signed_in = await self._store.session(_digest(token))
        if signed_in is None:
            return None
        now, session = utc(self._clock), signed_in.session
        if now >= min(session.expires_at, session.seen_at + self._lifetimes.idle):
            await self._store.end_session(session.user_id, session.id)
            return None
        if looking and (now - session.seen_at).total_seconds() >= _TOUCH_SECONDS:
            await self._store.touch_session(session.id, now)
        return signed_in

    async def sign_out(self, signed_in: SignedIn) -> None:
        """End the session."""
        await self._store.end_session(signed_in.user.id, signed_in.session.id)

    async def sessions(self, user_id: str) -> list[Session]:
        """Where somebody is signed in now."""
        now = utc(self._clock)
        return [
            each
            for each in await self._store.sessions(user_id)
            if now < min(each.expires_at, each.seen_at + self._lifetimes.idle)
        ]

    async def end_session(self, user_id: str, session_id: str) -> None:
        """End one session of this person."""
        if not await self._store.end_session(user_id, session_id):
            raise NotFound("this session has ended already")

    async def end_other_sessions(self, signed_in: SignedIn) -> int:
        """End every session of this person but the present one."""
        return await self._store.end_other_sessions(signed_in.user.id, signed_in.session.id)

    async def people(self, account_id: str) -> list[User]:
        """The people of an account."""
        return await self._store.users(account_id)

    async def change_password(self, signed_in: SignedIn, present: str, new: str) -> None:
        """A new password for somebody who knows the present one. All other sessions end."""
        await self.check_password(signed_in.user, present)
        check_new_password(new, signed_in.user.email)
        hashed = await self._passwords.hash(new)
        await self._store.set_password(signed_in.user.id, hashed, keep_session=signed_in.session.id)

    async def check_password(self, user: User, password: str) -> None:
        """Raises `Refused` unless this is the person's password."""
        found = await self._store.user_by_email(user.email)
        if not await self._passwords.matches(found[1] if found else None, password):
            raise Refused("the present password is not right")

    async def has_totp(self, user_id: str) -> bool:
        """Whether a second factor is asked for."""
        return await self._store.totp(user_id) is not None

    async def enable_totp(self, user: User, secret: str, code: str) -> None:
        """Ask for a second factor from now on; the code shows that the app has the secret."""
        step = matching_step(secret, code, self._clock.now(), after=0)
        if step is None:
            raise Refused("the code is not right; check the clock of your device and try the next one")
        await self._store.set_totp(user.id, self._secrets.seal(secret, user.id), step, utc(self._clock))

    async def disable_totp(self, user: User, password: str) -> None:
        """Ask for no second factor any more."""
        await self.check_password(user, password)
        await self._store.remove_totp(user.id)

    async def forget_totp(self, email: str) -> bool:
        """Ask somebody who lost their app for no second factor any more. False when none was asked for."""
        found = await self._store.user_by_email(_cleaned(email))
        if found is None:
            raise NotFound(f"nobody signs in as {_cleaned(email)}")
        return await self._store.remove_totp(found[0].id)

    async def invite(self, account: Account, email: str, role: Role) -> str:
        """The address of a link with which somebody joins an account. It is mailed, too."""
        email = _checked_email(email)
        if await self._store.user_by_email(email) is not None:
            raise Conflict(f"{email} can sign in already")
        body = f"You are invited to the account {account.name} on Capstan.\n\nChoose a password here:\n\n{{url}}\n"
        return await self._new_link("invite", email, role, account_id=account.id, mail=("Invitation to Capstan", body))

    async def offer_setup(self) -> str:
        """The code with which the first operator is made."""
        return await self._new_link("setup", "", "operator")

    async def ask_for_reset(self, email: str, visit: Visit) -> None:
        """Mail a link for a new password, if there is such a person. Says nothing about whether there is."""
        email = _cleaned(email)
        subject = f"reset:{_hashed(visit.client)}"
        now = int(self._clock.now() * _MICROSECONDS)
        if (await self._store.failures([subject], now)).get(subject, 0) >= _MOST_OF_BOTH:
            raise RateLimited("too many requests for a new password; wait a while", retry_after=_WINDOW_SECONDS)
        await self._store.add_failure([subject], now, _WINDOW_SECONDS * _MICROSECONDS)
        found = await self._store.user_by_email(email)
        if found is not None:
            user = found[0]
            message = ("A new password for Capstan", _RESET_TEXT)
            await self._new_link("reset", email, user.role, user_id=user.id, mail=message)

    async def look_at_link(self, token: str, *kinds: LinkKind) -> Link:
        """What a link is for. Raises `NotFound` for one that does not work any more."""
        link = await self._store.link(_digest(token))
        if link is None or link.kind not in kinds or utc(self._clock) >= link.expires_at:
            raise NotFound("this link does not work: it was used, it expired, or it is incomplete")
        return link

    async def reset(self, token: str, password: str) -> None:
        """Choose a new password with a link. Every session of the person ends."""
        link = await self.look_at_link(token, "reset")
        assert link.user_id is not None, "links for a new password name their user"
        check_new_password(password, link.email)
        await self._store.set_password(link.user_id, await self._passwords.hash(password), keep_session=None)
        await self._store.forget_failures(f"mail:{_hashed(link.email)}")

    async def accept(self, token: str, password: str, visit: Visit, *, email: str = "", name: str = "") -> str:
        """Join with an invitation, or be the first operator with the setup code; a token for the first session."""
        link = await self.look_at_link(token, "invite", "setup")
        if link.kind == "setup" and await self._store.any_user():
            raise Conflict("the first operator is there already; sign in, or ask for an invitation")
        email, now = _checked_email(link.email or email), utc(self._clock)
        check_new_password(password, email)
        account = None if link.account_id else _first_account(name, now)
        user = User(new_id("usr"), link.account_id or (account.id if account else ""), email, link.role, now)
        try:
            accepted = await self._store.accept(_digest(token), account, user, await self._passwords.hash(password))
        except AlreadyExists:
            raise Conflict(f"{email} can sign in already") from None
        if not accepted:
            raise NotFound("this link does not work any more: it was just used")
        return await self._new_session(user, visit, None)

    async def _second_factor_counts(self, user: User, code: str) -> bool:
        kept = await self._store.totp(user.id)
        if kept is None:
            return True
        sealed, last_step = kept
        step = matching_step(self._secrets.unseal(sealed, user.id), code, self._clock.now(), after=last_step)
        return step is not None and await self._store.use_totp_step(user.id, step)

    async def _new_session(self, user: User, visit: Visit, present: str | None) -> str:
        token, now = secrets.token_urlsafe(32), utc(self._clock)
        session = Session(
            id=new_id("ses"),
            user_id=user.id,
            client=visit.client,
            agent=visit.agent[:_LONGEST_AGENT],
            created_at=now,
            seen_at=now,
            expires_at=now + self._lifetimes.longest,
        )
        instead_of = None if present is None else _digest(present)
        await self._store.add_session(session, _digest(token), instead_of=instead_of, most=_MOST_SESSIONS)
        log.info("signed_in", user=user.id, session=session.id, client=visit.client)
        return token

    async def _new_link(
        self,
        kind: LinkKind,
        email: str,
        role: Role,
        *,
        account_id: str | None = None,
        user_id: str | None = None,
        mail: tuple[str, str] | None = None,
    ) -> str:
        """The address of a new link."""
        token, now = secrets.token_urlsafe(32), utc(self._clock)
        link = Link(kind, user_id, account_id, email, role, now + _LASTS[kind])
        path = "reset" if kind == "reset" else "join"
        url = f"{self._url}/{path}?token={token}"
        message = None if mail is None else Mail(email, mail[0], mail[1].replace("{url}", url))
        await self._store.add_link(_digest(token), link, now, message)
        return url


def _first_account(name: str, now: datetime) -> Account:
    return Account(new_id("acc"), name.strip()[:200] or "operator", "enterprise", Overrides(), "active", now)


def _subjects(email: str, client: str) -> tuple[str, dict[str, int]]:
    """What a failed try is counted for, with how many are allowed; and the one that a success clears."""
    both = f"both:{_hashed(f'{email} {client}')}"
    limits = {
        both: _MOST_OF_BOTH,
        f"mail:{_hashed(email)}": _MOST_OF_PERSON,
        f"addr:{_hashed(client)}": _MOST_OF_ADDRESS,
    }
    return both, limits


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _cleaned(email: str) -> str:
    return email.strip().lower()


def _checked_email(email: str) -> str:
    cleaned = _cleaned(email)
    name, _, host = cleaned.partition("@")
    if not name or not host or len(cleaned) > 254 or not cleaned.isprintable() or " " in cleaned:
        raise InvalidRequest("email: this is not an e-mail address")
    return cleaned
