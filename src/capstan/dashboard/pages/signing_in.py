"""Signing in and out, the first operator, invitations, and forgotten passwords: the pages without a menu."""

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.core.errors import ApiError
from capstan.dashboard.desk import PUBLIC, SIGN_IN, Asked, Desk, Page, safe_next
from capstan.signin.service import CodeNeeded, SignIn

# A password costs the server time to check, so these count against the limits of the client's address.
_COUNTED = {**PUBLIC, "counted": True}
SETUP_FILE = "dashboard-setup.txt"


def signing_in_pages(desk: Desk, people: SignIn, *, session_seconds: int) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    def signed_in(token: str, path: str) -> Page:
        answer = desk.go(path)
        answer.set_cookie(desk.cookies.keep_session(token, session_seconds))
        return answer

    @get("/sign-in", opt=PUBLIC)
    async def sign_in_form(request: Asked) -> Page:
        """The form, or the way to set up when nobody can sign in yet."""
        if await people.nobody_yet():
            return desk.page(request, "setup.html", {"file": SETUP_FILE})
        if desk.visitor(request).signed_in is not None:
            return desk.go("/dashboard")
        shown = {"next": safe_next(desk.query(request).get("next")), "email": "", "code": False}
        return desk.page(request, "sign_in.html", shown)

    @post("/sign-in", opt=_COUNTED)
    async def sign_in(request: Asked) -> Page:
        """Check the password and, where there is one, the code."""
        form = desk.form(request)
        email, wanted = form.get("email"), safe_next(form.get("next"))
        present = desk.cookies.session_token(request.headers)
        shown = {"next": wanted, "email": email, "code": form.has("code")}
        try:
            token, _ = await people.sign_in(
                email, form.raw("password"), form.get("code"), desk.visit(request), present=present
            )
        except CodeNeeded:
            return desk.page(request, "sign_in.html", {**shown, "code": True})
        except ApiError as error:
            return desk.problem(request, "sign_in.html", error, shown)
        return signed_in(token, wanted)

    @post("/sign-out")
    async def sign_out(request: Asked) -> Page:
        """End the session."""
        await people.sign_out(desk.visitor(request).known)
        answer = desk.go(SIGN_IN, done="signed-out")
        answer.set_cookie(desk.cookies.forget_session())
        return answer

    @get("/forgotten", opt=PUBLIC)
    async def forgotten_form(request: Asked) -> Page:
        """Ask for a link by mail."""
        return desk.page(request, "forgotten.html", {"email": ""})

    @post("/forgotten", opt=_COUNTED)
    async def forgotten(request: Asked) -> Page:
        """Mail a link, if there is such a person. The answer is the same when there is not."""
        email = desk.form(request).get("email")
        try:
            await people.ask_for_reset(email, desk.visit(request))
        except ApiError as error:
            return desk.problem(request, "forgotten.html", error, {"email": email})
        return desk.go(SIGN_IN, done="reset-asked")

    @get("/reset", opt=PUBLIC)
    async def reset_form(request: Asked) -> Page:
        """Choose a new password with a link."""
        token = desk.query(request).get("token")
        link = await people.look_at_link(token, "reset")
        return desk.page(request, "choose_password.html", {"link": link, "token": token, "action": "/dashboard/reset"})

    @post("/reset", opt=_COUNTED)
    async def reset(request: Asked) -> Page:
        """Take the new password."""
        form = desk.form(request)
        link = await people.look_at_link(form.get("token"), "reset")
        try:
            await people.reset(form.get("token"), form.raw("password"))
        except ApiError as error:
            shown = {"link": link, "token": form.get("token"), "action": "/dashboard/reset"}
            return desk.problem(request, "choose_password.html", error, shown)
        answer = desk.go(SIGN_IN, done="reset")
        answer.set_cookie(desk.cookies.forget_session())
        return answer

    @get("/join", opt=PUBLIC)
    async def join_form(request: Asked) -> Page:
        """Accept an invitation, or be the first operator."""
        token = desk.query(request).get("token")
        link = await people.look_at_link(token, "invite", "setup")
        return desk.page(request, "choose_password.html", {"link": link, "token": token, "action": "/dashboard/join"})

    @post("/join", opt=_COUNTED)
    async def join(request: Asked) -> Page:
        """Make the person and sign them in."""
        form = desk.form(request)
        link = await people.look_at_link(form.get("token"), "invite", "setup")
        try:
            token = await people.accept(
                form.get("token"),
                form.raw("password"),
                desk.visit(request),
                email=form.get("email"),
                name=form.get("name"),
            )
        except ApiError as error:
            shown = {"link": link, "token": form.get("token"), "action": "/dashboard/join"}
            return desk.problem(request, "choose_password.html", error, shown)
        return signed_in(token, "/dashboard")

    return [sign_in_form, sign_in, sign_out, forgotten_form, forgotten, reset_form, reset, join_form, join]
