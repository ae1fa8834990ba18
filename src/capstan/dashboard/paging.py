"""Pages of long lists, by the last row seen (keyset pagination): page 10,000 costs as much as the first.

Used by page modules. A cursor in an address is the values of the last row, joined; whoever changes it by hand gets
another place in their own list, and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from capstan.core.errors import InvalidRequest

PAGE_ROWS = 50
_SEPARATOR = "~"
RowT = TypeVar("RowT")


class ListPage(msgspec.Struct, Generic[RowT], frozen=True):
    """Some rows, and the addresses of what comes before and after."""

    rows: list[RowT]
    first: str
    next: str | None
    earlier: bool


def page_of(
    rows: Sequence[RowT],
    *,
    path: str,
    after: str,
    cursor: Sequence[str | int],
    filters: Mapping[str, str],
    most: int = PAGE_ROWS,
) -> ListPage[RowT]:
    """A page of the `most` rows that were asked for and one more; `cursor` is that of the last row shown."""
    kept = {name: value for name, value in filters.items() if value}
    more = len(rows) > most
    last = _SEPARATOR.join(str(value) for value in cursor)
    return ListPage(
        rows=list(rows[:most]),
        first=f"{path}?{urlencode(kept)}" if kept else path,
        next=f"{path}?{urlencode({**kept, 'after': last})}" if more else None,
        earlier=bool(after),
    )


def last_of(rows: Sequence[RowT], most: int = PAGE_ROWS) -> RowT | None:
    """The last row that a page shows, of those that were asked for and one more."""
    return rows[min(len(rows), most) - 1] if rows else None


def cursor_of(text: str, parts: int) -> list[str] | None:
    """The values of a cursor; None for the first page."""
    if not text:
        return None
    values = text.split(_SEPARATOR)
    if len(values) != parts:
        raise InvalidRequest("after: this is no place in the list; begin at its first page")
    return values


def cursor_number(text: str) -> int:
    """One value of a cursor that is a number."""
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidRequest("after: this is no place in the list; begin at its first page")
    return int(text)
