"""What every page of the dashboard is given: who looks, what they sent, and how to answer.

Page modules take a `Desk` and return handlers. The guard, which the router puts before every handler, finds the
visitor, sends people who are not signed in to sign in, keeps members from the operator's pages, and refuses every form
that none of our own pages made. A handler says what it allows in its `opt`: `PUBLIC` or `OPERATOR`; without either it
is for everybody who is signed in.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import structlog
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from capstan.core.errors import ApiError, Forbidden, InvalidRequest
from capstan.dashboard.menu import Menu
from capstan.dashboard.notices import NOTICES
from capstan.dashboard.rendering import Renderer
from capstan.dashboard.visitors import Cookies, Visitor
from capstan.server.context import context_of
from capstan.server.rendering import to_api_error
from capstan.signin.models import Visit
from capstan.signin.service import SignIn

log = structlog.get_logger(__name__)

Asked = Request[Any, Any, Any]
Page = Response[str]

PUBLIC: dict[str, Any] = {"public": True}
OPERATOR: dict[str, Any] = {"operator": True}

SIGN_IN = "/dashboard/sign-in"
_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# The referrer is sent to ourselves alone: without one, browsers would not tell us the origin of a form either.
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_VISITOR, _FORM = "capstan.visitor", "capstan.form"
_MOST_FIELDS = 500
_NONE: Mapping[str, Any] = {}
_READING = ("GET", "HEAD")


class SignInNeeded(Exception):
    """The page is for people who are signed in."""


class Form:
    """The fields of a form, or of the query of an address. Absent fields are empty."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def has(self, name: str) -> bool:
        """Whether there is such a field."""
        return any(key == name for key, _ in self._pairs)

    def get(self, name: str) -> str:
        """One field."""
        return next((value.strip() for key, value in self._pairs if key == name), "")

    def raw(self, name: str) -> str:
        """One field as it was sent, such as a password."""
        return next((value for key, value in self._pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        """Every value of a field that may occur several times."""
        return [value for key, value in self._pairs if key == name]


class Desk:
    """Finds visitors and answers them."""

    def __init__(self, sign_in: SignIn, renderer: Renderer, menu: Menu, cookies: Cookies, *, origin: str) -> None:
        self._sign_in = sign_in
        self._renderer = renderer
        self._menu = menu
        self.cookies = cookies
        self._origin = origin

    async def guard(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Comes before every handler of the dashboard."""
        assert isinstance(connection, Request)
        visitor = await self._find(connection)
        state: Any = connection.scope
        state[_VISITOR] = visitor
        if visitor.signed_in is None and not handler.opt.get("public"):
            raise SignInNeeded
        if handler.opt.get("operator") and not visitor.user.is_operator:
            raise Forbidden("this page is for the operator of the service")
        if connection.method not in _READING:
            form = await _read_form(connection)
            self._check_origin(connection)
            if not visitor.sent_by(form.raw("form_token")):
                log.warning("form_refused", client=context_of(connection.scope).client, path=connection.url.path)
                raise Forbidden("this form is not one of ours, or is too old; go back, reload the page and try again")
            state[_FORM] = form

    def visitor(self, request: Asked) -> Visitor:
        """Who looks at the page."""
        state: Any = request.scope
        found = state[_VISITOR]
        assert isinstance(found, Visitor)
        return found

    def form(self, request: Asked) -> Form:
        """What was sent."""
        state: Any = request.scope
        found = state[_FORM]
        assert isinstance(found, Form)
        return found

    def query(self, request: Asked) -> Form:
        """What the address says behind the question mark."""
        return Form(_pairs(request.url.query))

    def visit(self, request: Asked) -> Visit:
        """Where the request comes from."""
        return Visit(context_of(request.scope).client, request.headers.get("user-agent", ""))

    def page(self, request: Asked, template: str, values: Mapping[str, Any] = _NONE, *, status: int = 200) -> Page:
        """A page. `problem` in the values is shown above its form."""
        visitor = self.visitor(request)
        shown = {
            "visitor": visitor,
            "menu": self._menu.entries(visitor) if visitor.signed_in else (),
            "path": request.url.path,
            "notice": NOTICES.get(self.query(request).get("done")),
            "problem": None,
            **values,
        }
        cookies = [self.cookies.keep_forms(visitor)] if visitor.fresh else []
        text = self._renderer.render(template, shown)
        return Response(text, status_code=status, media_type="text/html", headers=HEADERS, cookies=cookies)

    def part(self, template: str, values: Mapping[str, Any]) -> str:
        """A part of a page that is sent alone. It knows no visitor, so it has no forms."""
        return self._renderer.render(template, dict(values))

    async def still_operator(self, request: Asked) -> bool:
        """Whether the session of an operator lasts, asked while an answer is under way. It does not count as use."""
        found = await self._sign_in.find(self.visitor(request).cookie, looking=False)
        return found is not None and found.user.is_operator

    def problem(self, request: Asked, template: str, error: ApiError, values: Mapping[str, Any] = _NONE) -> Page:
        """The page again, with what was wrong."""
        return self.page(request, template, {**values, "problem": error.message}, status=error.status)

    def go(self, path: str, *, done: str = "", **query: str) -> Page:
        """Send the browser on, after a form was taken. `done` names the notice that the next page shows."""
        wanted = {**query, **({"done": done} if done else {})}
        headers = {**HEADERS, "Location": f"{path}?{urlencode(wanted)}" if wanted else path}
        return Response("", status_code=303, media_type="text/html", headers=headers)

    def handle(self, request: Asked, error: Exception) -> Page:
        """The page of an exception that left a handler."""
        if isinstance(error, SignInNeeded):
            wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            if request.method not in _READING or wanted == "/dashboard":
                return self.go(SIGN_IN)
            return self.go(SIGN_IN, next=wanted)
        context = context_of(request.scope)
        shown = to_api_error(error, path=context.path, method=context.method, request_id=context.request_id)
        state: Any = request.scope
        if _VISITOR not in state:
            # The visitor could not be found: the database is away, say. Such a page has no menu.
            state[_VISITOR] = self.cookies.anonymous(request.headers)
        answer = self.page(
            request, "error.html", {"error": shown, "request_id": context.request_id}, status=shown.status
        )
        answer.headers.update(shown.headers)
        return answer

    def note(self, request: Asked, action: str, **details: str) -> None:
        """Write into the log who changed what."""
        visitor = self.visitor(request)
        log.info("dashboard_change", action=action, user=visitor.user.id, account=visitor.account.id, **details)

    async def _find(self, request: Asked) -> Visitor:
        token = self.cookies.session_token(request.headers)
        signed_in = None if token is None else await self._sign_in.find(token)
        if token is None or signed_in is None:
            return self.cookies.anonymous(request.headers)
        return Visitor(token, signed_in)

    def _check_origin(self, request: Asked) -> None:
        """Refuse a form that another site sent. Old browsers tell no origin; the token is asked for in any case."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Forbidden("this form was sent by another site")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc not in (request.headers.get("host"), self._origin):
            raise Forbidden("this form was sent by another site")


def safe_next(path: str) -> str:
    """A path of the dashboard to go to after signing in; anything else becomes its first page."""
    return (
        path
        if path.startswith("/dashboard") and path.isascii() and path.isprintable() and "\\" not in path
        else "/dashboard"
    )


def segment(text: str) -> str:
    """A value as one segment of a path."""
    return quote(text, safe="")


async def _read_form(request: Asked) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidRequest("send the form as application/x-www-form-urlencoded")
    try:
        return Form(_pairs((await request.body()).decode()))
    except UnicodeDecodeError:
        raise InvalidRequest("the form is not UTF-8") from None


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidRequest("the form has too many fields") from None
