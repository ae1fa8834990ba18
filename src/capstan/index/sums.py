"""The sums over transfers: who holds which NFT, the owners and ids of a collection, the tokens a holder touched.

Called by the transfer writer inside its transaction with transfers that were just added or removed. Every sum is a
plain total over the rows of `transfers`, so it does not matter in which order they come: history that arrives after the
present gives the same sums, and a removed row takes back exactly what it gave. The caller holds the network's lock.
Amounts of ERC-20 are never summed: balances are read from the chain.
"""

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from capstan.index.bulk import BulkTable, Row
from capstan.index.models import ZERO_ADDRESS, Standard, Transfer
from capstan.storage.schema import nft_collections, nft_counts, nft_holdings, token_holders


class _Change:
    """What some transfers change in one collection."""

    __slots__ = ("ids", "owners", "seen", "supply")

    def __init__(self) -> None:
        self.owners = 0
        self.ids = 0
        self.supply = 0
        self.seen = {Standard.ERC721: 0, Standard.ERC1155: 0}


class Sums:
    """Keeps the sums of all networks."""

    def __init__(self, *, sqlite: bool) -> None:
        self._holdings = BulkTable(nft_holdings, sqlite=sqlite)
        self._counts = BulkTable(nft_counts, sqlite=sqlite)
        self._collections = BulkTable(nft_collections, sqlite=sqlite)
        self._holders = BulkTable(token_holders, sqlite=sqlite)

    async def add(self, connection: AsyncConnection, network_id: int, transfers: Iterable[Transfer], sign: int) -> None:
        """Count transfers that were added (`sign` 1) or removed (-1)."""
        tokens: dict[Row, int] = defaultdict(int)
        holdings: dict[Row, int] = defaultdict(int)
        changes: dict[bytes, _Change] = defaultdict(_Change)
        for transfer in transfers:
            if transfer.token_id is None:
                _count_token(tokens, network_id, transfer, sign)
            else:
                _count_nft(holdings, changes[transfer.contract], network_id, transfer, transfer.token_id, sign)
        if tokens:
            await self._add_tokens(connection, tokens, sign)
        if changes:
            counts = await self._add_holdings(connection, holdings)
            await self._add_counts(connection, counts, changes)
            await self._add_collections(connection, network_id, changes)

    async def _add_tokens(self, connection: AsyncConnection, tokens: dict[Row, int], sign: int) -> None:
        if sign > 0:
            await self._holders.add(connection, [(*key, count) for key, count in tokens.items()])
            return
        await self._add_numbers(connection, self._holders, tokens)

    async def _add_holdings(self, connection: AsyncConnection, deltas: dict[Row, int]) -> dict[Row, int]:
        """Returns by how much the holdings of each owner, and of each id, became more."""
        deltas = {key: delta for key, delta in deltas.items() if delta}
        present = await self._holdings.load(connection, deltas)
        counts: dict[Row, int] = defaultdict(int)
        written: list[Row] = []
        gone: list[Row] = []
        for key, delta in deltas.items():
            row = present.get(key)
            before = int(row[0]) if row is not None else 0
            after = before + delta
            if after:
                written.append((*key, str(after), after > 0))
            else:
                gone.append(key)
            step = (after > 0) - (before > 0)
            if step:
                network_id, contract, token_id, owner, _standard = key
                counts[(network_id, contract, owner)] += step
                counts[(network_id, contract, token_id)] += step
        await self._holdings.replace(connection, written)
        await self._holdings.delete(connection, gone)
        return counts

    async def _add_counts(
        self, connection: AsyncConnection, deltas: dict[Row, int], changes: dict[bytes, _Change]
    ) -> None:
        for key, step in (await self._add_numbers(connection, self._counts, deltas)).items():
            change = changes[key[1]]
            # Addresses have 20 bytes, ids 32.
            if len(key[2]) == len(ZERO_ADDRESS):
                change.owners += step
            else:
                change.ids += step

    async def _add_numbers(
        self, connection: AsyncConnection, table: BulkTable, deltas: dict[Row, int]
    ) -> dict[Row, int]:
        """Add to the one number beside each key. Returns which keys came into being (1) and which ended (-1)."""
        deltas = {key: delta for key, delta in deltas.items() if delta}
        present = await table.load(connection, deltas)
        steps: dict[Row, int] = {}
        written: list[Row] = []
        gone: list[Row] = []
        for key, delta in deltas.items():
            row = present.get(key)
            before = int(row[0]) if row is not None else 0
            after = before + delta
            if after:
                written.append((*key, after))
            else:
                gone.append(key)
            if bool(after) != bool(before):
                steps[key] = 1 if after else -1
        await table.replace(connection, written)
        await table.delete(connection, gone)
        return steps

    async def _add_collections(
        self, connection: AsyncConnection, network_id: int, changes: dict[bytes, _Change]
    ) -> None:
        present = await self._collections.load(connection, [(network_id, contract) for contract in changes])
        written: list[Row] = []
        gone: list[Row] = []
        for contract, change in changes.items():
            key = (network_id, contract)
            owners, ids, supply, erc721, erc1155 = present.get(key, (0, 0, "0", 0, 0))
            values = (
                owners + change.owners,
                ids + change.ids,
                str(int(supply) + change.supply),
                erc721 + change.seen[Standard.ERC721],
                erc1155 + change.seen[Standard.ERC1155],
            )
            # Nothing was ever transferred: then the row was never there.
            if any(values[3:]):
                written.append((*key, *values))
            else:
                gone.append(key)
        await self._collections.replace(connection, written)
        await self._collections.delete(connection, gone)


def _count_token(tokens: dict[Row, int], network_id: int, transfer: Transfer, sign: int) -> None:
    if not transfer.amount:
        # Anybody can make a token say that nothing was sent in somebody's name.
        return
    for party in {transfer.sender, transfer.receiver}:
        if party != ZERO_ADDRESS:
            tokens[(network_id, party, transfer.contract)] += sign


def _count_nft(
    holdings: dict[Row, int], change: _Change, network_id: int, transfer: Transfer, token_id: int, sign: int
) -> None:
    key_id = token_id.to_bytes(32)
    amount = sign * transfer.amount
    change.seen[transfer.standard] += sign
    for party, step in ((transfer.sender, -amount), (transfer.receiver, amount)):
        if party == ZERO_ADDRESS:
            # Out of nothing is a mint, into nothing a burn.
            change.supply -= step
        else:
            holdings[(network_id, transfer.contract, key_id, party, int(transfer.standard))] += step
