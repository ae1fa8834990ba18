"""Accounts, for the operator: every account, its plan, limits and people; suspend it, and invite somebody to it."""

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.access.models import Account, Overrides, Plan
from capstan.access.plans import PlanBook
from capstan.access.service import AccessService
from capstan.access.store import to_micros
from capstan.core.errors import ApiError, InvalidRequest
from capstan.dashboard.desk import OPERATOR, Asked, Desk, Form, Page
from capstan.dashboard.menu import Entry
from capstan.dashboard.paging import PAGE_ROWS, cursor_number, cursor_of, last_of, page_of
from capstan.signin.service import SignIn
from capstan.webhooks.log import WebhookLog

ENTRY = Entry("Accounts", "/dashboard/accounts", "accounts", "Operator", operator=True)

PLANS: tuple[Plan, ...] = ("free", "growth", "enterprise")
_LARGEST = 2**53 - 1
_WEBHOOKS = 20


def account_pages(
    desk: Desk, access: AccessService, people: SignIn, plans: PlanBook, webhooks: WebhookLog
) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    async def listing(request: Asked, error: ApiError | None = None) -> Page:
        query = desk.query(request)
        cursor = cursor_of(query.get("after"), 2)
        after = None if cursor is None else (cursor_number(cursor[0]), cursor[1])
        found = await access.newest_accounts(after=after, limit=PAGE_ROWS + 1)
        last = last_of(found)
        cursor_now = () if last is None else (to_micros(last.created_at), last.id)
        page = page_of(found, path=ENTRY.path, after=query.get("after"), cursor=cursor_now, filters={})
        values = {"page": page, "plans": PLANS}
        if error is not None:
            return desk.problem(request, "accounts.html", error, values)
        return desk.page(request, "accounts.html", values)

    async def one(request: Asked, account: Account, *, link: str | None = None, error: ApiError | None = None) -> Page:
        effective = plans.effective(account.plan, account.overrides)
        values = {
            "account": account,
            "plans": PLANS,
            "limits": [
                (name, getattr(account.overrides, name), getattr(effective, name))
                for name in Overrides.__struct_fields__
            ],
            "people": await people.people(account.id),
            "keys": [key for key in await access.keys(account.id) if key.revoked_at is None],
            "webhooks": await webhooks.listing(account.id, status=None, after=None, limit=_WEBHOOKS),
            "link": link,
        }
        if error is not None:
            return desk.problem(request, "account.html", error, values)
        return desk.page(request, "account.html", values)

    @get("/accounts", opt=OPERATOR)
    async def show_all(request: Asked) -> Page:
        """All of them, the newest first."""
        return await listing(request)

    @post("/accounts", opt=OPERATOR)
    async def create(request: Asked) -> Page:
        """Make an account."""
        form = desk.form(request)
        try:
            made = await access.create_account(form.get("name"), _plan(form))
        except ApiError as error:
            return await listing(request, error)
        desk.note(request, "account_created", subject=made.id)
        return desk.go(f"{ENTRY.path}/{made.id}", done="account-created")

    @get("/accounts/{account_id:str}", opt=OPERATOR)
    async def show(request: Asked, account_id: str) -> Page:
        """One account."""
        return await one(request, await access.account(account_id))

    @post("/accounts/{account_id:str}", opt=OPERATOR)
    async def change(request: Asked, account_id: str) -> Page:
        """Change its plan and limits."""
        form = desk.form(request)
        try:
            await access.change_limits(account_id, _plan(form), _overrides(form))
        except InvalidRequest as error:
            return await one(request, await access.account(account_id), error=error)
        desk.note(request, "account_changed", subject=account_id)
        return desk.go(f"{ENTRY.path}/{account_id}", done="account-changed")

    @post("/accounts/{account_id:str}/suspend", opt=OPERATOR)
    async def suspend(request: Asked, account_id: str) -> Page:
        """Refuse its keys."""
        await access.set_suspended(account_id, True)
        desk.note(request, "account_suspended", subject=account_id)
        return desk.go(f"{ENTRY.path}/{account_id}", done="suspended")

    @post("/accounts/{account_id:str}/resume", opt=OPERATOR)
    async def resume(request: Asked, account_id: str) -> Page:
        """Take its keys again."""
        await access.set_suspended(account_id, False)
        desk.note(request, "account_resumed", subject=account_id)
        return desk.go(f"{ENTRY.path}/{account_id}", done="resumed")

    @post("/accounts/{account_id:str}/invite", opt=OPERATOR)
    async def invite(request: Asked, account_id: str) -> Page:
        """Invite somebody to be a member of it."""
        account = await access.account(account_id)
        try:
            link = await people.invite(account, desk.form(request).get("email"), "member")
        except ApiError as error:
            return await one(request, account, error=error)
        desk.note(request, "member_invited", subject=account_id)
        return await one(request, account, link=link)

    return [show_all, create, show, change, suspend, resume, invite]


def _plan(form: Form) -> Plan:
    found = next((plan for plan in PLANS if plan == form.get("plan")), None)
    if found is None:
        raise InvalidRequest("plan: choose one of free, growth and enterprise")
    return found


def _overrides(form: Form) -> Overrides:
    """The limits that were filled in; an empty field means the plan's number."""
    own: dict[str, int] = {}
    for name in Overrides.__struct_fields__:
        text = form.get(name)
        if not text:
            continue
        if not text.isascii() or not text.isdigit() or int(text) > _LARGEST:
            raise InvalidRequest(f"{name}: expected a whole number; 0 means no limit, nothing the plan's")
        own[name] = int(text)
    return Overrides(**own)
