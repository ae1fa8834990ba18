"""User operations: a list with filters, and one operation's life from its arrival to its receipt.

A member's list has the operations of the account's wallets, an operator's has all. One operation is shown to whoever
knows its hash, as the bundler's own methods do.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler

from capstan.access.models import Caller
from capstan.access.store import to_micros
from capstan.bundler.entries import State
from capstan.bundler.history import OperationDetail, OperationHistory, OperationRow, Wanted
from capstan.chain.errors import ChainError
from capstan.core.errors import ApiError, InvalidRequest, NotFound
from capstan.core.hexes import parse_address, parse_data, parse_quantity, to_checksum_address, to_data
from capstan.dashboard.desk import Asked, Desk, Page
from capstan.dashboard.menu import Entry
from capstan.dashboard.paging import PAGE_ROWS, cursor_number, cursor_of, page_of
from capstan.gas.sponsor.history import SponsorshipHistory

ENTRY = Entry("User Operations", "/dashboard/operations", "ops")

_RECEIPT_SECONDS = 5.0
_HASH_BYTES = 32
Progress = Literal["done", "waiting", "failed"]
# The receipt of an operation on a network, for a caller; None while it is not on the chain.
ReadReceipt = Callable[[Caller, str, bytes], Awaitable[dict[str, Any] | None]]


class Step(msgspec.Struct, frozen=True):
    """One event in the life of an operation."""

    title: str
    progress: Progress
    text: str = ""
    # What the text is about: a hash or an address.
    code: str = ""
    at: datetime | None = None


def operation_pages(
    desk: Desk, history: OperationHistory, sponsorships: SponsorshipHistory, read_receipt: ReadReceipt
) -> list[HTTPRouteHandler]:
    """The handlers of these pages."""

    @get("/operations")
    async def listing(request: Asked) -> Page:
        """Operations, the newest first."""
        visitor, query = desk.visitor(request), desk.query(request)
        filters = {"sender": query.get("sender"), "state": query.get("state")}
        values: dict[str, Any] = {"filters": filters, "states": _states(), "page": None}
        try:
            wanted = Wanted(
                None if visitor.user.is_operator else visitor.account.id,
                _sender(filters["sender"]),
                next((each for each in get_args(State) if each == filters["state"]), None),
            )
            after = query.get("after")
            found = await history.newest(wanted, after=_place(after), limit=PAGE_ROWS + 1)
        except InvalidRequest as error:
            return desk.problem(request, "operations.html", error, values)
        last = found[:PAGE_ROWS][-1] if found else None
        key = () if last is None else (to_micros(last.created_at), last.hash.hex())
        page = page_of([_shown(row) for row in found], path=ENTRY.path, after=after, cursor=key, filters=filters)
        return desk.page(request, "operations.html", {**values, "page": page})

    @get("/operations/{chain:str}/{network:str}/{operation_hash:str}")
    async def one(request: Asked, chain: str, network: str, operation_hash: str) -> Page:
        """The life of one operation."""
        caller, name = desk.visitor(request).caller, f"{chain}/{network}"
        detail = await history.find(name, _hash(operation_hash))
        if detail is None:
            raise NotFound("the bundler of this service has no such operation, or has forgotten it")
        receipt, missing = None, ""
        if detail.row.state == "included":
            try:
                async with asyncio.timeout(_RECEIPT_SECONDS):
                    receipt = await read_receipt(caller, name, detail.row.hash)
            except (ApiError, ChainError, TimeoutError):
                missing = "The receipt could not be read from the chain now."
        nonce = parse_quantity(detail.operation["nonce"], lenient=True)
        values = {
            "operation": _shown(detail.row),
            "steps": _life(detail, receipt),
            "receipt": receipt,
            "missing": missing,
            "text": msgspec.json.format(msgspec.json.encode(detail.operation), indent=2).decode(),
            "sponsorship": await sponsorships.of_operation(caller, name, detail.row.sender, nonce),
        }
        return desk.page(request, "operation.html", values)

    return [listing, one]


def _states() -> list[tuple[str, str]]:
    return [("", "any status"), *((each, each) for each in get_args(State))]


def _place(after: str) -> tuple[int, bytes] | None:
    place = cursor_of(after, 2)
    return None if place is None else (cursor_number(place[0]), _hash("0x" + place[1]))


def _sender(text: str) -> bytes | None:
    try:
        return parse_address(text) if text else None
    except ValueError:
        raise InvalidRequest("sender: write an address of 40 hex digits that begins with 0x") from None


def _hash(text: str) -> bytes:
    try:
        found = parse_data(text)
    except ValueError:
        found = b""
    if len(found) != _HASH_BYTES:
        raise InvalidRequest("the hash of an operation has 64 hex digits and begins with 0x")
    return found


def _shown(row: OperationRow) -> dict[str, Any]:
    return {
        "network": row.network,
        "hash": to_data(row.hash),
        "sender": to_checksum_address(row.sender),
        "entry_point": to_checksum_address(row.entry_point),
        "state": "reverted" if row.success is False else row.state,
        "reason": row.reason,
        "created_at": row.created_at,
        "path": f"{ENTRY.path}/{row.network}/{to_data(row.hash)}",
    }


def _life(detail: OperationDetail, receipt: dict[str, Any] | None) -> list[Step]:
    """What happened to an operation, in order, and what comes next."""
    row = detail.row
    steps = [
        Step("Arrived", "done", "Taken into the pool.", at=row.created_at),
        Step("Found good", "done", f"Last checked on the state of block {detail.validated_at:,}."),
    ]
    for number, each in enumerate(detail.transactions):
        title = "Sent in a bundle" if number == 0 else "Sent again with a higher fee"
        steps.append(Step(title, "done", "Transaction", to_data(each.hash), each.created_at))
    if row.state == "pending":
        steps.append(Step("Waits for a bundle", "waiting"))
    elif row.state == "submitted":
        steps.append(Step("Waits for its block", "waiting"))
    elif row.state == "failed":
        steps.append(Step("Left the pool", "failed", row.reason, at=row.changed_at))
    else:
        steps.append(_included(row))
        if receipt is not None:
            cost = parse_quantity(receipt["actualGasCost"], lenient=True)
            gas = parse_quantity(receipt["actualGasUsed"], lenient=True)
            steps.append(Step("Receipt", "done", f"Used {gas:,} gas and paid {cost:,} wei."))
    return steps


def _included(row: OperationRow) -> Step:
    code = "" if row.transaction is None else to_data(row.transaction)
    where = f"in block {row.block_number:,}, transaction"
    if row.success is False:
        return Step(
            "On the chain, and its call reverted",
            "failed",
            f"{row.reason or 'No reason was given'}; {where}",
            code,
            row.changed_at,
        )
    return Step("On the chain", "done", where[0].upper() + where[1:], code, row.changed_at)
