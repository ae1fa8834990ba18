"""Smart wallets: a list with filters, and one wallet as the chain has it.

The list says what was last seen of each wallet and asks no chain; the page of one wallet asks.
"""

from collections.abc import Callable
from typing import Any

from litestar import get
from litestar.handlers import HTTPRouteHandler

from capstan.access.store import to_micros
from capstan.catalogue.networks import Networks
from capstan.core.errors import ApiError, InvalidRequest, NotFound
from capstan.core.hexes import parse_address, to_checksum_address
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.menu import Entry
from capstan.dashboard.paging import PAGE_ROWS, cursor_number, cursor_of, page_of
from capstan.wallets.models import Wallet
from capstan.wallets.service import WalletService
from capstan.wallets.store import WalletFilter, WalletStore

ENTRY = Entry("Wallets", "/dashboard/wallets", "wallet")

_STATUSES = (("", "any status"), ("deployed", "deployed"), ("counterfactual", "counterfactual"))


def wallet_pages(
    desk: Desk, service: WalletService, store: WalletStore, networks: Callable[[], Networks]
) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    @get("/wallets")
    async def listing(request: Asked) -> Page:
        """The wallets of the account, the newest first."""
        query = desk.query(request)
        filters = {name: query.get(name) for name in ("address", "network", "status")}
        served = sorted(each.name for each in networks().served if each.family == "evm")
        choices = [("", "any network"), *((name, name) for name in served)]
        values: dict[str, Any] = {"filters": filters, "networks": choices, "statuses": _STATUSES, "page": None}
        try:
            after, place = query.get("after"), cursor_of(query.get("after"), 2)
            cursor = None if place is None else (cursor_number(place[0]), place[1])
            account_id = desk.visitor(request).account.id
            found = await store.newest_of(account_id, _filter(filters), after=cursor, limit=PAGE_ROWS + 1)
        except InvalidRequest as error:
            return desk.problem(request, "wallets.html", error, values)
        last = found[:PAGE_ROWS][-1] if found else None
        key = () if last is None else (to_micros(last.created_at), last.id)
        page = page_of([_shown(each) for each in found], path=ENTRY.path, after=after, cursor=key, filters=filters)
        return desk.page(request, "wallets.html", {**values, "page": page})

    @get("/wallets/{chain:str}/{network:str}/{address:str}")
    async def one(request: Asked, chain: str, network: str, address: str) -> Page:
        """One wallet, as the chain has it now, or as it was last seen when the chain cannot be asked."""
        visitor = desk.visitor(request)
        wallet = await store.newest(visitor.account.id, _address(address), [f"{chain}/{network}"])
        if wallet is None:
            raise NotFound("there is no such wallet of this account")
        values: dict[str, Any] = {"wallet": _shown(wallet), "detail": None, "missing": ""}
        try:
            values["detail"] = await service.read(visitor.caller, to_checksum_address(wallet.address), chain, network)
        except ApiError as error:
            values["missing"] = error.message
        return desk.page(request, "wallet.html", values)

    return [listing, one]


def _filter(filters: dict[str, str]) -> WalletFilter:
    status = filters["status"]
    return WalletFilter(
        network=filters["network"] or None,
        address=_address(filters["address"]) if filters["address"] else None,
        deployed={"deployed": True, "counterfactual": False}.get(status),
    )


def _address(text: str) -> bytes:
    try:
        return parse_address(text)
    except ValueError:
        raise InvalidRequest("address: write an address of 40 hex digits that begins with 0x") from None


def _shown(wallet: Wallet) -> dict[str, Any]:
    address = to_checksum_address(wallet.address)
    return {
        "address": address,
        "owner": to_checksum_address(wallet.owner),
        "network": wallet.network,
        "status": "deployed" if wallet.deployed else "counterfactual",
        "version": wallet.version,
        "factory": to_checksum_address(wallet.factory),
        "entry_point": to_checksum_address(wallet.entry_point),
        "salt": str(wallet.salt),
        "created_at": wallet.created_at,
        "path": f"{ENTRY.path}/{wallet.network}/{address}",
    }
