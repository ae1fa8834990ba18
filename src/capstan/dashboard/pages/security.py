"""Settings, Security: the password, the second factor, where one is signed in, and who else is in the account."""

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.core.errors import ApiError, NotFound
from capstan.dashboard.desk import SIGN_IN, Asked, Desk, Page
from capstan.dashboard.menu import Entry
from capstan.signin.models import Role
from capstan.signin.service import SignIn
from capstan.signin.totp import enrolment_uri, new_totp_secret

ENTRY = Entry("Security", "/dashboard/security", "shield", "Settings")
PEOPLE = Entry("People", "/dashboard/people", "people", "Settings")


def security_pages(desk: Desk, people: SignIn) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    async def show(request: Asked, error: ApiError | None = None, *, at: str = "") -> Page:
        visitor = desk.visitor(request)
        values = {
            "sessions": await people.sessions(visitor.user.id),
            "present": visitor.known.session.id,
            "has_totp": await people.has_totp(visitor.user.id),
            "at": at,
        }
        if error is not None:
            return desk.problem(request, "security.html", error, values)
        return desk.page(request, "security.html", values)

    @get("/security")
    async def security(request: Asked) -> Page:
        """All of it."""
        return await show(request)

    @post("/security/password", opt={"counted": True})
    async def change_password(request: Asked) -> Page:
        """A new password."""
        form = desk.form(request)
        try:
            await people.change_password(desk.visitor(request).known, form.raw("present"), form.raw("password"))
        except ApiError as error:
            return await show(request, error, at="password")
        return desk.go(ENTRY.path, done="password")

    @post("/security/sessions/{session_id:str}/end")
    async def end_session(request: Asked, session_id: str) -> Page:
        """Sign out elsewhere."""
        visitor = desk.visitor(request)
        await people.end_session(visitor.user.id, session_id)
        if session_id == visitor.known.session.id:
            return desk.go(SIGN_IN, done="signed-out")
        return desk.go(ENTRY.path, done="session-ended")

    @post("/security/sessions/end-others")
    async def end_others(request: Asked) -> Page:
        """Sign out everywhere else."""
        await people.end_other_sessions(desk.visitor(request).known)
        return desk.go(ENTRY.path, done="sessions-ended")

    def enrolment(request: Asked, secret: str, error: ApiError | None = None) -> Page:
        values = {"secret_text": secret, "uri": enrolment_uri(secret, desk.visitor(request).user.email)}
        if error is not None:
            return desk.problem(request, "second_factor.html", error, values)
        return desk.page(request, "second_factor.html", values)

    @get("/security/second-factor")
    async def second_factor(request: Asked) -> Page:
        """A fresh secret for an app. It is kept once a code shows that the app has it."""
        return enrolment(request, new_totp_secret())

    @post("/security/second-factor")
    async def enable(request: Asked) -> Page:
        """Ask for codes from now on."""
        form = desk.form(request)
        try:
            await people.enable_totp(desk.visitor(request).user, form.get("secret"), form.get("code"))
        except ApiError as error:
            return enrolment(request, form.get("secret"), error)
        return desk.go(ENTRY.path, done="totp-on")

    @post("/security/second-factor/off", opt={"counted": True})
    async def disable(request: Asked) -> Page:
        """Ask for codes no more."""
        try:
            await people.disable_totp(desk.visitor(request).user, desk.form(request).raw("present"))
        except ApiError as error:
            return await show(request, error, at="second-factor")
        return desk.go(ENTRY.path, done="totp-off")

    return [security, change_password, end_session, end_others, second_factor, enable, disable]


def people_pages(desk: Desk, people: SignIn) -> list[HTTPRouteHandler]:
    """Who else may sign in for this account."""

    @get("/people")
    async def listing(request: Asked) -> Page:
        """The people of the account, and a form to invite another."""
        found = await people.people(desk.visitor(request).account.id)
        return desk.page(request, "people.html", {"people": found, "link": None, "email": ""})

    @post("/people")
    async def invite(request: Asked) -> Page:
        """Invite somebody as a member of the own account."""
        visitor, form = desk.visitor(request), desk.form(request)
        role: Role = "operator" if form.get("role") == "operator" else "member"
        if role == "operator" and not visitor.user.is_operator:
            raise NotFound("only the operator can invite operators")
        found, link, problem = await people.people(visitor.account.id), None, None
        try:
            link = await people.invite(visitor.account, form.get("email"), role)
        except ApiError as error:
            problem = error.message
        shown = {"people": found, "link": link, "email": form.get("email"), "problem": problem}
        return desk.page(request, "people.html", shown, status=400 if problem else 200)

    return [listing, invite]
