"""The table of token metadata: what contracts said of themselves, so that a restart need not ask them all again.

Called by the metadata reader alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

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

    async def delete(self, connection: AsyncConnection, network: str, contracts: Sequence[bytes]) -> None:
        """Forget what was read of these contracts, in the given transaction."""
        table = token_metadata
        for begin in range(0, len(contracts), _ROWS_AT_ONCE):
            some = table.c.contract.in_(contracts[begin : begin + _ROWS_AT_ONCE])
            await connection.execute(delete(table).where(table.c.network == network, some))
