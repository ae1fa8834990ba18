"""Who looks at a page: the cookies, the session behind them, and the token that every form carries.

Called by the desk for every request. The token of forms is derived from the cookie, which no other site can read, so
nothing is stored for it: whoever can name it has read one of our pages. A person who is not signed in yet has a cookie
for forms alone.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

import msgspec
from litestar.datastructures import Cookie

from capstan.access.models import ALL_SCOPES, Account, Caller
from capstan.signin.models import SignedIn, User

_SESSION, _FORMS = "capstan_session", "capstan_forms"
_SHAPE_LENGTH = 43


class Visitor(msgspec.Struct, frozen=True):
    """Whoever sent a request. `signed_in` is None before signing in."""

    cookie: str
    signed_in: SignedIn | None
    # Whether the cookie is new and still has to be set.
    fresh: bool = False

    @property
    def form_token(self) -> str:
        """What a form of this visitor must carry."""
        digest = hashlib.sha256(b"capstan form\0" + self.cookie.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def sent_by(self, token: str) -> bool:
        """Whether a form with this token was made by one of our pages for this visitor."""
        return hmac.compare_digest(self.form_token.encode(), token.encode())

    @property
    def known(self) -> SignedIn:
        """The session; the guard lets nobody without one come to the pages that ask."""
        assert self.signed_in is not None, "this page is for people who are signed in"
        return self.signed_in

    @property
    def user(self) -> User:
        """The person."""
        return self.known.user

    @property
    def account(self) -> Account:
        """The account the person works with."""
        return self.known.account

    @property
    def caller(self) -> Caller:
        """The visitor as services know callers: all scopes, every network, and the session in place of a key."""
        account = self.account
        return Caller(
            account_id=account.id,
            key_id=self.known.session.id,
            mode="live",
            plan=account.plan,
            overrides=account.overrides,
            scopes=ALL_SCOPES,
            suspended=account.status == "suspended",
        )


class Cookies:
    """Names, reads and makes the cookies. `secure`: the dashboard is reached by https."""

    def __init__(self, *, secure: bool) -> None:
        self._secure = secure
        # Browsers take a cookie with this prefix only from this very host and by https (RFC 6265bis).
        prefix = "__Host-" if secure else ""
        self._session, self._forms = prefix + _SESSION, prefix + _FORMS

    def session_token(self, headers: Mapping[str, str]) -> str | None:
        """The token of a session, if the request has one."""
        return self._read(headers, self._session)

    def anonymous(self, headers: Mapping[str, str]) -> Visitor:
        """A visitor who is not signed in."""
        kept = self._read(headers, self._forms)
        return Visitor(kept or secrets.token_urlsafe(32), None, fresh=kept is None)

    def keep_session(self, token: str, seconds: int) -> Cookie:
        """Sign the browser in."""
        return self._cookie(self._session, token, seconds)

    def forget_session(self) -> Cookie:
        """Sign the browser out."""
        return self._cookie(self._session, "", 0)

    def keep_forms(self, visitor: Visitor) -> Cookie:
        """The cookie of a visitor who is not signed in."""
        return self._cookie(self._forms, visitor.cookie, None)

    def _cookie(self, name: str, value: str, seconds: int | None) -> Cookie:
        # Lax and not strict: a link from a mail to a page must find the session. Forms have their token.
        common: dict[str, Any] = {"path": "/", "httponly": True, "samesite": "lax", "secure": self._secure}
        return Cookie(key=name, value=value, max_age=seconds, **common)

    def _read(self, headers: Mapping[str, str], name: str) -> str | None:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            return None
        return found.value if found is not None and len(found.value) == _SHAPE_LENGTH else None
