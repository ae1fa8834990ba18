"""The overview: what the account used over an hour, a day or a month, and what is left of today's limits."""

from collections.abc import Awaitable, Callable
from typing import get_args

from litestar import get
from litestar.handlers import HTTPRouteHandler

from capstan.access.plans import PlanBook
from capstan.access.service import AccessService
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.figures import RANGES, Range, UsageFigures
from capstan.dashboard.menu import Entry
from capstan.dashboard.progress import Progress

ENTRY = Entry("Overview", "/dashboard", "chart")
_ROWS = 20


def overview_pages(
    desk: Desk,
    figures: UsageFigures,
    access: AccessService,
    plans: PlanBook,
    progress: Progress,
    *,
    delivered_today: Callable[[str], Awaitable[int]],
) -> list[HTTPRouteHandler]:
    """The handler of the page."""

    @get("/")
    async def overview(request: Asked) -> Page:
        """The figures of one range."""
        visitor = desk.visitor(request)
        account = visitor.account
        asked = desk.query(request).get("range")
        wanted: Range = next((each for each in get_args(Range) if each == asked), "24h")
        own = await access.keys(account.id)
        names = {key.id: key.name for key in own}
        found = await figures.over(account.id, wanted)
        values = {
            "range": wanted,
            "ranges": RANGES,
            "figures": found,
            "methods": found.by_method[:_ROWS],
            "more_methods": max(0, len(found.by_method) - _ROWS),
            "keys": [(names.get(entry.name) or _stranger(entry.name), entry) for entry in found.by_key[:_ROWS]],
            "keys_held": sum(key.revoked_at is None for key in own),
            "delivered": await delivered_today(account.id),
            "today": await figures.today(account.id),
            "limits": plans.effective(account.plan, account.overrides),
            "has": await progress.of(account.id),
        }
        return desk.page(request, "overview.html", values)

    return [overview]


def _stranger(name: str) -> str:
    """What is called with something other than a key of the account."""
    return "Dashboard" if name.startswith("ses_") else name
