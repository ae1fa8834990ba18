"""One query that is asked again and again: whether something has changed, or has become due.

Made with `Database.glance` by those who poll the database several times a second. A transaction through the engine
costs nearly a millisecond of the processor, most of it for passing eight small steps to SQLite's thread and back; what
is polled is nearly always unchanged. A glance is one statement, which is consistent by itself, compiled once and given
to SQLite in one step, on a connection of its own. On PostgreSQL it is an ordinary reading transaction. Values in and
out are integers and text, as they are in the database.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Select
from sqlalchemy.engine import Dialect

# Runs a statement with its values and gives the rows.
Run = Callable[[str, tuple[Any, ...]], Awaitable[list[Any]]]


class Glance:
    """The query. `ask` gives its rows; the values are those of its bind parameters."""

    def __init__(self, query: Select[Any], dialect: Dialect, run: Run) -> None:
        self._compiled = query.compile(dialect=dialect)
        self._text = str(self._compiled)
        self._run = run

    async def ask(self, **values: int | str) -> list[Any]:
        """The rows now. Raises `storage.errors`."""
        named = self._compiled.construct_params(values)
        return await self._run(self._text, tuple(named[name] for name in self._compiled.positiontup or ()))
