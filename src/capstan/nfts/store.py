"""The table of metadata documents.

Called by the library of documents. The id of a token is 32 bytes there, most significant first, and empty for the
document of a collection.
"""

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import ColumnElement, case, select, true, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index.models import Notice, NoticeKind
from capstan.nfts.models import Document
from capstan.storage.database import Database
from capstan.storage.schema import nft_metadata

_MICROSECONDS = 1_000_000
_ROWS_AT_ONCE = 500
_COLLECTION = b""


class Stored(msgspec.Struct, frozen=True):
    """A document as it was last fetched, or not. `next_at` is in Unix seconds; 0: its contract says that it changed."""

    uri: str
    document: Document | None
    failures: int
    next_at: float


def key_of(token_id: int | None) -> bytes:
    """The id as the table has it; None stands for the collection."""
    return _COLLECTION if token_id is None else token_id.to_bytes(32, "big")


class NftStore:
    """Documents by network, contract and id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, network: str, keys: Iterable[tuple[bytes, bytes]]) -> dict[tuple[bytes, bytes], Stored]:
        """What is stored for these contracts and ids."""
        table = nft_metadata
        by_contract: dict[bytes, list[bytes]] = {}
        for contract, token in keys:
            by_contract.setdefault(contract, []).append(token)
        found: dict[tuple[bytes, bytes], Stored] = {}
        async with self._database.read() as connection:
            for contract, tokens in by_contract.items():
                for begin in range(0, len(tokens), _ROWS_AT_ONCE):
                    query = select(
                        table.c.token_id, table.c.uri, table.c.document, table.c.failures, table.c.next_at
                    ).where(
                        table.c.network == network,
                        table.c.contract == contract,
                        table.c.token_id.in_(tokens[begin : begin + _ROWS_AT_ONCE]),
                    )
                    for token, uri, text, failures, next_at in (await connection.execute(query)).all():
                        found[contract, bytes(token)] = Stored(uri, _document(text), failures, next_at / _MICROSECONDS)
        return found

    async def save(
        self, network: str, contract: bytes, token: bytes, stored: Stored, before: Stored | None = None
    ) -> None:
        """Write how a fetch went. `before` is what was stored when it began.

        If the contract has announced a change since then, the row stays marked: what was fetched may be older.
        """
        row = {
            "network": network,
            "contract": contract,
            "token_id": token,
            "uri": stored.uri.replace("\0", ""),
            "document": None if stored.document is None else msgspec.json.encode(stored.document).decode(),
            "failures": stored.failures,
            "next_at": int(stored.next_at * _MICROSECONDS),
        }
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        statement = insert(nft_metadata).values(row)
        changes: dict[str, object] = {name: row[name] for name in ("uri", "document", "failures", "next_at")}
        if before is not None and before.next_at:
            changes["next_at"] = case((nft_metadata.c.next_at == 0, 0), else_=row["next_at"])
        statement = statement.on_conflict_do_update(index_elements=["network", "contract", "token_id"], set_=changes)
        async with self._database.write() as connection:
            await connection.execute(statement)

    async def mark_changed(self, connection: AsyncConnection, network: str, notices: Sequence[Notice]) -> None:
        """Contracts say that documents changed: fetch those that are stored again when next asked for."""
        table = nft_metadata
        known: set[bytes] = set()
        contracts = sorted({notice.contract for notice in notices})
        for begin in range(0, len(contracts), _ROWS_AT_ONCE):
            query = select(table.c.contract).distinct()
            some = table.c.contract.in_(contracts[begin : begin + _ROWS_AT_ONCE])
            known |= {bytes(row[0]) for row in await connection.execute(query.where(table.c.network == network, some))}
        for notice in notices:
            if notice.contract in known:
                which = (table.c.network == network, table.c.contract == notice.contract, _concerned(notice))
                await connection.execute(update(table).where(*which).values(next_at=0, failures=0))


def _concerned(notice: Notice) -> ColumnElement[bool]:
    """The rows of a contract that a notice is about."""
    token_id = nft_metadata.c.token_id
    if notice.kind is NoticeKind.CODE:
        return true()
    if notice.kind is NoticeKind.COLLECTION:
        return token_id == _COLLECTION
    return token_id.between(key_of(notice.first), key_of(notice.last))


def _document(text: str | None) -> Document | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Document)
    except msgspec.DecodeError:
        # Written by another version. It is fetched again in time.
        return None
