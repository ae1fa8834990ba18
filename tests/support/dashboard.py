"""A running service with a dashboard, an operator and a member, and ways to sign in.

`serving_dashboard` starts one; a test file shares it. The first operator is made as on any new server, with the link in
the file that the service wrote; the member is invited from the command line. `Visitor` is a browser without a screen:
it keeps cookies and sends forms with the token of a page, as `sign_in` does in a real one.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import msgspec
from playwright.async_api import Page

from tests.support.gateway import Gateway, serving
from tests.support.service import run_json

_SECONDS = 30.0
_COOKIE = "capstan_session"
_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


class Person(msgspec.Struct, frozen=True):
    """Somebody who can sign in."""

    email: str
    password: str


OPERATOR = Person("operator@example.com", "correct horse battery")
MEMBER = Person("member@example.com", "quite another password")


class Visitor:
    """A browser without a screen."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.client = httpx.Client(base_url=f"{origin}/dashboard", timeout=_SECONDS, trust_env=False)

    def get(self, path: str = "", **query: Any) -> httpx.Response:
        """A page."""
        return self.client.get(path, params=query or None)

    def token(self, path: str) -> str:
        """The token of the forms of a page."""
        page = self.get(path)
        found = _TOKEN.search(page.text)
        assert found is not None, f"{path} has no form: {page.status_code} {page.text[:500]}"
        return found[1]

    def post(self, path: str, form: Mapping[str, Any] | None = None, *, at: str = "/keys") -> httpx.Response:
        """Send a form with the token that the page `at` carries."""
        return self.client.post(path, data={"form_token": self.token(at), **(form or {})})

    def sign_in(self, person: Person, **further: str) -> httpx.Response:
        """Send the form of the sign-in page."""
        form = {"email": person.email, "password": person.password, **further}
        return self.post("/sign-in", form, at="/sign-in")


class Dashboard:
    """The running service."""

    def __init__(self, gateway: Gateway, directory: Path) -> None:
        self.gateway = gateway
        self.origin = gateway.service.origin
        self.data = directory / "data"
        self._sessions: dict[Person, str] = {}

    def visitor(self, person: Person | None = None, *, fresh: bool = False) -> Visitor:
        """A new browser, signed in when a person is named: with the session of an earlier one, unless `fresh`."""
        visitor = Visitor(self.origin)
        if person is None:
            return visitor
        if person not in self._sessions or fresh:
            answer = visitor.sign_in(person)
            assert answer.status_code == 303, answer.text
            self._sessions.setdefault(person, visitor.client.cookies[_COOKIE])
        else:
            visitor.client.cookies.set(_COOKIE, self._sessions[person])
        return visitor

    def run(self, *arguments: str) -> Any:
        """A command on the data of this service."""
        return run_json(*arguments, "--data-dir", str(self.data))

    def join(self, link: str, form: Mapping[str, str]) -> httpx.Response:
        """Follow a link of an invitation or of the first operator."""
        path = link.partition("/dashboard")[2]
        token = path.partition("token=")[2]
        return Visitor(self.origin).post("/join", {"token": token, **form}, at=path)

    def mails(self) -> list[str]:
        """The mail that was sent, as text."""
        return [path.read_text() for path in sorted((self.data / "mail").glob("*.eml"))]


@contextlib.contextmanager
def serving_dashboard(
    directory: Path, upstream: str, contracts: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[Dashboard]:
    """A service in development mode, with an operator and a member of another account; `contracts` of its network."""
    chosen = {"mode": "development", **settings}
    with serving(directory, [upstream], settings=chosen, **(contracts or {})) as gateway:
        dashboard = Dashboard(gateway, directory)
        link = (dashboard.data / "dashboard-setup.txt").read_text().strip()
        made = dashboard.join(link, {"name": "Harbour", "email": OPERATOR.email, "password": OPERATOR.password})
        assert made.status_code == 303, made.text
        invited = dashboard.run("accounts", "invite", MEMBER.email, "--plan", "growth")
        joined = dashboard.join(invited["link"], {"password": MEMBER.password})
        assert joined.status_code == 303, joined.text
        yield dashboard


def invited(dashboard: Dashboard, email: str) -> Person:
    """A new member of the operator's account."""
    page = dashboard.visitor(OPERATOR).post("/people", {"email": email, "role": "member"}, at="/people")
    assert page.status_code == 200, page.text
    (link,) = re.findall(r'<code id="secret-text">([^<]+)</code>', page.text)
    person = Person(email, f"the password of {email}")
    assert dashboard.join(link, {"password": person.password}).status_code == 303
    return person


async def enter(page: Page, dashboard: Dashboard, person: Person) -> None:
    """Give a real browser a session without its form, which takes a second less."""
    token = dashboard.visitor(person).client.cookies[_COOKIE]
    await page.context.add_cookies([{"name": _COOKIE, "value": token, "url": dashboard.origin}])
    await page.goto(f"{dashboard.origin}/dashboard")


async def sign_in(page: Page, dashboard: Dashboard, person: Person) -> None:
    """Sign a real browser in, through the form."""
    await page.goto(f"{dashboard.origin}/dashboard/sign-in")
    await page.get_by_label("E-mail").fill(person.email)
    await page.get_by_label("Password").fill(person.password)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/dashboard")


def texts(answer: httpx.Response) -> str:
    """The text of a page, without its tags."""
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))
