"""Settings, API Keys: make a key, which is shown once; see when keys were last used; revoke them."""

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from capstan.access.models import ApiKey, IssuedKey, Mode, Scope
from capstan.access.service import AccessService
from capstan.core.errors import ApiError, InvalidRequest
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.menu import Entry

ENTRY = Entry("API Keys", "/dashboard/keys", "key", "Settings")

SCOPES: dict[Scope, str] = {
    Scope.RPC_READ: "Read chains over JSON-RPC and WebSocket",
    Scope.RPC_WRITE: "Send signed transactions",
    Scope.DATA_READ: "Tokens, NFTs and transfers",
    Scope.WALLETS_MANAGE: "Smart wallets",
    Scope.WEBHOOKS_MANAGE: "Webhooks",
    Scope.GAS_MANAGE: "Gas policies and sponsorship",
    Scope.BUNDLER_SEND: "Send user operations",
}


def key_pages(desk: Desk, access: AccessService) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    async def show(request: Asked, *, issued: IssuedKey | None = None, error: ApiError | None = None) -> Page:
        keys = await access.keys(desk.visitor(request).account.id)
        newest_first = sorted(keys, key=lambda key: (key.revoked_at is not None, -key.created_at.timestamp()))
        values = {"keys": newest_first, "scopes": SCOPES, "issued": issued}
        if error is not None:
            return desk.problem(request, "keys.html", error, values)
        return desk.page(request, "keys.html", values)

    @get("/keys")
    async def listing(request: Asked) -> Page:
        """The keys of the account, and the form for a new one."""
        return await show(request)

    @post("/keys")
    async def create(request: Asked) -> Page:
        """Make a key. This answer shows it, and nothing ever shows it again."""
        form = desk.form(request)
        mode: Mode = "live" if form.get("mode") == "live" else "test"
        try:
            scopes = None if form.get("all_scopes") else _scopes(form.all("scope"))
            issued = await access.create_key(
                desk.visitor(request).account.id, name=form.get("name"), mode=mode, scopes=scopes
            )
        except ApiError as error:
            return await show(request, error=error)
        desk.note(request, "key_created", key=issued.key.id)
        return await show(request, issued=issued)

    @post("/keys/{key_id:str}/revoke")
    async def revoke(request: Asked, key_id: str) -> Page:
        """Revoke a key of the account for good."""
        await access.own_key(desk.visitor(request).account.id, key_id)
        await access.revoke_key(key_id)
        desk.note(request, "key_revoked", key=key_id)
        return desk.go(ENTRY.path, done="key-revoked")

    return [listing, create, revoke]


def _scopes(names: list[str]) -> list[Scope]:
    if not names:
        raise InvalidRequest("choose at least one scope, or give the key all of them")
    try:
        return [Scope(name) for name in names]
    except ValueError:
        raise InvalidRequest("one of the scopes does not exist") from None


def described(key: ApiKey) -> str:
    """A key as people recognise it: `svc_test_…a1B2`."""
    return f"svc_{key.mode}_…{key.hint}"
