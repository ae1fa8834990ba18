"""The queries of the index read what they need from its trees, however large the tables are."""

import pytest
from sqlalchemy import and_
from sqlalchemy.dialects import sqlite

from capstan.index.store import _count, _page
from capstan.storage.database import Database
from capstan.storage.schema import transfers

ADDRESS = bytes(range(20))


@pytest.mark.parametrize("query", [_page, _count], ids=["page", "count"])
async def test_pages_and_counts_of_an_address_are_found_by_index(query: object, database: Database) -> None:
    inside = and_(transfers.c.network_id == 1, transfers.c.nft.is_(False), transfers.c.block_number <= 50)
    statement = _page(inside, ADDRESS, 50, 100) if query is _page else _count(inside, ADDRESS)
    compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    values = tuple(compiled.params[name] for name in compiled.positiontup or ())
    async with database.read() as connection:
        rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values)
        steps = [str(tuple(row)[-1]) for row in rows]
    found = [step for step in steps if "transfers" in step]
    assert len(found) == (2 if query is _page else 3)
    for step in found:
        assert step.startswith("SEARCH transfers USING")
        assert "block_number<?" in step
    # Each side comes out of its index in the right order; only the few of both pages together are sorted.
    sides = [step for step in steps if "ix_transfers_sender" in step or "ix_transfers_receiver" in step]
    assert len(sides) == len(found)
