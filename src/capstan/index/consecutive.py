"""Who holds what where ranges of ids moved at once (ERC-2309).

Called by the store for a holder or an id that such a range is about; for all others the table of holdings is enough. A
range is one row, whatever its length, and later transfers of single ids out of it are rows of their own below zero.
Here both are put together: what somebody holds becomes a list of intervals, of which pages are cut without ever writing
out a whole range. It reads, and writes nothing.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index.models import ZERO_ADDRESS, Holding, Standard
from capstan.storage.schema import nft_holdings, nft_ranges

# More ranges of one holder or one id than this are not looked at; then nothing is said to be complete.
_MOST_RANGES = 10_000
# Nobody has more tokens of one contract than this. A longer range is made to fill the list of somebody else, and is not
# listed; it is counted as any other.
_LONGEST_LISTED = 1_000_000
_CONTRACTS_AT_ONCE = 500


class Move(msgspec.Struct, frozen=True, gc=False):
    """A range that somebody received (`sign` 1) or sent (-1)."""

    first: int
    last: int
    sign: int


class Interval(msgspec.Struct, frozen=True, gc=False):
    """Ids that somebody holds; more than one only of ERC-721."""

    first: int
    last: int
    standard: Standard
    amount: int

    @property
    def size(self) -> int:
        """How many ids it is."""
        return self.last - self.first + 1


async def moves_of(connection: AsyncConnection, network_id: int, holder: bytes) -> tuple[dict[bytes, list[Move]], bool]:
    """The ranges that an address received or sent, by contract, and whether these are all of them."""
    table = nft_ranges.c
    query = select(table.contract, table.first_id, table.last_id, table.sender, table.receiver).where(
        table.network_id == network_id, or_(table.sender == holder, table.receiver == holder)
    )
    rows = (await connection.execute(query.limit(_MOST_RANGES + 1))).all()
    found: dict[bytes, list[Move]] = defaultdict(list)
    for contract, first, last, sender, receiver in rows[:_MOST_RANGES]:
        begin, end = int.from_bytes(first), int.from_bytes(last)
        if sender != receiver and end - begin < _LONGEST_LISTED:
            found[contract].append(Move(begin, end, 1 if receiver == holder else -1))
    return found, len(rows) <= _MOST_RANGES


async def owners_of(
    connection: AsyncConnection, network_id: int, contract: bytes, token_id: int
) -> tuple[dict[bytes, int], bool]:
    """How often each address received the id in a range, less how often it sent it so; empty for most ids."""
    table, key = nft_ranges.c, token_id.to_bytes(32)
    query = select(table.sender, table.receiver).where(
        table.network_id == network_id, table.contract == contract, table.first_id <= key, table.last_id >= key
    )
    rows = (await connection.execute(query.limit(_MOST_RANGES + 1))).all()
    found: dict[bytes, int] = defaultdict(int)
    for sender, receiver in rows[:_MOST_RANGES]:
        found[sender] -= 1
        found[receiver] += 1
    found.pop(ZERO_ADDRESS, None)
    return found, len(rows) <= _MOST_RANGES


async def owned(
    connection: AsyncConnection,
    network_id: int,
    holder: bytes,
    moves: Mapping[bytes, Sequence[Move]],
    *,
    limit: int,
    offset: int,
) -> tuple[tuple[Holding, ...], int]:
    """A page of what an address with such ranges holds, by contract and id, and how much there is in all."""
    mine = (nft_holdings.c.network_id == network_id) & (nft_holdings.c.owner == holder)
    apart = await _apart(connection, mine, sorted(moves))
    intervals = {contract: held_intervals(moves[contract], apart[contract]) for contract in moves}
    counts = await _counts(connection, mine)
    counts |= {contract: sum(piece.size for piece in pieces) for contract, pieces in intervals.items()}
    ordered = sorted((contract, count) for contract, count in counts.items() if count)
    page: list[Holding] = []
    for ranged, group in groupby(ordered, key=lambda item: item[0] in intervals):
        run = list(group)
        size = sum(count for _, count in run)
        wanted = min(limit - len(page), max(0, size - offset))
        if wanted > 0 and ranged:
            pieces = [(contract, piece) for contract, _ in run for piece in intervals[contract]]
            page += _cut(holder, pieces, offset, wanted)
        elif wanted > 0:
            page += await _plain(connection, mine, holder, (run[0][0], run[-1][0]), offset, wanted)
        offset = max(0, offset - size)
    return tuple(page), sum(counts.values())


def held_intervals(moves: Sequence[Move], apart: Iterable[tuple[int, Standard, int]]) -> list[Interval]:
    """What is held of one contract: by ranges, and by the transfers of single ids (id, standard, amount). Pure."""
    bases = _bases(moves)
    begins = [first for first, _, _ in bases]
    held: list[Interval] = []
    single: dict[int, int] = {}
    for token_id, standard, amount in apart:
        if standard is not Standard.ERC721:
            held += [Interval(token_id, token_id, standard, amount)] if amount > 0 else []
            continue
        single[token_id] = amount
        place = bisect_right(begins, token_id) - 1
        base = bases[place][2] if place >= 0 and token_id <= bases[place][1] else 0
        if base <= 0 < base + amount:
            held.append(Interval(token_id, token_id, standard, 1))
    ids = sorted(single)
    for first, last, base in bases:
        if base > 0:
            inside = ids[bisect_left(ids, first) : bisect_right(ids, last)]
            held += _without(first, last, [token_id for token_id in inside if base + single[token_id] <= 0])
    return sorted(held, key=lambda piece: (piece.first, piece.standard))


def _bases(moves: Sequence[Move]) -> list[tuple[int, int, int]]:
    """First id, last id, and how often more it was received than sent, for all ids where these differ."""
    steps: dict[int, int] = defaultdict(int)
    for move in moves:
        steps[move.first] += move.sign
        steps[move.last + 1] -= move.sign
    edges = sorted(steps)
    found: list[tuple[int, int, int]] = []
    base = 0
    for begin, end in pairwise(edges):
        base += steps[begin]
        if base:
            found.append((begin, end - 1, base))
    return found


def _without(first: int, last: int, holes: Sequence[int]) -> Iterator[Interval]:
    for hole in holes:
        if first < hole:
            yield Interval(first, hole - 1, Standard.ERC721, 1)
        first = hole + 1
    if first <= last:
        yield Interval(first, last, Standard.ERC721, 1)


def _cut(holder: bytes, pieces: Iterable[tuple[bytes, Interval]], offset: int, count: int) -> list[Holding]:
    """The ids from `offset` on, one by one."""
    found: list[Holding] = []
    for contract, piece in pieces:
        if offset < piece.size:
            first = piece.first + offset
            last = min(piece.last, first + count - len(found) - 1)
            found += [
                Holding(contract, token_id, piece.standard, holder, piece.amount) for token_id in range(first, last + 1)
            ]
        offset = max(0, offset - piece.size)
        if len(found) >= count:
            break
    return found


async def _apart(
    connection: AsyncConnection, mine: ColumnElement[bool], contracts: Sequence[bytes]
) -> dict[bytes, list[tuple[int, Standard, int]]]:
    """What the transfers of single ids come to, in these contracts."""
    table = nft_holdings.c
    found: dict[bytes, list[tuple[int, Standard, int]]] = defaultdict(list)
    for begin in range(0, len(contracts), _CONTRACTS_AT_ONCE):
        some = table.contract.in_(contracts[begin : begin + _CONTRACTS_AT_ONCE])
        query = select(table.contract, table.token_id, table.standard, table.amount).where(mine, some)
        for contract, token_id, standard, amount in await connection.execute(query):
            found[contract].append((int.from_bytes(token_id), Standard(standard), int(amount)))
    return found


async def _counts(connection: AsyncConnection, mine: ColumnElement[bool]) -> dict[bytes, int]:
    table = nft_holdings.c
    query = select(table.contract, func.count()).where(mine, table.held.is_(True)).group_by(table.contract)
    return {row[0]: row[1] for row in await connection.execute(query)}


async def _plain(
    connection: AsyncConnection,
    mine: ColumnElement[bool],
    holder: bytes,
    contracts: tuple[bytes, bytes],
    offset: int,
    count: int,
) -> list[Holding]:
    """Holdings of contracts without ranges, from the first of these to the last."""
    table = nft_holdings.c
    query = (
        select(table.contract, table.token_id, table.standard, table.amount)
        .where(mine, table.held.is_(True), table.contract.between(*contracts))
        .order_by(table.contract, table.token_id, table.standard)
    )
    rows: Any = await connection.execute(query.limit(count).offset(offset))
    return [
        Holding(contract, int.from_bytes(token_id), Standard(standard), holder, int(amount))
        for contract, token_id, standard, amount in rows
    ]
