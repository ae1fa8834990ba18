"""Reads the transfer index: pages of transfers and holdings, owners, sums, tokens of a holder, and how far they reach.

Called by the service. Every method reads one consistent state, so that the block in its coverage is the block of its
rows. It writes nothing and asks no node.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index import consecutive
from capstan.index.models import (
    EVERYTHING,
    Collection,
    Coverage,
    Holding,
    HoldingPage,
    Standard,
    Subject,
    TransferPage,
)
from capstan.index.subjects import NetworkState, Subjects
from capstan.index.writer import transfer_columns, transfer_from
from capstan.storage.database import Database
from capstan.storage.schema import nft_collections, nft_holdings, token_holders, transfers

_NOTHING = Coverage(None, False)
_UNIQUE = nft_holdings.c.standard == int(Standard.ERC721)


class IndexStore:
    """The reading side of the index."""

    def __init__(self, database: Database, subjects: Subjects) -> None:
        self._database = database
        self._subjects = subjects

    async def coverage(self, network: str, subject: Subject) -> Coverage:
        """How far the index reaches for a subject."""
        async with self._read() as connection:
            state = await self._subjects.find_network(connection, network)
            return _NOTHING if state is None else await self._coverage(connection, state, subject)

    async def transfers(
        self,
        network: str,
        subject: Subject,
        *,
        nft: bool,
        first_block: int | None = None,
        last_block: int | None = None,
        limit: int,
        offset: int,
    ) -> TransferPage:
        """Transfers from and to the address of a subject, newest first."""
        async with self._read() as connection:
            state = await self._subjects.find_network(connection, network)
            if state is None:
                return TransferPage((), 0, _NOTHING)
            coverage = await self._coverage(connection, state, subject)
            inside = [transfers.c.network_id == state.id, transfers.c.nft == nft]
            inside += [transfers.c.block_number >= first_block] if first_block is not None else []
            inside += [transfers.c.block_number <= last_block] if last_block is not None else []
            total = await connection.scalar(_count(and_(*inside), subject.address))
            rows = await connection.execute(_page(and_(*inside), subject.address, limit, offset))
            found = tuple(transfer_from(row) for row in rows)
        return TransferPage(found, int(total or 0), coverage)

    async def owned(self, network: str, subject: Subject, *, limit: int, offset: int) -> HoldingPage:
        """What the address of a subject holds, by contract and id."""
        table = nft_holdings.c
        async with self._read() as connection:
            state = await self._subjects.find_network(connection, network)
            if state is None:
                return HoldingPage((), 0, _NOTHING)
            coverage = await self._coverage(connection, state, subject)
            moves, all_known = await consecutive.moves_of(connection, state.id, subject.address)
            coverage = Coverage(coverage.block, coverage.complete and all_known)
            if moves:
                held_too = await consecutive.owned(
                    connection, state.id, subject.address, moves, limit=limit, offset=offset
                )
                return HoldingPage(*held_too, coverage)
            held = and_(table.network_id == state.id, table.owner == subject.address, table.held.is_(True))
            total = await connection.scalar(select(func.count()).select_from(nft_holdings).where(held))
            query = _holdings(held).order_by(table.contract, table.token_id, table.standard)
            rows = await connection.execute(query.limit(limit).offset(offset))
            found = tuple(_holding(row) for row in rows)
        return HoldingPage(found, int(total or 0), coverage)

    async def owners(self, network: str, subject: Subject, token_id: int, *, limit: int) -> HoldingPage:
        """Who holds an id of the contract of a subject, by address."""
        table = nft_holdings.c
        async with self._read() as connection:
            state = await self._subjects.find_network(connection, network)
            if state is None:
                return HoldingPage((), 0, _NOTHING)
            coverage = await self._coverage(connection, state, subject)
            about = and_(
                table.network_id == state.id,
                table.contract == subject.address,
                table.token_id == token_id.to_bytes(32),
            )
            ranged, all_known = await consecutive.owners_of(connection, state.id, subject.address, token_id)
            coverage = Coverage(coverage.block, coverage.complete and all_known)
            found: list[Holding] = []
            if ranged:
                # What ranges say of an id of ERC-721, and what single transfers of it say, which may be below zero.
                single = [_holding(row) for row in await connection.execute(_holdings(about & _UNIQUE))]
                about &= ~_UNIQUE
                for item in single:
                    ranged[item.owner] = ranged.get(item.owner, 0) + item.amount
                owners = sorted(owner for owner, amount in ranged.items() if amount > 0)
                found = [Holding(subject.address, token_id, Standard.ERC721, owner, 1) for owner in owners]
            held = and_(about, table.held.is_(True))
            total = await connection.scalar(select(func.count()).select_from(nft_holdings).where(held))
            rows = await connection.execute(_holdings(held).order_by(table.owner, table.standard).limit(limit))
            shown = (*found, *(_holding(row) for row in rows))[:limit]
        return HoldingPage(shown, len(found) + int(total or 0), coverage)

    async def collection(self, network: str, subject: Subject) -> tuple[Collection | None, Coverage]:
        """The sums over the contract of a subject; None when no NFT transfer of it was seen."""
        table = nft_collections.c
        async with self._read() as connection:
            state = await self._subjects.find_network(connection, network)
            if state is None:
                return None, _NOTHING
            coverage = await self._coverage(connection, state, subject)
            columns = (table.owners, table.ids, table.supply, table.erc721_supply, table.erc721, table.erc1155)
            query = select(*columns).where(table.network_id == state.id, table.contract == subject.address)
            row = (await connection.execute(query)).first()
        if row is None:
            return None, coverage
        owners, ids, supply, erc721_supply, erc721, erc1155 = row
        seen = [(Standard.ERC721, erc721), (Standard.ERC1155, erc1155)]
        standards = tuple(standard for standard, count in seen if count)
        return Collection(owners, ids + int(erc721_supply), int(supply), standards), coverage

    async def tokens_of(self, network: str, subject: Subject) -> tuple[tuple[bytes, ...], Coverage]:
        """The ERC-20 contracts that the address of a subject ever sent or received, in the order of their addresses."""
        table = token_holders.c
        async with self._read() as connection:
            state = await self._subjects.find_network(connection, network)
            if state is None:
                return (), _NOTHING
            coverage = await self._coverage(connection, state, subject)
            query = select(table.contract).where(table.network_id == state.id, table.holder == subject.address)
            rows = await connection.execute(query.order_by(table.contract))
            return tuple(row[0] for row in rows), coverage

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        async with self._database.read() as connection:
            if not self._database.is_sqlite:
                # Otherwise every statement would see what others have committed meanwhile.
                await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            yield connection

    async def _coverage(self, connection: AsyncConnection, state: NetworkState, subject: Subject) -> Coverage:
        block = None if state.position is None else state.position.number
        for candidate in (subject, EVERYTHING):
            found = await self._subjects.find(connection, state.id, candidate)
            if found is not None and found.complete and block is not None:
                return Coverage(block, True)
        return Coverage(block, False)


def _count(inside: ColumnElement[bool], address: bytes) -> Select[Any]:
    """Sent and received, less those to oneself, which are both."""
    count = select(func.count()).select_from(transfers).where(inside)
    sent, received = transfers.c.sender == address, transfers.c.receiver == address
    both = count.where(sent, received).scalar_subquery()
    return select(count.where(sent).scalar_subquery() + count.where(received).scalar_subquery() - both)


def _page(inside: ColumnElement[bool], address: bytes, limit: int, offset: int) -> Select[Any]:
    """The newest of those sent and those received, each read from the end of its own index."""
    order = (transfers.c.block_number, transfers.c.log_index, transfers.c.position)
    newest = select(*transfer_columns()).where(inside).order_by(*(column.desc() for column in order))
    sent = newest.where(transfers.c.sender == address).limit(offset + limit).subquery()
    received = (
        newest.where(transfers.c.receiver == address, transfers.c.sender != address).limit(offset + limit).subquery()
    )
    both = union_all(select(sent), select(received)).subquery()
    columns = (both.c.block_number.desc(), both.c.log_index.desc(), both.c.position.desc())
    return select(both).order_by(*columns).limit(limit).offset(offset)


def _holdings(held: ColumnElement[bool]) -> Select[Any]:
    table = nft_holdings.c
    return select(table.contract, table.token_id, table.standard, table.owner, table.amount).where(held)


def _holding(row: Any) -> Holding:
    contract, token_id, standard, owner, amount = row
    return Holding(contract, int.from_bytes(token_id), Standard(standard), owner, int(amount))
