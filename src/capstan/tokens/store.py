"""The table of token metadata: what contracts said of themselves, so that a restart need not ask them all again.

Called by the metadata reader alone.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from capstan.storage.database import Database
from capstan.storage.schema import token_metadata
from capstan.tokens.models import TokenFacts

# SQLite takes at most 32,766 parameters in a statement.
_ROWS_AT_ONCE = 1000


class TokenStore:
    """Names, symbols and decimals by network and contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, network: str, contracts: Iterable[bytes], *, read_since: float) -> dict[bytes, TokenFacts]:
        """What was read of these contracts since then (Unix seconds)."""
        table = token_metadata
        wanted = list(contracts)
        found: dict[bytes, TokenFacts] = {}
        async with self._database.read() as connection:
            for begin in range(0, len(wanted), _ROWS_AT_ONCE):
                query = select(table.c.contract, table.c.name, table.c.symbol, table.c.decimals).where(
                    table.c.network == network,
                    table.c.contract.in_(wanted[begin : begin + _ROWS_AT_ONCE]),
                    table.c.read_at >= int(read_since * 1_000_000),
                )
                for contract, name, symbol, decimals in (await connection.execute(query)).all():
                    found[bytes(contract)] = TokenFacts(name, symbol, decimals)
        return found

    async def save(self, network: str, facts: Mapping[bytes, TokenFacts], *, moment: datetime) -> None:
        """Write what was read now."""
        read_at = int(moment.timestamp() * 1_000_000)
        rows = [
            {
                "network": network,
                "contract": contract,
                "name": entry.name,
                "symbol": entry.symbol,
                "decimals": entry.decimals,
                "read_at": read_at,
            }
            for contract, entry in facts.items()
        ]
        if not rows:
            return
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        statement = insert(token_metadata)
        changes = {name: statement.excluded[name] for name in ("name", "symbol", "decimals", "read_at")}
        statement = statement.on_conflict_do_update(index_elements=["network", "contract"], set_=changes)
        async with self._database.write() as connection:
            await connection.execute(statement, rows)
