"""What to do next, until the first request, webhook and wallet exist.

A key is stored as a hash, so no page can show one that exists. This page makes one when asked to, and shows the
snippets with it that once.
"""

from collections.abc import Callable
from typing import Any

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.access.models import IssuedKey
from capstan.access.service import AccessService
from capstan.catalogue.networks import Networks
from capstan.core.errors import ApiError
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.progress import Progress
from capstan.dashboard.snippets import Target, every_snippet

_PLACEHOLDER = "YOUR_API_KEY"


def start_pages(
    desk: Desk, access: AccessService, progress: Progress, networks: Callable[[], Networks], *, base_url: str
) -> list[HTTPRouteHandler]:
    """The handlers of the page."""

    async def show(request: Asked, issued: IssuedKey | None = None, error: ApiError | None = None) -> Page:
        served = [entry for entry in networks().served if entry.family == "evm"]
        # A test key must be able to use what the snippets name.
        chosen = next((entry for entry in served if entry.kind == "testnet"), None)
        values: dict[str, Any] = {
            "has": await progress.of(desk.visitor(request).account.id),
            "issued": issued,
            "snippets": None,
        }
        if chosen is not None:
            key = _PLACEHOLDER if issued is None else issued.secret
            target = Target(f"{base_url}/rpc/{chosen.name}", key)
            values["snippets"] = every_snippet(target, "eth_blockNumber", [])
        if error is not None:
            return desk.problem(request, "start.html", error, values)
        return desk.page(request, "start.html", values)

    @get("/start")
    async def start(request: Asked) -> Page:
        """The steps."""
        return await show(request)

    @post("/start")
    async def make_key(request: Asked) -> Page:
        """Make a test key and show the snippets with it."""
        try:
            issued = await access.create_key(desk.visitor(request).account.id, name="First steps", mode="test")
        except ApiError as error:
            return await show(request, error=error)
        desk.note(request, "key_created", key=issued.key.id)
        return await show(request, issued)

    return [start, make_key]
